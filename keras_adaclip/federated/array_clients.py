"""Clients whose examples are rows of arrays in memory."""

from collections.abc import Hashable, Sequence
from typing import Any

import keras
import numpy as np

from keras_adaclip.federated.client_data import ClientData
from keras_adaclip.sampling import as_array, common_length


class ArrayClients(ClientData):
    """What `ClientData.from_arrays` returns; the arguments are those.

    The rows of a client keep the order that they have in the arrays, which are not copied.
    """

    def __init__(
        self, x: Any, y: Any, client_ids: Any, population: Sequence[Hashable] | None = None
    ) -> None:
        parts = {
            name: keras.tree.lists_to_tuples(keras.tree.map_structure(as_array, part))
            for name, part in (("x", x), ("y", y))
            if part is not None
        }
        ids = np.asarray(client_ids)
        if ids.ndim != 1 or ids.dtype == object or ids.dtype.kind == "f":
            raise TypeError(
                "Argument `client_ids` must be one integer or string for each example. "
                f"Received: an array of shape {ids.shape} and dtype {ids.dtype}"
            )
        num_examples = common_length({**parts, "client_ids": ids})
        self._x, self._y = parts["x"], parts.get("y")
        found, numbers = np.unique(ids, return_inverse=True)
        if population is None:
            self._ids: list[Any] = found.tolist()
        else:
            self._ids = list(population)
        self._positions = {client_id: number for number, client_id in enumerate(self._ids)}
        if len(self._positions) != len(self._ids):
            raise ValueError("Argument `population` must name no client twice.")
        unknown = [client_id for client_id in found.tolist() if client_id not in self._positions]
        if unknown:
            raise ValueError(
                "Every id of `client_ids` must be in `population`. Received examples of "
                f"{len(unknown)} other clients, such as {unknown[0]!r}"
            )
        positions = np.array([self._positions[each] for each in found.tolist()])[numbers]
        self._rows = np.argsort(positions, kind="stable")
        counts = np.bincount(positions, minlength=len(self._ids))
        self._ends = np.cumsum(counts)
        assert self._ends[-1] == num_examples

    @property
    def client_ids(self) -> Sequence[Any]:
        """The ids of all clients."""
        return self._ids

    def position_of(self, client_id: Any) -> int:
        """The number of a client; see `ClientData`."""
        try:
            return self._positions[client_id]
        except (KeyError, TypeError):
            raise KeyError(
                f"There is no client {client_id!r} among the {len(self._ids):,} clients, the first "
                f"of which is {self._ids[0]!r}."
            ) from None

    def num_examples_at(self, position: int) -> int:
        """How many examples a client has; see `ClientData`."""
        return len(self._rows_at(position))

    def examples_at(self, position: int) -> tuple[Any, Any]:
        """The examples of a client; see `ClientData`."""
        rows = self._rows_at(position)
        x, y = (
            None if part is None else keras.tree.map_structure(lambda array: array[rows], part)
            for part in (self._x, self._y)
        )
        return x, y

    def all_examples(self) -> tuple[Any, Any]:
        """The arrays themselves, in the order in which they were given."""
        return self._x, self._y

    def _rows_at(self, position: int) -> np.ndarray:
        begin = self._ends[position - 1] if position > 0 else 0
        return self._rows[begin : self._ends[position]]
