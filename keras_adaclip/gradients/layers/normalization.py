"""Layer, group and RMS normalization: `y = gamma * normalized(x) + beta`.

`normalized(x)` is the layer itself with gamma one and beta zero, so its own forward code is the
only definition of it.
"""

from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients.forms import Materialized, PerExampleGradient
from keras_adaclip.gradients.layers.broadcasting import summed_to
from keras_adaclip.gradients.layers.rule import LayerRule, TappedCall, register

Tensor = Any


@register(keras.layers.LayerNormalization)
@register(keras.layers.GroupNormalization)
class NormalizationRule(LayerRule):
    """Gamma: cotangent times normalized input. Beta: cotangent. Summed over the other axes."""

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradients of scale and offset, where the layer has them."""
        layer = call.layer
        cotangents = ops.cast(call.cotangents[0], "float32")
        return [
            Materialized(
                _sum_to_axes(cotangents, layer, variable.shape)
                if variable is layer.beta
                else _sum_to_axes(
                    cotangents * _normalized(call, layer.gamma, layer.beta), layer, variable.shape
                )
            )
            for variable in variables
        ]


@register(keras.layers.RMSNormalization)
class RMSNormalizationRule(LayerRule):
    """Scale: cotangent times normalized input, summed over the axes along which it is broadcast."""

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradient of the scale."""
        (scale,) = variables
        products = ops.cast(call.cotangents[0], "float32") * _normalized(call, scale, None)
        return [Materialized(summed_to(products, scale.shape))]


def _normalized(
    call: TappedCall, scale: keras.Variable | None, offset: keras.Variable | None
) -> Tensor:
    """The output of the layer with scale one and offset zero, in float32."""
    layer = call.layer
    neutral = [
        (variable, ops.full(variable.shape, value, variable.dtype))
        for variable, value in ((scale, 1.0), (offset, 0.0))
        if variable is not None
    ]
    with keras.StatelessScope(neutral):
        normalize = call.quicker_call or layer
        return ops.cast(normalize(*call.args, **call.kwargs), "float32")


def _sum_to_axes(value: Tensor, layer: keras.layers.Layer, shape: Any) -> Tensor:
    """Sums over every axis that is neither the batch nor one of the layer's `axis`."""
    axes = layer.axis if isinstance(layer.axis, (list, tuple)) else (layer.axis,)
    kept = {axis % len(value.shape) for axis in axes}
    others = tuple(axis for axis in range(1, len(value.shape)) if axis not in kept)
    summed = ops.sum(value, axis=others) if others else value
    return ops.reshape(summed, (-1, *shape))
