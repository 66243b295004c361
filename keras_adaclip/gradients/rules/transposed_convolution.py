"""`Conv1DTranspose`, `Conv2DTranspose`, `Conv3DTranspose`: a convolution the other way round.

The layer is the transpose of a convolution that goes from its output to its input, so the patches
are those of the cotangent, and its input stands where that convolution has its cotangent.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients.factored import Materialized, OuterProduct, PerExampleGradient
from keras_adaclip.gradients.rules.patches import Windows, channels_last
from keras_adaclip.gradients.rules.rule import LayerRule, TappedCall, register

Tensor = Any


@register(keras.layers.Conv1DTranspose)
@register(keras.layers.Conv2DTranspose)
@register(keras.layers.Conv3DTranspose)
class TransposedConvolutionRule(LayerRule):
    """Kernel: outer products of the cotangent's patches and the input over the input positions.

    `output_padding` only says how large the output is: with "same" padding, the rows that are cut
    off in front are those that the convolution back would have had to pad, and what lies behind
    the last window meets no kernel element.
    """

    taps_activation = True

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradients of kernel and bias."""
        layer = call.layer
        inputs = channels_last(layer, call.inputs)
        cotangents = ops.cast(channels_last(layer, call.cotangents[0]), "float32")
        bias = layer.bias if layer.use_bias else None
        spatial = tuple(range(1, len(cotangents.shape) - 1))
        return [
            Materialized(ops.sum(cotangents, axis=spatial))
            if variable is bias
            else _kernel_gradient(layer, inputs, cotangents, variable.shape)
            for variable in variables
        ]


def _kernel_gradient(
    layer: keras.layers.Layer, inputs: Tensor, cotangents: Tensor, shape: Any
) -> OuterProduct:
    """For a kernel of shape `(*kernel_size, filters, channels)`."""
    size = ops.shape(inputs)[1:-1]
    positions = math.prod(size)
    patches = Windows.of(layer).patches(cotangents, size)
    return OuterProduct(
        ops.reshape(patches, (-1, positions, math.prod(shape[:-1]))),
        ops.reshape(inputs, (-1, positions, inputs.shape[-1])),
        shape,
    )
