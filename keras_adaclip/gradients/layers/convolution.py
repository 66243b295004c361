"""Convolutions: matrix products between patches of the input and cotangents.

The patches are exact for every stride, dilation and padding, in any number of spatial dimensions
(Rochette et al. 2019, "Efficient per-example gradient computations in convolutional neural
networks"). Sizes that TensorFlow knows only when the step runs (sequences of many lengths) are
tensors here, all others are numbers.
"""

import abc
import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.forms import Materialized, PerExampleGradient
from keras_adaclip.gradients.layers.rule import Gradients, LayerRule, TappedCall, register
from keras_adaclip.gradients.outer_products import OuterProduct, gram_is_cheaper

Tensor = Any
Size = Any


class ConvolutionalRule(LayerRule):
    """Base of all convolutions. Bias: the cotangents summed over the positions."""

    taps_activation = True

    def gradients(self, call: TappedCall, variables: list[keras.Variable]) -> Gradients:
        """Return the gradients of kernels and bias."""
        layer: Any = call.layer
        cotangents = ops.cast(_channels_last(layer, call.cotangents[0]), "float32")
        # Patches are many times as large as the input, so they are computed as late as possible.
        inputs = backend.after(_channels_last(layer, call.inputs), cotangents)
        bias = layer.bias if layer.use_bias else None
        return [
            Materialized(ops.sum(_by_position(cotangents), axis=1))
            if variable is bias
            else self.kernel_gradient(layer, inputs, cotangents, variable.shape)
            for variable in variables
        ]

    @abc.abstractmethod
    def kernel_gradient(
        self, layer: Any, inputs: Tensor, cotangents: Tensor, shape: Any
    ) -> PerExampleGradient:
        """Return the gradient of the kernel.

        Args:
            layer: The layer.
            inputs: Tensor of shape `(batch_size, *spatial, channels)`.
            cotangents: Float32 tensor of shape `(batch_size, *spatial, filters)`.
            shape: The kernel's shape.
        """


