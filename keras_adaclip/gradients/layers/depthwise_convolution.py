"""`DepthwiseConv1D/2D` and `SeparableConv1D/2D`: one small kernel a channel.

Its gradient has no more elements than the kernel, so that it is written out; the pointwise
kernel of a separable convolution is a matrix product over the positions.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients.forms import Materialized, OuterProduct, PerExampleGradient
from keras_adaclip.gradients.layers.convolutional import ConvolutionalRule, by_position
from keras_adaclip.gradients.layers.patches import Windows
from keras_adaclip.gradients.layers.rule import register

Tensor = Any


@register(keras.layers.DepthwiseConv1D)
@register(keras.layers.DepthwiseConv2D)
class DepthwiseConvolutionRule(ConvolutionalRule):
    """Kernel: input slices times cotangents, summed over the positions."""

    def kernel_gradient(
        self,
        layer: keras.layers.Layer,
        inputs: Tensor,
        cotangents: Tensor,
        kernel: keras.Variable,
    ) -> PerExampleGradient:
        """The gradient, written out."""
        return _depthwise_gradient(layer, inputs, cotangents, kernel.shape)


@register(keras.layers.SeparableConv1D)
@register(keras.layers.SeparableConv2D)
class SeparableConvolutionRule(ConvolutionalRule):
    """Both kernels, with what stands between them worked out once more."""

    def kernel_gradient(
        self,
        layer: keras.layers.Layer,
        inputs: Tensor,
        cotangents: Tensor,
        kernel: keras.Variable,
    ) -> PerExampleGradient:
        """The gradient of the depthwise or of the pointwise kernel."""
        if kernel is layer.pointwise_kernel:
            between = _depthwise_outputs(layer, inputs)
            return OuterProduct(by_position(between), by_position(cotangents), kernel.shape)
        pointwise = ops.cast(layer.pointwise_kernel, "float32")
        pointwise = ops.reshape(pointwise, pointwise.shape[-2:])
        # With a size of 1 among the batch axes, TensorFlow 2.21 on CPU corrupts its memory in a
        # product of four axes with two (github.com/tensorflow/tensorflow/issues/117700).
        of_between = ops.matmul(by_position(cotangents), ops.transpose(pointwise))
        size = ops.shape(cotangents)[1:-1]
        of_between = ops.reshape(of_between, (-1, *size, pointwise.shape[0]))
        return _depthwise_gradient(layer, inputs, of_between, kernel.shape)


def _depthwise_gradient(
    layer: keras.layers.Layer, inputs: Tensor, cotangents: Tensor, shape: Any
) -> Materialized:
    """For cotangents of shape `(batch_size, *spatial, channels * depth_multiplier)`."""
    size = ops.shape(cotangents)[1:-1]
    cotangents = ops.reshape(cotangents, (-1, math.prod(size), *shape[-2:]))
    elements = [
        ops.sum(ops.cast(met, "float32")[..., None] * cotangents, axis=1)
        for met in Windows.of(layer).slices(inputs, size)
    ]
    return Materialized(ops.reshape(ops.stack(elements, axis=1), (-1, *shape)))


def _depthwise_outputs(layer: keras.layers.Layer, inputs: Tensor) -> Tensor:
    """What the pointwise kernel is multiplied with, in the precision of the layer."""
    return ops.depthwise_conv(
        inputs,
        ops.cast(layer.depthwise_kernel, inputs.dtype),
        strides=layer.strides,
        padding=layer.padding,
        dilation_rate=layer.dilation_rate,
        data_format="channels_last",
    )
