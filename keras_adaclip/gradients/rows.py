"""A few rows of the data, for building, examining and comparing."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip.gradients.batch import Batch

Tensor = Any


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
