"""`DepthwiseConv1D/2D` and `SeparableConv1D/2D`: one small kernel a channel.

Its gradient has no more elements than the kernel, so that it is written out; the pointwise
kernel of a separable convolution is a matrix product over the positions.
"""

import math
from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients.factored import Materialized, OuterProduct, PerExampleGradient
from keras_adaclip.gradients.rules.patches import Windows, channels_last
from keras_adaclip.gradients.rules.rule import LayerRule, TappedCall, register

Tensor = Any


@register(keras.layers.DepthwiseConv1D)
@register(keras.layers.DepthwiseConv2D)
class DepthwiseConvolutionRule(LayerRule):
    """Kernel: input slices times cotangents, summed over the positions."""

    taps_activation = True

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradients of kernel and bias."""
        layer = call.layer
        inputs = channels_last(layer, call.inputs)
        cotangents = ops.cast(channels_last(layer, call.cotangents[0]), "float32")
        bias = layer.bias if layer.use_bias else None
        return [
            _bias_gradient(cotangents)
            if variable is bias
            else _depthwise_gradient(layer, inputs, cotangents, variable.shape)
            for variable in variables
        ]


@register(keras.layers.SeparableConv1D)
@register(keras.layers.SeparableConv2D)
class SeparableConvolutionRule(LayerRule):
    """Both kernels, with what stands between them worked out once more."""

    taps_activation = True

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradients of depthwise kernel, pointwise kernel and bias."""
        layer = call.layer
        inputs = channels_last(layer, call.inputs)
        cotangents = ops.cast(channels_last(layer, call.cotangents[0]), "float32")
        bias = layer.bias if layer.use_bias else None

        def gradient(variable: keras.Variable) -> PerExampleGradient:
            if variable is bias:
                return _bias_gradient(cotangents)
            if variable is layer.pointwise_kernel:
                between = _depthwise_outputs(layer, inputs)
                return OuterProduct(_positions(between), _positions(cotangents), variable.shape)
            pointwise = ops.cast(layer.pointwise_kernel, "float32")
            pointwise = ops.reshape(pointwise, pointwise.shape[-2:])
            # With a size of 1 among the batch axes, TensorFlow 2.21 on CPU corrupts its memory in a
            # product of four axes with two (github.com/tensorflow/tensorflow/issues/117700).
            of_between = ops.matmul(_positions(cotangents), ops.transpose(pointwise))
            of_between = ops.reshape(
                of_between, (-1, *ops.shape(cotangents)[1:-1], pointwise.shape[0])
            )
            return _depthwise_gradient(layer, inputs, of_between, variable.shape)

        return [gradient(variable) for variable in variables]


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


def _bias_gradient(cotangents: Tensor) -> Materialized:
    return Materialized(ops.sum(_positions(cotangents), axis=1))


def _positions(value: Tensor) -> Tensor:
    """From `(batch_size, *spatial, channels)` to `(batch_size, positions, channels)`."""
    return ops.reshape(value, (-1, math.prod(ops.shape(value)[1:-1]), value.shape[-1]))
