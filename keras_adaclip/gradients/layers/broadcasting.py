"""The transpose of broadcasting: the gradient of a weight that was added to every row."""

from collections.abc import Sequence
from typing import Any

from keras import ops

Tensor = Any


def summed_to(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Sums over the axes along which a weight of this shape was broadcast.

    Args:
        values: tensor of shape `(batch_size, ...)`.
        shape: the weight's shape, which NumPy's rules broadcast to that of one example.

    Returns:
        A tensor of shape `(batch_size, *shape)`.
    """
    added = len(values.shape) - 1 - len(shape)
    axes = [
        *range(1, 1 + added),
        *(1 + added + axis for axis, size in enumerate(shape) if size == 1),
    ]
    summed = ops.sum(values, axis=tuple(axes)) if axes else values
    return ops.reshape(summed, (-1, *shape))
