"""`ClientData`: the examples of many clients, from what people have."""

import abc
import functools
import os
import secrets
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from keras_adaclip._checks import check_between_0_and_1, check_choice, check_integer
from keras_adaclip.federated import client_sources as sources
from keras_adaclip.federated.client_sources import Examples, copied, num_rows, rows_of
from keras_adaclip.sampling import as_arrays, common_length, reading

# What the random numbers of a client are for.
_OF_CLIENTS, _OF_EXAMPLES = 1, 2


class ClientData(abc.ABC):
    """The examples of many clients, read when they are needed.

    The functions that begin with `from_` make one: of a frame with a column of clients, of arrays,
    a dict, files or a function. Indexing with the id of a client returns its examples, `(x, y)`;
    `len()` is the number of clients, which counts as public. A subclass has `client_ids` and
    `examples_at`.

    Attributes:
        client_ids: The ids of all clients, each once.

    Example:

    >>> import numpy as np
    >>> x, y = np.arange(5.0)[:, None], np.zeros(5)
    >>> clients = ClientData.from_arrays(x, y, client_ids=["ann", "bob", "ann", "ann", "bob"])
    >>> clients.client_ids, len(clients), clients["bob"][0].ravel().tolist()
    (['ann', 'bob'], 2, [1.0, 4.0])
    """

    client_ids: Sequence[Any]

    @staticmethod
    def from_dataframe(
        frame: Any, client: str, label: Any = None, features: Any = None
    ) -> "ClientData":
        """Return clients whose examples are rows of a frame, in the order of the rows.

        Args:
            frame: A frame of pandas or polars, or a table of Arrow, with a row for each example.
            client: The name of the column with the client of each row: integers, strings,
                categories, or other hashable objects.
            label: The name of the column of targets, a list or dict of names, or None.
            features: The names of the columns of inputs, which become the columns of one array; a
                single name, for an array of shape `(num_examples,)`; or a dict of these for a model
                with several inputs. None takes all other columns.

        Raises:
            TypeError: If `frame` is no frame, a row has no client, or a column holds no numbers.
            ValueError: If a column does not exist, or there is none for the inputs.

        Example:

        >>> import pandas
        >>> columns = {"user": ["ann", "bob", "ann"], "age": [3, 5, 4], "y": [0, 1, 1]}
        >>> frame = pandas.DataFrame(columns)
        >>> clients = ClientData.from_dataframe(frame, client="user", label="y")
        >>> clients["ann"][0].tolist()
        [[3], [4]]
        """
        x, y, client_ids = sources.columns_of(frame, client, label, features)
        return ClientData.from_arrays(x, y, client_ids)

    @staticmethod
    def from_arrays(
        x: Any, y: Any, client_ids: Any, population: Sequence[Hashable] | None = None
    ) -> "ClientData":
        """Return clients whose examples are rows of arrays in memory, in the order of the rows.

        Args:
            x: An array, or a dict or tuple of arrays, of shape `(num_examples, ...)`. Arrays may
                hold strings on TensorFlow.
            y: Targets of the same length, or None.
            client_ids: The client of each example: integers, strings or other hashable objects, of
                shape `(num_examples,)`, or what a function of `federated.partition` returns.
            population: The ids of all clients, including those without an example. None takes the
                ids that occur.

        Raises:
            TypeError: If an argument is of the wrong type, or an example has no client.
            ValueError: If lengths differ, or an id is missing in the population or twice in it.
        """
        examples = x, y = as_arrays((x, y))
        ids, places = sources.numbered(client_ids, population)
        common_length({"x": x, "client_ids": places} | ({} if y is None else {"y": y}))
        ends = np.cumsum(np.bincount(places, minlength=len(ids)))
        rows = np.split(np.argsort(places, kind="stable"), ends[:-1])
        read = functools.partial(_rows_by_id, examples, dict(zip(ids, rows, strict=True)))
        return _OfFunction(ids, read, [len(each) for each in rows])

    @staticmethod
    def from_dict(examples: Mapping[Any, Any]) -> "ClientData":
        """Return clients whose examples are the values of a dict.

        Args:
            examples: For the id of each client its `(x, y)`, or `x` alone: arrays, or dicts or
                tuples of arrays, of shape `(num_examples, ...)`.

        Raises:
            TypeError: If `examples` is no dict.
            ValueError: If there is no client.
            RuntimeError: While training, if the value of a client is no data, with its id.

        Example:

        >>> import numpy as np
        >>> clients = ClientData.from_dict({"ann": (np.ones((3, 2)), np.zeros(3))})
        >>> clients["ann"][0].shape
        (3, 2)
        """
        if not isinstance(examples, Mapping):
            raise TypeError(
                "Argument `examples` must be a dict of the examples of each client. "
                f"Received: examples of type {type(examples).__name__}"
            )
        return _OfFunction(examples, examples.__getitem__)

    @staticmethod
    def from_hdf5(path: str | os.PathLike[str], x: Any, y: Any = None) -> "ClientData":
        """Return the clients of a file in TensorFlow Federated's layout, read one at a time.

        Args:
            path: An HDF5 file with `examples/<client id>/<feature>`.
            x: The name of the input feature, or a dict or tuple of names.
            y: The name of the target, or a dict or tuple of names, or None.

        Raises:
            OSError: If the file does not exist or is no HDF5 file.
            ValueError: If the file has another layout, or lacks a feature.
            RuntimeError: While training, if a client lacks a feature.
        """
        path = os.path.abspath(path)
        read = functools.partial(sources.hdf5_client, path, x, y)
        try:
            clients = _OfFunction(sources.hdf5_client_ids(path), read)
            read(clients.client_ids[0])
        except KeyError as error:
            raise ValueError(
                "The file must hold every feature as `examples/<client id>/<feature>`, the layout "
                f"of TensorFlow Federated. Received: path={path!r}, x={x!r}, y={y!r}: {error}"
            ) from error
        return clients

    @staticmethod
    def from_function(
        client_ids: Sequence[Hashable],
        read: Callable[[Any], Any],
        num_examples: Sequence[int] | None = None,
    ) -> "ClientData":
        """Return clients whose examples a function reads each time that they are needed.

        Args:
            client_ids: The ids of all clients, each once.
            read: Takes the id of a client and returns its examples: arrays, or dicts or tuples of
                arrays, of shape `(num_examples, ...)`. A tuple of two is `(x, y)`, anything else
                `x`. It must not look at other clients.
            num_examples: The number of examples of each client, in the order of the ids. None reads
                clients to count them, with `client_batch_size=None` all of them before training.

        Raises:
            ValueError: If there is no client, an id occurs twice, or the numbers of ids and of
                `num_examples` differ; while training, if a client has another number of examples.
            RuntimeError: If `read` fails, with the id of the client.
        """
        return _OfFunction(client_ids, read, num_examples)

    def map(self, preprocess: Callable[[Any, Any], Examples]) -> "ClientData":
        """Return the same clients with other examples, made when a client is read.

        Args:
            preprocess: Takes the `(x, y)` of one client and returns the examples to use in their
                place. It must not look at other clients.

        Raises:
            TypeError: When a client is read, if `preprocess` returns no tuple `(x, y)`.
        """
        return _Derived(self, change=functools.partial(_preprocessed, preprocess))

    def subset(self, client_ids: Sequence[Any]) -> "ClientData":
        """Return some of the clients.

        Args:
            client_ids: The ids of the clients, each once.

        Raises:
            KeyError: If there is no client with one of the ids.
            ValueError: If an id occurs twice, or there is none.
        """
        return _Derived(self, [self._positions[client_id] for client_id in client_ids])

    def split(
        self, test_fraction: float, by: str = "client", seed: int | None = None
    ) -> tuple["ClientData", "ClientData"]:
        """Return clients to train on and clients to test on.

        Args:
            test_fraction: Float in (0, 1), the (expected) share that is for testing.
            by: `"client"` divides the clients at random: each falls into the test part with that
                probability, by its id and the seed alone, so that no client has a say in where
                another one goes. `"examples"` divides the examples of each
                client at random, at least one of which stays for training; all clients are in
                both parts then, and the test tells nothing of new clients.
            seed: The seed of the division; None draws one.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If an argument is out of range, or all clients fall into one part.

        Example:

        >>> import numpy as np
        >>> clients = ClientData.from_arrays(np.ones((40, 1)), None, np.arange(40) % 10)
        >>> train, test = clients.split(0.2, seed=1)
        >>> len(train), len(test), set(train.client_ids) & set(test.client_ids)
        (8, 2, set())
        """
        test_fraction = check_between_0_and_1("test_fraction", test_fraction)
        check_choice("by", by, ("client", "examples"))
        seed = secrets.randbits(64) if seed is None else check_integer("seed", seed)
        if by == "examples":
            change = functools.partial(_part_of, test_fraction, seed)
            train, test = (_Derived(self, change=functools.partial(change, n)) for n in (0, 1))
            return train, test
        draws = [sources.generator_of(each, seed, _OF_CLIENTS).random() for each in self.client_ids]
        is_test = np.array(draws) < test_fraction
        if np.all(is_test) or not np.any(is_test):
            raise ValueError(
                f"All {len(self):,} clients fell into one part. Choose another `seed` or "
                "`test_fraction`, or divide the examples of each client with `by='examples'`. "
                f"Received: test_fraction={test_fraction}, seed={seed}"
            )
        return _Derived(self, np.flatnonzero(~is_test)), _Derived(self, np.flatnonzero(is_test))

    @abc.abstractmethod
    def examples_at(self, position: int) -> tuple[Any, Any]:
        """Return the arrays `(x, y)` of one client, with None for `y` if there are no targets.

        Args:
            position: The position of the client in `client_ids`.
        """

    def num_examples_at(self, position: int) -> int:
        """Return the number of examples of one client.

        Args:
            position: The position of the client in `client_ids`.
        """
        return num_rows(self.examples_at(position))

    def all_examples(self) -> Examples:
        """Return the examples of all clients as arrays in memory, one client after the other."""
        return sources.joined(map(self.examples_at, range(len(self))))

    @functools.cached_property
    def _positions(self) -> dict[Any, int]:
        """The position of each id."""
        return {client_id: position for position, client_id in enumerate(self.client_ids)}

    def __len__(self) -> int:
        return len(self.client_ids)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.client_ids)

    def __getitem__(self, client_id: Any) -> tuple[Any, Any]:
        return self.examples_at(self._positions[client_id])

    def __repr__(self) -> str:
        return f"<ClientData with {len(self):,} clients>"

    def first_examples(self, num_examples: int = 3) -> Examples:
        """Return a few examples of the first clients that have any.

        Args:
            num_examples: The largest number of examples to return.

        Raises:
            ValueError: If no client has an example.
        """
        parts: list[Examples] = []
        for position in range(len(self)):
            part = copied(rows_of(self.examples_at(position), slice(num_examples)))
            num_examples -= num_rows(part)
            parts += [part] if num_rows(part) else []
            if num_examples <= 0:
                break
        if not parts:
            raise ValueError("No client has an example, so there is nothing to train on.")
        return sources.joined(parts)


