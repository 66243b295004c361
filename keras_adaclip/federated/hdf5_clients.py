"""Clients in an HDF5 file, in the layout of TensorFlow Federated's simulation data sets."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_adaclip.federated.client_data import ClientData
from keras_adaclip.sampling import as_array

_GROUP = "examples"


class Hdf5Clients(ClientData):
    """What `ClientData.from_hdf5` returns; the arguments are those.

    Only the clients' names are held in memory. The file is opened again in another process.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        x: Any,
        y: Any = None,
        preprocess: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    ) -> None:
        self._path = Path(path)
        self._features = (x, y)
        self._preprocess = preprocess
        self._file: Any = None
        self._process: int | None = None
        self._ids: list[str] = list(self._examples())
        if not self._ids:
            raise ValueError(f"There is no client under '{_GROUP}' in {self._path}.")
        self._positions = {client_id: number for number, client_id in enumerate(self._ids)}
        self.examples_at(0)

    @property
    def client_ids(self) -> Sequence[Any]:
        """The ids of all clients."""
        return self._ids

    def position_of(self, client_id: Any) -> int:
        """The number of a client; see `ClientData`."""
        if client_id not in self._positions:
            raise KeyError(
                f"There is no client {client_id!r} among the {len(self._ids):,} clients of "
                f"{self._path}, the first of which is {self._ids[0]!r}."
            )
        return self._positions[client_id]

    def num_examples_at(self, position: int) -> int:
        """How many examples a client has; see `ClientData`."""
        if self._preprocess is not None:
            x, _ = self.examples_at(position)
            return len(keras.tree.flatten(x)[0])
        name = keras.tree.flatten(self._features[0])[0]
        return int(self._feature(self._ids[position], name).shape[0])

    def examples_at(self, position: int) -> tuple[Any, Any]:
        """The examples of a client; see `ClientData`."""
        client_id = self._ids[position]

        def read(name: str) -> np.ndarray:
            values = self._feature(client_id, name)
            try:
                values = np.asarray(values)
            except OSError as error:
                raise ValueError(
                    f"Feature '{_GROUP}/{client_id}/{name}' of {self._path} cannot be read; the "
                    f"file may be truncated: {error}"
                ) from error
            return values if values.dtype == object else as_array(values)

        x, y = (
            None if part is None else keras.tree.map_structure(read, part)
            for part in self._features
        )
        if self._preprocess is not None:
            x, y = self._preprocess(x, y)
        x, y = (keras.tree.lists_to_tuples(part) for part in (x, y))
        return x, y

    def _feature(self, client_id: str, name: str) -> Any:
        of_client = self._examples()[client_id]
        if name not in of_client:
            raise ValueError(
                f"Client {client_id!r} in {self._path} has no feature {name!r}. "
                f"It has: {', '.join(map(repr, of_client))}"
            )
        return of_client[name]

    def _examples(self) -> Any:
        """The group of all clients, in a file that this process has opened."""
        import h5py

        if self._file is None or self._process != os.getpid():
            if not self._path.exists():
                raise FileNotFoundError(f"There is no file {self._path}.")
            try:
                self._file = h5py.File(self._path, "r")
            except OSError as error:
                raise ValueError(
                    f"{self._path} cannot be read as HDF5; it may be truncated: {error}"
                ) from error
            self._process = os.getpid()
        if _GROUP not in self._file:
            raise ValueError(
                f"{self._path} has no group '{_GROUP}', which holds the clients in the layout of "
                f"TensorFlow Federated. It has: {', '.join(map(repr, self._file)) or 'nothing'}"
            )
        return self._file[_GROUP]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}
