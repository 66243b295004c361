"""`DepthwiseConv1D` and `DepthwiseConv2D`: one small kernel per channel.

The gradient of a depthwise kernel is as small as the kernel, so it is written out.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients.forms import Materialized, PerExampleGradient
from keras_adaclip.gradients.layers.convolution import ConvolutionalRule
from keras_adaclip.gradients.layers.rule import register
from keras_adaclip.gradients.layers.windows import Windows

Tensor = Any


@register(keras.layers.DepthwiseConv1D)
@register(keras.layers.DepthwiseConv2D)
class DepthwiseConvolutionRule(ConvolutionalRule):
    """Kernel: input slices times cotangents, summed over the positions."""

    def kernel_gradient(
        self, layer: Any, inputs: Tensor, cotangents: Tensor, kernel: keras.Variable
    ) -> PerExampleGradient:
        """Return the gradient for cotangents `(batch_size, *spatial, channels * multiplier)`."""
        size = ops.shape(cotangents)[1:-1]
        cotangents = ops.reshape(cotangents, (-1, math.prod(size), *kernel.shape[-2:]))
        elements = [
            ops.sum(ops.cast(met, "float32")[..., None] * cotangents, axis=1)
            for met in Windows.of(layer).slices(inputs, size)
        ]
        return Materialized(ops.reshape(ops.stack(elements, axis=1), (-1, *kernel.shape)))