def checked_clients(clients: Any) -> ClientData:
    """Return the argument, unless it is no `ClientData`.

    Raises:
        TypeError: If it is something else.
    """
    if not isinstance(clients, ClientData):
        raise TypeError(
            "Argument `clients` must be `keras_adaclip.federated.ClientData`, which says to which "
            "client each example belongs: `ClientData.from_arrays(x, y, client_ids)`. To protect "
            "single examples, train a `keras_adaclip.PrivateModel`. "
            f"Received: clients of type {type(clients).__name__}"
        )
    return clients


class _OfFunction(ClientData):
    """Clients that a function reads; see `ClientData.from_function`."""

    def __init__(self, client_ids: Iterable[Any], read: Any, num_examples: Any = None) -> None:
        self.client_ids, self._read = sources.distinct(client_ids), read
        self._num_examples = None
        if num_examples is not None:
            self._num_examples = [check_integer("num_examples", each) for each in num_examples]
            if len(self._num_examples) != len(self):
                raise ValueError(
                    "Argument `num_examples` must hold one number for each client. "
                    f"Received: {len(self._num_examples):,} numbers for {len(self):,} clients"
                )

    def num_examples_at(self, position: int) -> int:
        """Return the number of examples of one client."""
        if self._num_examples is None:
            return super().num_examples_at(position)
        return self._num_examples[position]

    def examples_at(self, position: int) -> Examples:
        """Return the arrays `(x, y)` of one client."""
        client_id = self.client_ids[position]
        with reading(f"Client {client_id!r}"):
            found = self._read(client_id)
            examples = copied(found if _is_pair(found) else (found, None))
        if self._num_examples is not None and num_rows(examples) != self._num_examples[position]:
            raise ValueError(
                f"Client {client_id!r} has another number of examples than `num_examples` says. "
                f"Expected: {self._num_examples[position]:,}. Received: {num_rows(examples):,}"
            )
        return examples


