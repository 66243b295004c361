"""`Conv1D`, `Conv2D`, `Conv3D`: a matrix product between patches of the input and the kernel."""

import math
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.forms import (
    GroupedOuterProduct,
    Materialized,
    OuterProduct,
    PerExampleGradient,
    gram_is_cheaper,
)
from keras_adaclip.gradients.layers.convolutional import ConvolutionalRule, by_position
from keras_adaclip.gradients.layers.patches import Windows
from keras_adaclip.gradients.layers.rule import register

Tensor = Any


@register(keras.layers.Conv1D)
@register(keras.layers.Conv2D)
@register(keras.layers.Conv3D)
class ConvolutionRule(ConvolutionalRule):
    """Kernel: outer products of patches and cotangents over the output positions."""

    def covers(self, layer: keras.layers.Layer) -> bool:
        """A subclass may put its own operation (with other weights) in the convolution's place."""
        return type(layer).convolution_op is keras.layers.Conv2D.convolution_op

    def kernel_gradient(
        self,
        layer: keras.layers.Layer,
        inputs: Tensor,
        cotangents: Tensor,
        kernel: keras.Variable,
    ) -> PerExampleGradient:
        """An outer product, for each group of filters; written out at once where that is known."""
        if not _gram_is_cheaper(layer, inputs, cotangents):
            windows = Windows.of(layer)
            gradients = backend.convolution_kernel_gradients(
                inputs,
                cotangents,
                windows.kernel_size,
                windows.strides,
                windows.dilation_rate,
                windows.pairs(ops.shape(inputs)[1:-1], ops.shape(cotangents)[1:-1]),
                layer.groups,
            )
            if gradients is not None:
                # As `(filters, channels, *kernel_size)`; the kernel has its axes the other way.
                order = (*range(2, len(kernel.shape)), 1, 0)
                return Materialized(gradients, order)
        patches = Windows.of(layer).patches(inputs, ops.shape(cotangents)[1:-1])
        return _kernel_gradient(patches, by_position(cotangents), layer.groups, kernel.shape)


def _gram_is_cheaper(layer: keras.layers.Layer, inputs: Tensor, cotangents: Tensor) -> bool:
    sizes = cotangents.shape[1:-1]
    positions = None if any(size is None for size in sizes) else math.prod(sizes)
    of_group = inputs.shape[-1] // layer.groups, cotangents.shape[-1] // layer.groups
    return gram_is_cheaper(positions, math.prod(layer.kernel_size) * of_group[0], of_group[1])


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
