"""A cohort of clients as the step sees it: padded data, and which rows make up each local batch."""

from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients import Batch

Tensor = Any


@dataclass(frozen=True)
class LocalBatch:
    """One batch of each client.

    Args:
        x: inputs, tensors of shape `(num_clients, batch_size, ...)`.
        y: targets, tensors of shape `(num_clients, batch_size, ...)`, or None.
        present: bool of shape `(num_clients, batch_size)`, false where a row holds no example.
    """

    x: Any
    y: Any
    present: Tensor

    @property
    def leaves(self) -> list[Tensor]:
        """All tensors, which `packed` takes apart again."""
        flat = keras.tree.flatten((self.x, self.y, self.present))
        return [value for value in flat if value is not None]

    def packed(self, leaves: list[Tensor]) -> tuple[Any, Any, Tensor]:
        """Inputs, targets and `present` of one client, from its part of the leaves."""
        x, y, present = _packed((self.x, self.y, self.present), leaves)
        return x, y, present


@dataclass(frozen=True)
class ClientBatch:
    """Clients, each with its examples and the batches that it will take.

    Args:
        x: inputs, tensors of shape `(num_clients, num_rows, ...)`.
        y: targets, tensors of shape `(num_clients, num_rows, ...)`, or None.
        order: int32 of shape `(num_clients, num_steps, batch_size)`, the rows of each local batch,
            -1 where there is none.
        num_steps: int32 of shape `(num_clients,)`, the local steps of each client.
        weight: float32 of shape `(num_clients,)`, from 0 to 1, how much each client counts.
    """

    x: Any
    y: Any
    order: Tensor
    num_steps: Tensor
    weight: Tensor

    @classmethod
    def from_units(cls, units: Batch) -> "ClientBatch":
        """From a batch of units, as `units_from_data` makes it."""
        x, order, num_steps, weight = units.x
        return cls(x, units.y, order, num_steps, weight)

    @property
    def leaves(self) -> list[Tensor]:
        """All tensors, which `with_leaves` takes apart again."""
        return [each for each in keras.tree.flatten(self._structure) if each is not None]

    def with_leaves(self, leaves: list[Tensor]) -> "ClientBatch":
        """Other clients of the same structure, from their leaves."""
        return ClientBatch(*_packed(self._structure, leaves))

    @property
    def _structure(self) -> tuple[Any, ...]:
        return self.x, self.y, self.order, self.num_steps, self.weight

    @property
    def num_clients(self) -> Any:
        """Number of clients, padding included."""
        return ops.shape(self.order)[0]

    @property
    def most_steps(self) -> Tensor:
        """The largest number of local steps."""
        return ops.max(self.num_steps)

    def local_batch(self, number: Tensor) -> LocalBatch:
        """The batches of local step `number`."""
        num_clients, _, batch_size = ops.shape(self.order)
        rows = ops.reshape(ops.take(self.order, number, axis=1), (num_clients, batch_size))
        is_active = ops.expand_dims(number < self.num_steps, 1)
        present = ops.logical_and(rows >= 0, is_active)
        rows = ops.maximum(rows, 0)

        def take(value: Tensor) -> Tensor:
            num_rows, *shape = ops.shape(value)[1:]
            places = rows + ops.expand_dims(ops.arange(num_clients, dtype="int32"), 1) * num_rows
            return ops.take(ops.reshape(value, (num_clients * num_rows, *shape)), places, axis=0)

        x, y = (
            None if part is None else keras.tree.map_structure(take, part)
            for part in (self.x, self.y)
        )
        return LocalBatch(x, y, present)


def units_from_data(data: dict[str, Any]) -> Batch:
    """A cohort as a batch of units, from what Keras hands to `train_step`.

    Args:
        data: a batch of `CohortBatches`.
    """
    units = (data["x"], data["order"], data["num_steps"], data["weight"])
    return Batch(units, data.get("y"), None, ops.cast(data["mask"], "bool"))


def _packed(structure: Any, leaves: list[Tensor]) -> Any:
    """The structure with other tensors, None where it has none."""
    remaining = iter(leaves)
    flat = [None if value is None else next(remaining) for value in keras.tree.flatten(structure)]
    return keras.tree.pack_sequence_as(structure, flat)