class _Derived(ClientData):
    """Some of other clients, or their examples changed.

    Args:
        clients: The other clients.
        positions: The positions of those that are kept; None keeps all.
        change: Takes the id of a client and its `(x, y)`, and returns those to use in their place;
            None leaves them.
    """

    def __init__(self, clients: ClientData, positions: Any = None, change: Any = None) -> None:
        self._clients, self._change = clients, change
        self._kept = range(len(clients)) if positions is None else positions
        self.client_ids = sources.distinct([clients.client_ids[each] for each in self._kept])

    def num_examples_at(self, position: int) -> int:
        """Return the number of examples of one client."""
        if self._change is not None:
            return super().num_examples_at(position)
        return self._clients.num_examples_at(self._kept[position])

    def examples_at(self, position: int) -> Examples:
        """Return the arrays `(x, y)` of one client."""
        x, y = self._clients.examples_at(self._kept[position])
        return (x, y) if self._change is None else self._change(self.client_ids[position], x, y)


def _rows_by_id(examples: Examples, rows: Mapping[Any, np.ndarray], client_id: Any) -> Examples:
    """Return the examples of a client among those of all."""
    return rows_of(examples, rows[client_id])


def _preprocessed(function: Any, client_id: Any, x: Any, y: Any) -> Examples:
    """Return what a function makes of the examples of a client; see `ClientData.map`."""
    found = function(x, y)
    if not _is_pair(found):
        raise TypeError(
            "The function must return the examples of a client as a tuple `(x, y)`. "
            f"Received: {type(found).__name__}"
        )
    return copied(found)


def _part_of(fraction: float, seed: int, number: int, client_id: Any, x: Any, y: Any) -> Examples:
    """Return the training part (0) or the test part (1) of a client; see `ClientData.split`.

    The examples are shuffled by the seed and by the id, so that no other client has a say in it.
    """
    order = sources.generator_of(client_id, seed, _OF_EXAMPLES).permutation(num_rows((x, y)))
    # At least one example stays for training.
    num_tests = min(round(fraction * len(order)), max(len(order) - 1, 0))
    return rows_of((x, y), np.sort((order[num_tests:], order[:num_tests])[number]))


def _is_pair(found: Any) -> bool:
    """Return whether a function has returned `(x, y)`."""
    return isinstance(found, tuple) and len(found) == 2
