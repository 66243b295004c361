"""`ClientData`: the examples of many clients, from arrays or HDF5 files."""

import abc
import functools
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from keras_adaclip._checks import check_integer
from keras_adaclip.sampling import as_array, as_arrays, common_length, holds_strings

_GROUP = "examples"


class ClientData(abc.ABC):
    """The examples of many clients, read when they are needed.

    `ClientData.from_arrays`, `from_hdf5` and `from_function` make one. Indexing with the id of a
    client returns its examples, `(x, y)`; `len()` is the number of clients, which counts as public.

    Example:

    >>> import numpy as np
    >>> x, y = np.arange(5.0)[:, None], np.zeros(5)
    >>> clients = ClientData.from_arrays(x, y, client_ids=["ann", "bob", "ann", "ann", "bob"])
    >>> clients.client_ids, len(clients), clients["bob"][0].ravel().tolist()
    (['ann', 'bob'], 2, [1.0, 4.0])
    """

    @staticmethod
    def from_arrays(
        x: Any, y: Any, client_ids: Any, population: Sequence[Hashable] | None = None
    ) -> "ClientData":
        """Return clients whose examples are rows of arrays in memory, in the order of the rows.

        Args:
            x: An array, or a dict or tuple of arrays, of shape `(num_examples, ...)`. Arrays may
                hold strings on TensorFlow.
            y: Targets of the same length, or None.
            client_ids: The client of each example: integers or strings of shape `(num_examples,)`,
                a column of a frame, or what a function of `federated.partition` returns.
            population: The ids of all clients, including those without an example. None takes the
                ids that occur.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If lengths differ, or an id is missing in the population.
        """
        return _ArrayClients(x, y, client_ids, population)

    @staticmethod
    def from_hdf5(
        path: str | os.PathLike[str],
        x: Any,
        y: Any = None,
        preprocess: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    ) -> "ClientData":
        """Return the clients of a file in TensorFlow Federated's layout, read one at a time.

        Args:
            path: An HDF5 file with `examples/<client id>/<feature>`.
            x: The name of the input feature, or a dict or tuple of names.
            y: The name of the target, or a dict or tuple of names, or None.
            preprocess: Takes the `(x, y)` of one client and returns the examples to train on. It
                must not look at other clients.

        Raises:
            OSError: If the file does not exist or is no HDF5 file.
            ValueError: If the file has another layout, or lacks a feature.
        """
        return _Hdf5Clients(path, x, y, preprocess)

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
            TypeError: If `read` is not a function.
            ValueError: If there is no client, an id occurs twice, or the numbers of ids and of
                `num_examples` differ; while training, if a client has another number of examples.
            RuntimeError: If `read` fails, with the id of the client.
        """
        return _FunctionClients(client_ids, read, num_examples)

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
        x, _ = self.examples_at(position)
        return len(keras.tree.flatten(x)[0])

    @functools.cached_property
    def _positions(self) -> dict[Any, int]:
        """The position of each id."""
        return {client_id: position for position, client_id in enumerate(self.client_ids)}

    def __len__(self) -> int:
        return len(self.client_ids)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.client_ids)

    def __getitem__(self, client_id: Any) -> tuple[Any, Any]:
        if client_id not in self._positions:
            raise KeyError(
                f"There is no client {client_id!r} among the {len(self):,} clients, the first of "
                f"which is {self.client_ids[0]!r}."
            )
        return self.examples_at(self._positions[client_id])

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
            num_found = len(keras.tree.flatten(examples[0])[0])
            if num_found > 0:
                parts.append(_rows_of(examples, slice(missing)))
                missing -= num_found
        if not parts:
            raise ValueError("No client has an example, so there is nothing to train on.")
        return _joined(parts)

    def all_examples(self) -> tuple[Any, Any]:
        """Return the examples of all clients, one client after the other, as arrays in memory."""
        return _joined([self.examples_at(position) for position in range(len(self))])


class _ArrayClients(ClientData):
    """Clients whose examples are rows of arrays in memory; see `ClientData.from_arrays`."""

    def __init__(self, x: Any, y: Any, client_ids: Any, population: Any) -> None:
        ids = np.asarray(client_ids)
        if ids.dtype == object and holds_strings(ids):  # As a column of a frame holds them.
            ids = np.asarray(ids.tolist())
        if ids.ndim != 1 or ids.dtype.kind in "Of":
            raise TypeError(
                "Argument `client_ids` must be one integer or string for each example. "
                f"Received: an array of shape {ids.shape} and dtype {ids.dtype}"
            )
        self._examples = x, y = as_arrays((x, y))
        common_length({"x": x, "client_ids": ids} | ({} if y is None else {"y": y}))
        found, numbers = np.unique(ids, return_inverse=True)
        self._ids: list[Any] = found.tolist() if population is None else list(population)
        unknown = [client_id for client_id in found.tolist() if client_id not in self._positions]
        if unknown:
            raise ValueError(
                "Every id of `client_ids` must be in `population`. Received examples of "
                f"{len(unknown)} other clients, such as {unknown[0]!r}"
            )
        positions = np.array([self._positions[each] for each in found.tolist()])[numbers]
        ends = np.cumsum(np.bincount(positions, minlength=len(self._ids)))
        self._rows = np.split(np.argsort(positions, kind="stable"), ends[:-1])

    @property
    def client_ids(self) -> Sequence[Any]:
        """The ids of all clients."""
        return self._ids

    def num_examples_at(self, position: int) -> int:
        """Return the number of examples of one client."""
        return len(self._rows[position])

    def examples_at(self, position: int) -> tuple[Any, Any]:
        """Return the arrays `(x, y)` of one client."""
        return _rows_of(self._examples, self._rows[position])

    def all_examples(self) -> tuple[Any, Any]:
        """Return the arrays themselves, in the order in which they were given."""
        return self._examples


class _Hdf5Clients(ClientData):
    """Clients in an HDF5 file; see `ClientData.from_hdf5`.

    Memory holds the names of the clients alone. Another process opens the file again.
    """

    def __init__(self, path: Any, x: Any, y: Any, preprocess: Any) -> None:
        self._path = path
        self._features = (x, y)
        self._preprocess = preprocess
        self._file: Any = None
        self._process: int | None = None
        self._ids: list[str] = list(self._groups())
        if not self._ids:
            raise ValueError(f"There is no client under '{_GROUP}' in {self._path}.")
        self.examples_at(0)

    @property
    def client_ids(self) -> Sequence[Any]:
        """The ids of all clients."""
        return self._ids

    def examples_at(self, position: int) -> tuple[Any, Any]:
        """Read the arrays `(x, y)` of one client."""
        client_id = self._ids[position]
        features = self._groups()[client_id]

        def read(name: str) -> np.ndarray:
            """Return one feature of the client."""
            if name not in features:
                raise ValueError(
                    f"Client {client_id!r} in {self._path} has no feature {name!r}. "
                    f"It has: {', '.join(map(repr, features))}"
                )
            values = np.asarray(features[name])
            # Strings are for `preprocess`, on every backend.
            return values if values.dtype == object else as_array(values)

        x, y = _mapped(read, self._features)
        if self._preprocess is not None:
            x, y = self._preprocess(x, y)
        return keras.tree.lists_to_tuples(x), keras.tree.lists_to_tuples(y)

    def _groups(self) -> Any:
        """Return the group of all clients, in a file that this process has opened."""
        import h5py

        if self._file is None or self._process != os.getpid():
            self._file, self._process = h5py.File(self._path, "r"), os.getpid()
        if _GROUP not in self._file:
            raise ValueError(
                f"{self._path} has no group '{_GROUP}', which holds the clients in the layout of "
                f"TensorFlow Federated. It has: {', '.join(map(repr, self._file)) or 'nothing'}"
            )
        return self._file[_GROUP]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}


class _FunctionClients(ClientData):
    """Clients that a function reads; see `ClientData.from_function`."""

    def __init__(self, client_ids: Any, read: Any, num_examples: Any) -> None:
        if not callable(read):
            raise TypeError(
                "Argument `read` must be a function of the id of a client. "
                f"Received: read of type {type(read).__name__}"
            )
        self._ids, self._read = list(client_ids), read
        if not self._ids or len(set(self._ids)) < len(self._ids):
            raise ValueError(
                "Argument `client_ids` must hold at least one id, and each only once. "
                f"Received: {len(self._ids):,} ids, {len(set(self._ids)):,} different"
            )
        self._num_examples = None
        if num_examples is not None:
            self._num_examples = [check_integer("num_examples", each) for each in num_examples]
        if self._num_examples is not None and len(self._num_examples) != len(self._ids):
            raise ValueError(
                "Argument `num_examples` must hold one number for each client. "
                f"Received: {len(self._num_examples):,} numbers for {len(self._ids):,} clients"
            )

    @property
    def client_ids(self) -> Sequence[Any]:
        """The ids of all clients."""
        return self._ids

    def num_examples_at(self, position: int) -> int:
        """Return the number of examples of one client, which may have to be read."""
        if self._num_examples is None:
            return super().num_examples_at(position)
        return self._num_examples[position]

    def examples_at(self, position: int) -> tuple[Any, Any]:
        """Read the arrays `(x, y)` of one client."""
        client_id = self._ids[position]
        try:
            found = self._read(client_id)
            x, y = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
            x, y = _mapped(as_array, (keras.tree.lists_to_tuples(x), keras.tree.lists_to_tuples(y)))
        except Exception as error:
            raise RuntimeError(
                f"Client {client_id!r} could not be read: {type(error).__name__}: {error}"
            ) from error
        if self._num_examples is not None:
            count = common_length({"x": x} if y is None else {"x": x, "y": y})
            if count != self._num_examples[position]:
                raise ValueError(
                    f"Client {client_id!r} has another number of examples than `num_examples` "
                    f"says. Expected: {self._num_examples[position]:,}. Received: {count:,}"
                )
        return x, y


def _rows_of(examples: tuple[Any, Any], rows: Any) -> tuple[Any, Any]:
    """Return the given rows of each array."""
    return _mapped(lambda array: array[rows], examples)


def _joined(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the examples of several clients in one."""
    return _mapped(lambda *arrays: np.concatenate(arrays), *parts)


def _mapped(function: Callable[..., Any], *examples: tuple[Any, Any]) -> tuple[Any, Any]:
    """Return examples with `function` applied to corresponding arrays, None unchanged."""
    x, y = (
        None if parts[0] is None else keras.tree.map_structure(function, *parts)
        for parts in zip(*examples, strict=True)
    )
    return x, y
