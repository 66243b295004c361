"""`Conv1DTranspose`, `Conv2DTranspose`, `Conv3DTranspose`: a convolution the other way round.

The layer is the transpose of a convolution that goes from its output to its input, so the patches
are those of the cotangent, and its input stands where that convolution has its cotangent.
"""

from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients.forms import OuterProduct, PerExampleGradient
from keras_adaclip.gradients.layers.convolutional import ConvolutionalRule, by_position
from keras_adaclip.gradients.layers.patches import Windows
from keras_adaclip.gradients.layers.rule import register

Tensor = Any


@register(keras.layers.Conv1DTranspose)
@register(keras.layers.Conv2DTranspose)
@register(keras.layers.Conv3DTranspose)
class TransposedConvolutionRule(ConvolutionalRule):
    """Kernel: outer products of the cotangent's patches and the input over the input positions.

    `output_padding` only says how large the output is: with "same" padding, the rows that are cut
    off in front are those that the convolution back would have had to pad, and what lies behind
    the last window meets no kernel element.
    """

    def kernel_gradient(
        self,
        layer: keras.layers.Layer,
        inputs: Tensor,
        cotangents: Tensor,
        kernel: keras.Variable,
    ) -> PerExampleGradient:
        """For a kernel of shape `(*kernel_size, filters, channels)`."""
        patches = Windows.of(layer).patches(cotangents, ops.shape(inputs)[1:-1])
        _, positions, num_elements, filters = ops.shape(patches)
        patches = ops.reshape(patches, (-1, positions, num_elements * filters))
        return OuterProduct(patches, by_position(inputs), kernel.shape)
