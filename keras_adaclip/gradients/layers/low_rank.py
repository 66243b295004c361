"""Products with the two factors of LoRA, `W + s A B` with `s = lora_alpha / lora_rank`."""

from typing import Any

import keras
from keras import ops

Tensor = Any


def times(values: Tensor, factor: keras.Variable, layer: keras.layers.Layer) -> Tensor:
    """`s values A`, float32.

    Args:
        values: tensor of shape `(..., size)`.
        factor: of shape `(size, rank)`.
        layer: has the scale.
    """
    return scale_of(layer) * ops.matmul(ops.cast(values, "float32"), in_float32(factor))


def times_transposed(values: Tensor, factor: keras.Variable, layer: keras.layers.Layer) -> Tensor:
    """`s values B^T`, float32.

    Args:
        values: tensor of shape `(..., size)`.
        factor: of shape `(rank, size)`.
        layer: has the scale.
    """
    transposed = ops.transpose(in_float32(factor))
    return scale_of(layer) * ops.matmul(ops.cast(values, "float32"), transposed)


def scale_of(layer: keras.layers.Layer) -> float:
    """What the product of the factors is multiplied by."""
    return float(layer.lora_alpha) / float(layer.lora_rank)


def in_float32(factor: keras.Variable) -> Tensor:
    """The factor's value, as the cotangents are."""
    return ops.cast(factor.value, "float32")