@register(keras.layers.Conv1D)
@register(keras.layers.Conv2D)
@register(keras.layers.Conv3D)
class ConvolutionRule(ConvolutionalRule):
    """Kernel: outer products of patches and cotangents over the output positions."""

    def covers(self, layer: Any) -> bool:
        """Return whether the layer's operation is Keras's own, with the layer's own weights."""
        return type(layer).convolution_op is keras.layers.Conv2D.convolution_op

    def kernel_gradient(
        self, layer: Any, inputs: Tensor, cotangents: Tensor, shape: Any
    ) -> PerExampleGradient:
        """Return an outer product for each group of filters, or gradients of the backend's own."""
        sizes = ops.shape(cotangents)[1:-1]
        if not _gram_is_cheaper(layer, inputs, cotangents):
            pairs = _padding(layer, ops.shape(inputs)[1:-1], sizes)
            gradients = backend.convolution_kernel_gradients(layer, inputs, cotangents, pairs)
            if gradients is not None:
                return _FiltersFirst(gradients)
        patches, cotangents = _patches(layer, inputs, sizes), _by_position(cotangents)
        _, positions, num_elements, channels = ops.shape(patches)
        if layer.groups == 1:
            patches = ops.reshape(patches, (-1, positions, num_elements * channels))
            return OuterProduct(patches, cotangents, shape)
        groups, channels = layer.groups, channels // layer.groups
        patches = ops.reshape(patches, (-1, positions, num_elements, groups, channels))
        patches = ops.transpose(patches, (0, 3, 1, 2, 4))
        patches = ops.reshape(patches, (-1, groups, positions, num_elements * channels))
        cotangents = ops.reshape(cotangents, (-1, positions, groups, shape[-1] // groups))
        cotangents = ops.transpose(cotangents, (0, 2, 1, 3))
        return OuterProduct(patches, cotangents, shape, order=(1, 0, 2))


class _FiltersFirst(Materialized):
    """Gradients of kernels with the filters first, as the backend computes them.

    Only their weighted sum is transposed, which is one kernel in size.

    Args:
        values: Tensor of shape `(batch_size, filters, channels, *kernel_size)`.
    """

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """Return the weighted sum, of shape `(*kernel_size, channels, filters)`."""
        total = super().weighted_sum(factors, finite)
        return ops.transpose(total, (*range(2, len(total.shape)), 1, 0))

    def materialize(self) -> Tensor:
        """Return the gradients, of shape `(batch_size, *kernel_size, channels, filters)`."""
        return ops.transpose(self.values, (0, *range(3, len(self.values.shape)), 2, 1))


@register(keras.layers.Conv1DTranspose)
@register(keras.layers.Conv2DTranspose)
@register(keras.layers.Conv3DTranspose)
class TransposedConvolutionRule(ConvolutionalRule):
    """Kernel: outer products of the cotangent's patches and the input over the input positions.

    The layer is the transpose of a convolution from its output to its input. So patches are taken
    of the cotangent, and the layer's input takes the place of that convolution's cotangent.
    `output_padding` only sets the size of the output: with "same" padding, the rows cut off in
    front are those that the convolution would have padded, and rows behind the last window meet no
    kernel element.
    """

    def kernel_gradient(
        self, layer: Any, inputs: Tensor, cotangents: Tensor, shape: Any
    ) -> PerExampleGradient:
        """Return the gradient of a kernel of shape `(*kernel_size, filters, channels)`."""
        patches = _patches(layer, cotangents, ops.shape(inputs)[1:-1])
        _, positions, num_elements, filters = ops.shape(patches)
        patches = ops.reshape(patches, (-1, positions, num_elements * filters))
        return OuterProduct(patches, _by_position(inputs), shape)


@register(keras.layers.DepthwiseConv1D)
@register(keras.layers.DepthwiseConv2D)
class DepthwiseConvolutionRule(ConvolutionalRule):
    """Kernel: patches times cotangents, written out, since it is as small as the kernel."""

    def kernel_gradient(
        self, layer: Any, inputs: Tensor, cotangents: Tensor, shape: Any
    ) -> PerExampleGradient:
        """Return the gradient for cotangents `(batch_size, *spatial, channels * multiplier)`."""
        sizes = ops.shape(cotangents)[1:-1]
        cotangents = ops.reshape(cotangents, (-1, math.prod(sizes), *shape[-2:]))
        patches = ops.cast(_patches(layer, inputs, sizes), "float32")
        with backend.full_precision():
            gradients = ops.einsum("btkc,btcm->bkcm", patches, cotangents)
        return Materialized(ops.reshape(gradients, (-1, *shape)))


def _by_position(value: Tensor) -> Tensor:
    """Reshape `(batch_size, *spatial, channels)` to `(batch_size, positions, channels)`."""
    return ops.reshape(value, (-1, math.prod(ops.shape(value)[1:-1]), value.shape[-1]))


def _channels_last(layer: Any, value: Tensor) -> Tensor:
    """Return a layer's input or output with channels as the last axis."""
    return value if layer.data_format == "channels_last" else ops.moveaxis(value, 1, -1)


def _axes(layer: Any, sizes: Sequence[Size], num_windows: Sequence[Size]) -> Any:
    """Return size, windows, kernel elements, stride and dilation of each spatial axis."""
    options = layer.kernel_size, layer.strides, layer.dilation_rate
    return zip(sizes, num_windows, *options, strict=True)


def _padding(
    layer: Any, sizes: Sequence[Size], num_windows: Sequence[Size]
) -> list[tuple[Size, Size]]:
    """Return the number of zeros before and after the inputs along each spatial axis.

    Args:
        layer: A layer with `kernel_size`, `strides`, `dilation_rate` and `padding`.
        sizes: The sizes of the inputs along each spatial axis.
        num_windows: The number of windows along each spatial axis.
    """
    pairs = []
    for size, windows, elements, stride, rate in _axes(layer, sizes, num_windows):
        covered = (elements - 1) * rate + 1
        before, after = covered - 1 if layer.padding == "causal" else 0, 0
        if layer.padding == "same":
            missing = (windows - 1) * stride + covered - size
            missing = max(missing, 0) if isinstance(missing, int) else ops.maximum(missing, 0)
            before, after = missing // 2, missing - missing // 2
        pairs.append((before, after))
    return pairs


def _patches(layer: Any, inputs: Tensor, num_windows: Sequence[Size]) -> Tensor:
    """Return the rows of channels that each kernel element meets in each window.

    Args:
        layer: A layer with `kernel_size`, `strides`, `dilation_rate` and `padding`.
        inputs: Tensor of shape `(batch_size, *spatial, channels)`.
        num_windows: Number of windows along each spatial dimension.

    Returns:
        A tensor of shape `(batch_size, prod(num_windows), kernel_elements, channels)`.
    """
    sizes = ops.shape(inputs)[1:-1]
    # Sizes that are numbers give places that are constants of the step.
    are_numbers = all(isinstance(size, int) for size in (*sizes, *num_windows))
    numpy: Any = np if are_numbers else ops
    padding = _padding(layer, sizes, num_windows)
    places = numpy.zeros((1, 1), "int32")
    axes = _axes(layer, sizes, num_windows)
    for pair, (size, windows, elements, stride, rate) in zip(padding, axes, strict=True):
        first = stride * numpy.arange(windows, dtype="int32")
        along = first[:, None] + rate * numpy.arange(elements, dtype="int32")
        places = places[:, None, :, None] * (pair[0] + size + pair[1]) + along[None, :, None, :]
        places = numpy.reshape(places, (-1, places.shape[2] * elements))
    if layer.padding != "valid":
        inputs = ops.pad(inputs, [(0, 0), *padding, (0, 0)])
    return ops.take(_by_position(inputs), places, axis=1)


def _gram_is_cheaper(layer: Any, inputs: Tensor, cotangents: Tensor) -> bool:
    """Return whether Gram matrices make the norms of one group of filters cheaper."""
    sizes = cotangents.shape[1:-1]
    positions = None if any(size is None for size in sizes) else math.prod(sizes)
    channels, filters = (value.shape[-1] // layer.groups for value in (inputs, cotangents))
    return gram_is_cheaper(positions, math.prod(layer.kernel_size) * channels, filters)
