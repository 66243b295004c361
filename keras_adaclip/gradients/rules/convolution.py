"""`Conv1D`, `Conv2D`, `Conv3D`: a matrix product between patches of the input and the kernel."""

from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients.factored import (
    GroupedOuterProduct,
    OuterProduct,
    PerExampleGradient,
)
from keras_adaclip.gradients.rules.convolutional import ConvolutionalRule, by_position
from keras_adaclip.gradients.rules.patches import Windows
from keras_adaclip.gradients.rules.rule import register

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
        """An outer product, for each group of filters."""
        patches = Windows.of(layer).patches(inputs, ops.shape(cotangents)[1:-1])
        return _kernel_gradient(patches, by_position(cotangents), layer.groups, kernel.shape)


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
