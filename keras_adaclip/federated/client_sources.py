"""Where the examples of clients come from: arrays, HDF5 files, or a function.

A source has `client_ids`, `examples_at`, `num_examples_at` and `all_examples`, as `ClientData`
does.
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from keras_adaclip._checks import check_integer
from keras_adaclip.federated.client_ids import numbered
from keras_adaclip.sampling import as_array, as_arrays, common_length

_GROUP = "examples"
Examples = tuple[Any, Any]


class Source:
    """Base class of the sources.

    Attributes:
        client_ids: The ids of all clients.
    """

    client_ids: list[Any]

    def examples_at(self, position: int) -> Examples:
        """Return the arrays `(x, y)` of one client."""
        raise NotImplementedError

    def num_examples_at(self, position: int) -> int:
        """Return the number of examples of one client."""
        return num_rows(self.examples_at(position))

    def all_examples(self) -> Examples:
        """Return the examples of all clients, one client after the other."""
        return joined(map(self.examples_at, range(len(self.client_ids))))


class ArraySource(Source):
    """Clients whose examples are rows of arrays in memory; see `ClientData.from_arrays`."""

    def __init__(self, x: Any, y: Any, client_ids: Any, population: Any = None) -> None:
        found, numbers = numbered(client_ids)
        self._examples = x, y = as_arrays((x, y))
        common_length({"x": x, "client_ids": numbers} | ({} if y is None else {"y": y}))
        self.client_ids = found if population is None else list(population)
        positions = {client_id: position for position, client_id in enumerate(self.client_ids)}
        unknown = [client_id for client_id in found if client_id not in positions]
        if unknown:
            raise ValueError(
                "Every id of `client_ids` must be in `population`. Received examples of "
                f"{len(unknown)} other clients, such as {unknown[0]!r}"
            )
        places = np.array([positions[each] for each in found])[numbers]
        ends = np.cumsum(np.bincount(places, minlength=len(self.client_ids)))
        self._rows = np.split(np.argsort(places, kind="stable"), ends[:-1])

    def num_examples_at(self, position: int) -> int:
        """Return the number of examples of one client."""
        return len(self._rows[position])

    def examples_at(self, position: int) -> Examples:
        """Return the arrays `(x, y)` of one client."""
        return rows_of(self._examples, self._rows[position])

    def all_examples(self) -> Examples:
        """Return the arrays themselves, in the order in which they were given."""
        return self._examples


class Hdf5Source(Source):
    """Clients in an HDF5 file; see `ClientData.from_hdf5`.

    Memory holds the names of the clients alone. Another process opens the file again.
    """

    def __init__(self, path: Any, x: Any, y: Any) -> None:
        self._path = path
        self._features = (x, y)
        self._file: Any = None
        self._process: int | None = None
        self.client_ids = list(self._groups())
        if not self.client_ids:
            raise ValueError(f"There is no client under '{_GROUP}' in {self._path}.")
        self.examples_at(0)

    def examples_at(self, position: int) -> Examples:
        """Read the arrays `(x, y)` of one client."""
        client_id = self.client_ids[position]
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

        return mapped(read, self._features)

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


class FunctionSource(Source):
    """Clients that a function reads; see `ClientData.from_function`."""

    def __init__(self, client_ids: Iterable[Any], read: Any, num_examples: Any = None) -> None:
        if not callable(read):
            raise TypeError(
                "Argument `read` must be a function of the id of a client. "
                f"Received: read of type {type(read).__name__}"
            )
        self.client_ids, self._read = list(client_ids), read
        num_clients, num_ids = len(self.client_ids), len(set(self.client_ids))
        if not num_clients or num_ids < num_clients:
            raise ValueError(
                "Argument `client_ids` must hold at least one id, and each only once. "
                f"Received: {num_clients:,} ids, {num_ids:,} different"
            )
        self._num_examples = None
        if num_examples is not None:
            self._num_examples = [check_integer("num_examples", each) for each in num_examples]
        if self._num_examples is not None and len(self._num_examples) != num_clients:
            raise ValueError(
                "Argument `num_examples` must hold one number for each client. "
                f"Received: {len(self._num_examples):,} numbers for {num_clients:,} clients"
            )

    def num_examples_at(self, position: int) -> int:
        """Return the number of examples of one client, which may have to be read."""
        if self._num_examples is None:
            return super().num_examples_at(position)
        return self._num_examples[position]

    def examples_at(self, position: int) -> Examples:
        """Read the arrays `(x, y)` of one client."""
        client_id = self.client_ids[position]
        try:
            found = self._read(client_id)
            x, y = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
            x, y = copied((keras.tree.lists_to_tuples(x), keras.tree.lists_to_tuples(y)))
        except Exception as error:
            raise RuntimeError(
                f"Client {client_id!r} could not be read: {type(error).__name__}: {error}"
            ) from error
        if self._num_examples is not None:
            # A client may have no examples.
            count = num_rows((x, y)) and common_length({"x": x} if y is None else {"x": x, "y": y})
            if count != self._num_examples[position]:
                raise ValueError(
                    f"Client {client_id!r} has another number of examples than `num_examples` "
                    f"says. Expected: {self._num_examples[position]:,}. Received: {count:,}"
                )
        return x, y


def num_rows(examples: Examples) -> int:
    """Return the number of examples of a client."""
    return len(keras.tree.flatten(examples[0])[0])


def rows_of(examples: Examples, rows: Any) -> Examples:
    """Return the given rows of each array."""
    return mapped(lambda array: array[rows], examples)


def joined(parts: Iterable[Examples]) -> Examples:
    """Return the examples of several clients in one."""
    return mapped(lambda *arrays: np.concatenate(arrays), *map(copied, parts))


def mapped(function: Callable[..., Any], *examples: Examples) -> Examples:
    """Return examples with `function` applied to corresponding arrays, None unchanged."""
    x, y = (
        None if parts[0] is None else keras.tree.map_structure(function, *parts)
        for parts in zip(*examples, strict=True)
    )
    return x, y


def copied(examples: Examples) -> Examples:
    """Return copies, since the user's code may fill the same arrays for the next client."""
    return mapped(lambda value: np.array(as_array(value)), examples)
