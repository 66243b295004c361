"""`Conv1D`, `Conv2D`, `Conv3D`: a matrix product between patches of the input and the kernel."""

import math
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.factored import (
    GroupedOuterProduct,
    Materialized,
    OuterProduct,
    PerExampleGradient,
)
from keras_adaclip.gradients.rules.patches import Windows, channels_last
from keras_adaclip.gradients.rules.rule import LayerRule, TappedCall, register

Tensor = Any


@register(keras.layers.Conv1D)
@register(keras.layers.Conv2D)
@register(keras.layers.Conv3D)
class ConvolutionRule(LayerRule):
    """Kernel: outer products of patches and cotangents over the output positions."""

    taps_activation = True

    def covers(self, layer: keras.layers.Layer) -> bool:
        """A subclass may put its own operation (with other weights) in the convolution's place."""
        return type(layer).convolution_op is keras.layers.Conv2D.convolution_op

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradients of kernel and bias."""
        layer = call.layer
        inputs = channels_last(layer, call.inputs)
        cotangents = ops.cast(channels_last(layer, call.cotangents[0]), "float32")
        size = ops.shape(cotangents)[1:-1]
        # Patches are many times as large as the input: those of a layer whose turn has not come
        # would lie about.
        inputs = backend.after(inputs, cotangents)
        cotangents = ops.reshape(cotangents, (-1, math.prod(size), cotangents.shape[-1]))
        bias = layer.bias if layer.use_bias else None
        return [
            Materialized(ops.sum(cotangents, axis=1))
            if variable is bias
            else _kernel_gradient(
                Windows.of(layer).patches(inputs, size), cotangents, layer.groups, variable.shape
            )
            for variable in variables
        ]


def _kernel_gradient(
    patches: Tensor, cotangents: Tensor, groups: int, shape: Any
) -> PerExampleGradient:
    _, positions, num_elements, channels = ops.shape(patches)
    if groups == 1:
        return OuterProduct(
            ops.reshape(patches, (-1, positions, num_elements * channels)), cotangents, shape
        )
    channels, outputs = channels // groups, cotangents.shape[2] // groups
    patches = ops.reshape(patches, (-1, positions, num_elements, groups, channels))
    patches = ops.reshape(
        ops.transpose(patches, (0, 3, 1, 2, 4)), (-1, groups, positions, num_elements * channels)
    )
    cotangents = ops.reshape(cotangents, (-1, positions, groups, outputs))
    cotangents = ops.transpose(cotangents, (0, 2, 1, 3))
    return GroupedOuterProduct(patches, cotangents, shape, order=(1, 0, 2))
