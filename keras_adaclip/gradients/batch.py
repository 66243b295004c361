"""One batch of units as the gradient code sees it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend

Tensor = Any


@dataclass(frozen=True)
class Batch:
    """Inputs, targets, weights, and a mask that says which rows hold a unit.

    Args:
        x: inputs, tensors of shape `(batch_size, ...)`.
        y: targets, tensors of shape `(batch_size, ...)`, or None.
        sample_weight: None or tensors of shape `(batch_size, ...)`; a weight of 0 is a unit.
        mask: bool tensor of shape `(batch_size,)`, false for padding; None where every row is a
            unit.
        num_copies: how many rows of inputs, targets and weights each unit has, next to each other
            (augmented copies of one example); their first axis is that many times as long.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None
    mask: Tensor | None = None
    num_copies: int = 1

    @classmethod
    def from_data(cls, data: Any) -> "Batch":
        """From what Keras hands to `train_step`: a tuple, or a dict made by our own sampling.

        Args:
            data: what `train_step` got.
        """
        if isinstance(data, dict) and "mask" in data and "x" in data:
            return cls(
                data["x"], data.get("y"), data.get("sample_weight"), ops.cast(data["mask"], "bool")
            )
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        return cls(x, y, sample_weight)

    @property
    def num_rows(self) -> Any:
        """Number of units, padding included: an int where the shape is static, else a tensor."""
        return ops.shape(keras.tree.flatten(self.x)[0])[0] // self.num_copies

    @property
    def present(self) -> Tensor:
        """The mask, of shape `(batch_size,)`, also where `mask` is None."""
        return ops.ones((self.num_rows,), dtype="bool") if self.mask is None else self.mask

    def rows(self, start: Any, size: int) -> "Batch":
        """`size` units from `start` on; there must be that many.

        Args:
            start: number of the first unit, a scalar tensor or an int.
            size: how many.
        """

        def take(value: Tensor, copies: int = self.num_copies) -> Tensor:
            starts = [start * copies, *[0] * (len(value.shape) - 1)]
            return ops.slice(value, starts, (size * copies, *ops.shape(value)[1:]))

        mask = None if self.mask is None else take(self.mask, 1)
        return self._map(take, mask, self.num_copies)

    def copied(self, num_copies: int) -> "Batch":
        """Each unit's row `num_copies` times.

        Args:
            num_copies: how often each row comes.
        """

        def copies(value: Tensor) -> Tensor:
            return ops.repeat(value, num_copies, axis=0)

        return self._map(copies, self.mask, num_copies)

    def padded_to_multiple(self, size: int) -> "Batch":
        """The batch with rows of zeros, masked out, up to a multiple of `size`.

        Args:
            size: what the number of rows is to be a multiple of.
        """
        missing = -self.num_rows % size
        if isinstance(missing, int) and missing == 0:
            return (
                self
                if self.mask is not None
                else Batch(self.x, self.y, self.sample_weight, self.present)
            )

        def pad(value: Tensor) -> Tensor:
            filler = ops.zeros((missing, *ops.shape(value)[1:]), value.dtype)
            return ops.concatenate([value, filler], axis=0)

        return self._map(pad, pad(self.present))

    def in_shards(self, num_shards: int) -> "Batch":
        """The batch with an axis of shards after that of the rows, which are then rows of each.

        Rows of all shards are cut out together then, and none leaves its device.

        Args:
            num_shards: how many equal parts of the units lie on devices of their own, one after
                another.

        Returns:
            A batch of tensors of shape `(batch_size / num_shards, num_shards, ...)`.
        """

        def divided(value: Tensor) -> Tensor:
            size, *rest = ops.shape(value)
            parts = ops.reshape(value, (num_shards, size // num_shards, *rest))
            return ops.swapaxes(parts, 0, 1)

        return self._map(divided, divided(self.present))

    def out_of_shards(self) -> "Batch":
        """What `in_shards` made from a batch, or rows of it, as a batch of units again."""

        def joined(value: Tensor) -> Tensor:
            size, num_shards, *rest = ops.shape(value)
            parts = ops.swapaxes(value, 0, 1)
            return backend.on_all_shards(ops.reshape(parts, (num_shards * size, *rest)))

        return self._map(joined, joined(self.mask))

    def _map(self, function: Any, mask: Tensor | None, num_copies: int = 1) -> "Batch":
        def apply(part: Any) -> Any:
            if part is None:
                return None
            return keras.tree.map_structure(lambda v: None if v is None else function(v), part)

        x, y, sample_weight = (apply(part) for part in (self.x, self.y, self.sample_weight))
        return Batch(x, y, sample_weight, mask, num_copies)


def finite_rows(rows: Batch) -> Batch:
    """The rows as tensors, with zeros where a number is not finite.

    Args:
        rows: a batch of NumPy arrays or tensors.
    """

    def clean(value: Any) -> Tensor:
        value = ops.convert_to_numpy(value)
        if value.dtype.kind == "f":
            value = np.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
        return ops.convert_to_tensor(value)

    return Batch(*(mapped(clean, part) for part in (rows.x, rows.y, rows.sample_weight)))


def repeated(rows: Batch, size: int) -> Batch:
    """A batch of `size` rows, the given ones over and over.

    Args:
        rows: the batch to repeat, of one row or more.
        size: number of rows of the result.
    """

    def take(value: Tensor) -> Tensor:
        indices = np.arange(size) % value.shape[0]
        return ops.take(value, indices, axis=0)

    return Batch(*(mapped(take, part) for part in (rows.x, rows.y, rows.sample_weight)))


def mapped(function: Callable[[Any], Tensor], part: Any) -> Any:
    """Applies a function to every array of a part of a batch that may be None."""
    return None if part is None else keras.tree.map_structure(function, part)
