"""`ClientData`: the examples of many clients, by client."""

import abc
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import keras
import numpy as np


class ClientData(abc.ABC):
    """The examples of many clients, read when they are needed.

    `ClientData.from_arrays` and `ClientData.from_hdf5` make one. Indexing takes a client's id and
    gives its examples, `(x, y)`; `len()` is the number of clients, which is taken to be public.

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
        """From arrays of the examples of all clients.

        Args:
            x: array, or dict or tuple of arrays, of shape `(num_examples, ...)`; on TensorFlow
                of strings too.
            y: targets of the same length, or None.
            client_ids: whose each example is: integers or strings of shape `(num_examples,)`, such
                as a function of `keras_adaclip.federated.partition` returns.
            population: the ids of all clients, those without an example among them; None takes
                the ids that occur.

        Raises:
            TypeError: where an argument is of the wrong type.
            ValueError: where lengths differ, or an id is not among the population.
        """
        from keras_adaclip.federated.array_clients import ArrayClients

        return ArrayClients(x, y, client_ids, population)

    @staticmethod
    def from_hdf5(
        path: str | os.PathLike[str],
        x: Any,
        y: Any = None,
        preprocess: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    ) -> "ClientData":
        """From a file in the layout of TensorFlow Federated's data sets, read client by client.

        Args:
            path: an HDF5 file with `examples/<client id>/<feature>`.
            x: the name of the feature that is the input, or a dict or tuple of names.
            y: the name of the target, or a dict or tuple of names, or None.
            preprocess: takes the `(x, y)` of one client and returns what training is to see; it
                must not look at other clients.

        Raises:
            FileNotFoundError: where there is no such file.
            ValueError: where the file is no such file, or lacks a feature.
        """
        from keras_adaclip.federated.hdf5_clients import Hdf5Clients

        return Hdf5Clients(path, x, y, preprocess)

    @property
    @abc.abstractmethod
    def client_ids(self) -> Sequence[Any]:
        """The ids of all clients."""

    @abc.abstractmethod
    def position_of(self, client_id: Any) -> int:
        """The number of a client in `client_ids`.

        Args:
            client_id: the client's id.

        Raises:
            KeyError: where there is no such client.
        """

    @abc.abstractmethod
    def examples_at(self, position: int) -> tuple[Any, Any]:
        """The examples of the client with a number: arrays `x` and `y`, or None for `y`.

        Args:
            position: the client's number, from 0.
        """

    @abc.abstractmethod
    def num_examples_at(self, position: int) -> int:
        """How many examples the client with a number has.

        Args:
            position: the client's number, from 0.
        """

    def __len__(self) -> int:
        return len(self.client_ids)

    def __getitem__(self, client_id: Any) -> tuple[Any, Any]:
        return self.examples_at(self.position_of(client_id))

    def __contains__(self, client_id: Any) -> bool:
        try:
            self.position_of(client_id)
        except KeyError:
            return False
        return True

    def __iter__(self) -> Iterator[Any]:
        return iter(self.client_ids)

    def first_examples(self, num_examples: int = 3) -> tuple[Any, Any]:
        """A few examples of the first clients that have some, for building a model.

        Args:
            num_examples: how many at most.

        Raises:
            ValueError: where no client has an example.
        """
        taken: list[tuple[Any, Any]] = []
        missing = num_examples
        for position in range(len(self)):
            size = min(self.num_examples_at(position), missing)
            if size > 0:
                taken.append(_rows_of(self.examples_at(position), size))
                missing -= size
            if missing == 0:
                break
        if not taken:
            raise ValueError("No client has an example, so there is nothing to train on.")
        return joined(taken)

    def all_examples(self) -> tuple[Any, Any]:
        """The examples of all clients, one client after the other, as arrays in memory."""
        return joined([self.examples_at(position) for position in range(len(self))])


def joined(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """The examples of several clients in one."""
    xs, ys = zip(*parts, strict=True)
    return _concatenated(xs), None if ys[0] is None else _concatenated(ys)


def _concatenated(parts: Sequence[Any]) -> Any:
    return keras.tree.map_structure(lambda *arrays: np.concatenate(arrays), *parts)


def _rows_of(examples: tuple[Any, Any], size: int) -> tuple[Any, Any]:
    x, y = (
        None if part is None else keras.tree.map_structure(lambda array: array[:size], part)
        for part in examples
    )
    return x, y
