"""Layer and group normalization: `y = gamma * normalized(x) + beta`.

`normalized(x)` is the layer itself with gamma one and beta zero, so the layer's own forward code
defines it.
"""

from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.forms import Materialized
from keras_adaclip.gradients.layers.rule import Gradients, LayerRule, TappedCall, register

Tensor = Any


@register(keras.layers.LayerNormalization)
@register(keras.layers.GroupNormalization)
class NormalizationRule(LayerRule):
    """Gamma: cotangent times normalized input. Beta: cotangent. Summed over the other axes."""

    def gradients(self, call: TappedCall, variables: list[keras.Variable]) -> Gradients:
        """Return the gradients of scale and offset, if the layer has them."""
        layer: Any = call.layer
        cotangents = ops.cast(call.cotangents[0], "float32")
        return [
            Materialized(
                _sum_to_axes(
                    cotangents if variable is layer.beta else cotangents * _normalized(call),
                    layer,
                    variable.shape,
                )
            )
            for variable in variables
        ]


def _normalized(call: TappedCall) -> Tensor:
    """Return the layer's output with scale one and offset zero, in float32."""
    layer: Any = call.layer
    neutral = [
        (variable, ops.full(variable.shape, value, variable.dtype))
        for variable, value in ((layer.gamma, 1.0), (layer.beta, 0.0))
        if variable is not None
    ]
    with keras.StatelessScope(neutral):
        normalize = backend.fast_call(layer, in_loop=False) or layer
        return ops.cast(normalize(*call.args, **call.kwargs), "float32")


def _sum_to_axes(value: Tensor, layer: Any, shape: Any) -> Tensor:
    """Return `value` summed over every axis that is neither the batch nor in `layer.axis`."""
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else (layer.axis,)
    kept = {axis % len(value.shape) for axis in axes}
    others = tuple(axis for axis in range(1, len(value.shape)) if axis not in kept)
    summed = ops.sum(value, axis=others) if others else value
    return ops.reshape(summed, (-1, *shape))
