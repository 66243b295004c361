"""One batch of units."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend

Tensor = Any


@dataclass(frozen=True)
class Batch:
    """Inputs, targets, weights, and a mask of the rows that hold a unit.

    Args:
        x: Inputs, tensors of shape `(batch_size, ...)`. One without columns stands for None, among
            targets and weights too.
        y: Targets, tensors of shape `(batch_size, ...)`, or None.
        sample_weight: None or tensors of shape `(batch_size, ...)`. A weight of 0 is a unit.
        mask: Bool tensor of shape `(batch_size,)`, false for padding. None means that every row
            is a unit.
        num_copies: The number of consecutive rows of inputs, targets and weights that each unit
            has (augmented copies of one example). Their first axis is that many times as long.
    """

    x: Any
    y: Any = None
    sample_weight: Any = None
    mask: Tensor | None = None
    num_copies: int = 1

    def __post_init__(self) -> None:
        for name in ("x", "y", "sample_weight"):
            object.__setattr__(self, name, mapped(_present, getattr(self, name)))

    @classmethod
    def from_data(cls, data: Any, is_drawn: bool) -> "Batch":
        """Return the batch for an argument of `train_step`.

        Args:
            data: A tuple that Keras made, or a dict.
            is_drawn: Whether this package's sampling made it. A user's dict are inputs, which may
                have the same names.
        """
        if is_drawn and isinstance(data, dict):
            mask = ops.cast(data["mask"], "bool")
            return cls(data["x"], data.get("y"), data.get("sample_weight"), mask)
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        return cls(x, y, sample_weight)

    @property
    def num_rows(self) -> Any:
        """Number of units with padding: an int if the shape is static, else a tensor."""
        first = next(value for value in keras.tree.flatten(self.x) if value is not None)
        return ops.shape(first)[0] // self.num_copies

    @property
    def present(self) -> Tensor:
        """The mask, of shape `(batch_size,)`, also if `mask` is None."""
        return ops.ones((self.num_rows,), dtype="bool") if self.mask is None else self.mask

    def rows(self, start: Any, size: int) -> "Batch":
        """Return `size` consecutive units, which must exist.

        Args:
            start: The index of the first unit, a scalar tensor or an int.
            size: The number of units.
        """

        def take(value: Tensor, copies: int = self.num_copies) -> Tensor:
            """Return the rows of these units."""
            starts = [start * copies, *[0] * (len(value.shape) - 1)]
            return ops.slice(value, starts, (size * copies, *ops.shape(value)[1:]))

        mask = None if self.mask is None else take(self.mask, 1)
        return self.map_rows(take, mask, self.num_copies)

    def padded_to_multiple(self, size: int) -> "Batch":
        """Return the batch padded with masked units of zeros.

        Args:
            size: The number of units becomes a multiple of this.
        """
        missing = -self.num_rows % size
        if isinstance(missing, int) and missing == 0:
            return self.map_rows(lambda value: value, self.present, self.num_copies)

        def pad(value: Tensor, copies: int = self.num_copies) -> Tensor:
            """Append the missing rows."""
            filler = ops.zeros((missing * copies, *ops.shape(value)[1:]), value.dtype)
            return ops.concatenate([value, filler], axis=0)

        return self.map_rows(pad, pad(self.present, 1), self.num_copies)

    def without_missing_targets(self, handled: Sequence[bool] = ()) -> "Batch":
        """Return the batch with rows as padding whose targets are not finite.

        As an integer, NaN is 0 on one backend and an error on another.

        Args:
            handled: By target, whether the loss has a use of its own for such numbers; where
                nothing is said, it has none.
        """
        axes = 1 if self.mask is None else len(self.mask.shape)
        present, targets = self.mask, keras.tree.flatten(self.y)
        for number, value in enumerate(targets):
            is_handled = number < len(handled) and handled[number]
            if value is None or is_handled or not keras.backend.is_float_dtype(value.dtype):
                continue
            finite = ops.isfinite(value)
            targets[number] = ops.where(finite, value, ops.zeros_like(value))
            of_rows = ops.all(finite, axis=tuple(range(axes, len(value.shape))))
            present = of_rows if present is None else ops.logical_and(present, of_rows)
        return replace(self, y=keras.tree.pack_sequence_as(self.y, targets), mask=present)

    def in_shards(self, num_shards: int) -> "Batch":
        """Return the batch with an axis of shards after the axis of rows.

        Rows of all shards can then be sliced together, and none leaves its device.

        Args:
            num_shards: The number of equal, consecutive parts of the units, each on a device of
                its own.

        Returns:
            A batch of tensors of shape `(batch_size / num_shards, num_shards, ...)`.
        """

        def divided(value: Tensor) -> Tensor:
            """Move the shards to the second axis."""
            size, *rest = ops.shape(value)
            parts = ops.reshape(value, (num_shards, size // num_shards, *rest))
            return ops.swapaxes(parts, 0, 1)

        return self.map_rows(divided, divided(self.present))

    def out_of_shards(self) -> "Batch":
        """Return the units of a batch that `in_shards` made, or of some of its rows."""

        def joined(value: Tensor) -> Tensor:
            """Move the shards back to the first axis."""
            size, num_shards, *rest = ops.shape(value)
            parts = ops.swapaxes(value, 0, 1)
            return backend.on_all_shards(ops.reshape(parts, (num_shards * size, *rest)))

        return self.map_rows(joined, joined(self.mask))

    def map_rows(
        self, function: Callable[[Tensor], Tensor], mask: Tensor | None, num_copies: int = 1
    ) -> "Batch":
        """Return a batch with `function` applied to inputs, targets and weights.

        Args:
            function: Takes and returns a tensor of rows.
            mask: The mask of the result.
            num_copies: The number of rows that each unit of the result has.
        """
        x, y, sample_weight = (mapped(function, v) for v in (self.x, self.y, self.sample_weight))
        return Batch(x, y, sample_weight, mask, num_copies)


def finite_rows(rows: Batch, size: int | None = None) -> Batch:
    """Return the rows as tensors, with zeros in place of numbers that are not finite.

    Args:
        rows: A batch of NumPy arrays or tensors.
        size: Number of rows of the result, which repeats the given ones; None for these.
    """

    def clean(value: Any) -> Tensor:
        """Return a tensor of finite numbers."""
        value = ops.convert_to_numpy(value)
        if size is not None:  # With NumPy: JAX would compile this for each shape.
            value = value[np.arange(size) % len(value)]
        if value.dtype.kind == "f":
            value = np.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
        return ops.convert_to_tensor(value)

    return rows.map_rows(clean, None)


def _present(value: Any) -> Any:
    """Return an array, or None for one without columns, which stands for an absent one."""
    return None if value.shape[1:] == (0,) else value


def mapped(function: Callable[[Any], Tensor], part: Any) -> Any:
    """Return a part of a batch with `function` applied to every array, None unchanged."""
    if part is None:
        return None
    return keras.tree.map_structure(lambda v: None if v is None else function(v), part)
