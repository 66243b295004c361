"""`ClientData`: the examples of many clients, from what people have."""

import abc
import functools
import os
import secrets
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from keras_adaclip._checks import check_between_0_and_1, check_choice, check_integer
from keras_adaclip.federated import client_frames as frames
from keras_adaclip.federated import client_sources as sources
from keras_adaclip.federated import client_views as views

Preprocess = Callable[[Any, Any], tuple[Any, Any]]


class ClientData(abc.ABC):
    """The examples of many clients, read when they are needed.

    The functions that begin with `from_` make one: of a frame with a column of clients, of arrays,
    a dict, files or a function. Indexing with the id of a client returns its examples, `(x, y)`;
    `len()` is the number of clients, which counts as public.

    Example:

    >>> import numpy as np
    >>> x, y = np.arange(5.0)[:, None], np.zeros(5)
    >>> clients = ClientData.from_arrays(x, y, client_ids=["ann", "bob", "ann", "ann", "bob"])
    >>> clients.client_ids, len(clients), clients["bob"][0].ravel().tolist()
    (['ann', 'bob'], 2, [1.0, 4.0])
    """

    @staticmethod
    def from_dataframe(
        frame: Any,
        client: str,
        label: Any = None,
        features: Any = None,
        preprocess: Preprocess | None = None,
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
            preprocess: As for `map`.

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
        return _of(frames.of_frame(frame, client, label, features), preprocess)

    @staticmethod
    def from_arrays(
        x: Any,
        y: Any,
        client_ids: Any,
        population: Sequence[Hashable] | None = None,
        preprocess: Preprocess | None = None,
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
            preprocess: As for `map`.

        Raises:
            TypeError: If an argument is of the wrong type, or an example has no client.
            ValueError: If lengths differ, or an id is missing in the population.
        """
        return _of(sources.ArraySource(x, y, client_ids, population), preprocess)

    @staticmethod
    def from_dict(
        examples: Mapping[Any, Any], preprocess: Preprocess | None = None
    ) -> "ClientData":
        """Return clients whose examples are the values of a dict.

        Args:
            examples: For the id of each client its `(x, y)`, or `x` alone: arrays, or dicts or
                tuples of arrays, of shape `(num_examples, ...)`.
            preprocess: As for `map`.

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
        return _of(sources.FunctionSource(examples, examples.__getitem__), preprocess)

    @staticmethod
    def from_hdf5(
        path: str | os.PathLike[str], x: Any, y: Any = None, preprocess: Preprocess | None = None
    ) -> "ClientData":
        """Return the clients of a file in TensorFlow Federated's layout, read one at a time.

        Args:
            path: An HDF5 file with `examples/<client id>/<feature>`.
            x: The name of the input feature, or a dict or tuple of names.
            y: The name of the target, or a dict or tuple of names, or None.
            preprocess: As for `map`.

        Raises:
            OSError: If the file does not exist or is no HDF5 file.
            ValueError: If the file has another layout, or lacks a feature.
        """
        return _of(sources.Hdf5Source(path, x, y), preprocess)

    @staticmethod
    def from_function(
        client_ids: Sequence[Hashable],
        read: Callable[[Any], Any],
        num_examples: Sequence[int] | None = None,
        preprocess: Preprocess | None = None,
    ) -> "ClientData":
        """Return clients whose examples a function reads each time that they are needed.

        Args:
            client_ids: The ids of all clients, each once.
            read: Takes the id of a client and returns its examples: arrays, or dicts or tuples of
                arrays, of shape `(num_examples, ...)`. A tuple of two is `(x, y)`, anything else
                `x`. It must not look at other clients.
            num_examples: The number of examples of each client, in the order of the ids. None reads
                clients to count them, with `client_batch_size=None` all of them before training.
            preprocess: As for `map`.

        Raises:
            TypeError: If `read` is not a function.
            ValueError: If there is no client, an id occurs twice, or the numbers of ids and of
                `num_examples` differ; while training, if a client has another number of examples.
            RuntimeError: If `read` fails, with the id of the client.
        """
        return _of(sources.FunctionSource(client_ids, read, num_examples), preprocess)

    def map(self, preprocess: Preprocess) -> "ClientData":
        """Return the same clients with other examples, made when a client is read.

        Args:
            preprocess: Takes the `(x, y)` of one client and returns the examples to use in their
                place. It must not look at other clients.

        Raises:
            TypeError: If `preprocess` is not a function.
        """
        return _Clients(views.Mapped(self, preprocess))

    def subset(self, client_ids: Sequence[Any]) -> "ClientData":
        """Return some of the clients.

        Args:
            client_ids: The ids of the clients, each once.

        Raises:
            KeyError: If there is no client with one of the ids.
            ValueError: If an id occurs twice, or there is none.
        """
        positions = list(map(self._position, client_ids))
        if not positions or len(set(positions)) < len(positions):
            raise ValueError(
                "Argument `client_ids` must hold at least one id, and each only once. "
                f"Received: {len(positions):,} ids, {len(set(positions)):,} different"
            )
        return _Clients(views.Subset(self, positions))

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
            return (
                _Clients(views.Part(self, test_fraction, seed, is_test=False)),
                _Clients(views.Part(self, test_fraction, seed, is_test=True)),
            )
        train, test = views.divided(self, test_fraction, seed)
        if not train or not test:
            raise ValueError(
                f"All {len(self):,} clients fell into one part. Choose another `seed` or "
                "`test_fraction`, or divide the examples of each client with `by='examples'`. "
                f"Received: test_fraction={test_fraction}, seed={seed}"
            )
        return _Clients(views.Subset(self, train)), _Clients(views.Subset(self, test))

    @property
    @abc.abstractmethod
    def client_ids(self) -> Sequence[Any]:
        """The ids of all clients."""

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
        return sources.num_rows(self.examples_at(position))

    @functools.cached_property
    def _positions(self) -> dict[Any, int]:
        """The position of each id."""
        return {client_id: position for position, client_id in enumerate(self.client_ids)}

    def __len__(self) -> int:
        return len(self.client_ids)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.client_ids)

    def __getitem__(self, client_id: Any) -> tuple[Any, Any]:
        return self.examples_at(self._position(client_id))

    def _position(self, client_id: Any) -> int:
        """Return the position of a client."""
        if client_id not in self._positions:
            raise KeyError(
                f"There is no client {client_id!r} among the {len(self):,} clients, the first of "
                f"which is {self.client_ids[0]!r}."
            )
        return self._positions[client_id]

    def __repr__(self) -> str:
        return f"<ClientData with {len(self):,} clients>"

    def first_examples(self, num_examples: int = 3) -> tuple[Any, Any]:
        """Return a few examples of the first clients that have any.

        Args:
            num_examples: The largest number of examples to return.

        Raises:
            ValueError: If no client has an example.
        """
        parts, missing = [], num_examples
        for position in range(len(self)):
            if missing <= 0:
                break
            examples = self.examples_at(position)
            num_found = sources.num_rows(examples)
            if num_found > 0:
                parts.append(sources.copied(sources.rows_of(examples, slice(missing))))
                missing -= num_found
        if not parts:
            raise ValueError("No client has an example, so there is nothing to train on.")
        return sources.joined(parts)

    def all_examples(self) -> tuple[Any, Any]:
        """Return the examples of all clients, one client after the other, as arrays in memory."""
        return sources.joined(map(self.examples_at, range(len(self))))


class _Clients(ClientData):
    """The clients of a source."""

    def __init__(self, source: sources.Source) -> None:
        self._source = source

    @property
    def client_ids(self) -> Sequence[Any]:
        """The ids of all clients."""
        return self._source.client_ids

    def examples_at(self, position: int) -> tuple[Any, Any]:
        """Return the arrays `(x, y)` of one client."""
        return self._source.examples_at(position)

    def num_examples_at(self, position: int) -> int:
        """Return the number of examples of one client."""
        return self._source.num_examples_at(position)

    def all_examples(self) -> tuple[Any, Any]:
        """Return the examples of all clients as arrays in memory."""
        return self._source.all_examples()


def _of(source: sources.Source, preprocess: Preprocess | None) -> ClientData:
    """Return the clients of a source, preprocessed."""
    clients = _Clients(source)
    return clients if preprocess is None else clients.map(preprocess)
