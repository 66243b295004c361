"""`Conv2D`: a matrix product between patches of the input and the kernel.

The patches are shifted slices of the padded input, one a kernel element, which is exact for every
stride, dilation and padding (Rochette et al. 2019, "Efficient per-example gradient computations
in convolutional neural networks").
"""

from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients.factored import Materialized, OuterProduct, PerExampleGradient
from keras_adaclip.gradients.rules.rule import LayerRule, TappedCall, register

Tensor = Any


@register(keras.layers.Conv2D)
class Conv2DRule(LayerRule):
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
        inputs, cotangents = call.inputs, call.cotangents[0]
        if layer.data_format == "channels_first":
            inputs = ops.transpose(inputs, (0, 2, 3, 1))
            cotangents = ops.transpose(cotangents, (0, 2, 3, 1))
        cotangents = ops.cast(cotangents, "float32")
        flat = ops.reshape(
            cotangents,
            (-1, cotangents.shape[1] * cotangents.shape[2], cotangents.shape[3]),
        )
        bias = layer.bias if layer.use_bias else None
        return [
            Materialized(ops.sum(flat, axis=1))
            if variable is bias
            else _kernel_gradient(layer, inputs, cotangents, flat, variable.shape)
            for variable in variables
        ]


def _kernel_gradient(
    layer: keras.layers.Layer, inputs: Tensor, cotangents: Tensor, flat: Tensor, shape: Any
) -> PerExampleGradient:
    patches = _patches(layer, inputs, cotangents.shape[1:3])
    positions, num_offsets = flat.shape[1], patches.shape[3]
    if layer.groups == 1:
        patches = ops.reshape(patches, (-1, positions, num_offsets * patches.shape[4]))
        return OuterProduct(patches, flat, shape)
    grouped = ops.reshape(
        patches, (-1, positions, num_offsets, layer.groups, patches.shape[4] // layer.groups)
    )
    outputs = ops.reshape(flat, (-1, positions, layer.groups, flat.shape[2] // layer.groups))
    products = ops.einsum("btkgc,btgf->bkcgf", ops.cast(grouped, "float32"), outputs)
    return Materialized(ops.reshape(products, (-1, *shape)))


def _patches(layer: keras.layers.Layer, inputs: Tensor, output_size: Any) -> Tensor:
    """Patches of shape `(batch_size, height, width, kernel_elements, channels)`."""
    before, after = zip(
        *(
            _padding(layer.padding, size, output, kernel, stride, dilation)
            for size, output, kernel, stride, dilation in zip(
                inputs.shape[1:3],
                output_size,
                layer.kernel_size,
                layer.strides,
                layer.dilation_rate,
                strict=True,
            )
        ),
        strict=True,
    )
    if any(before) or any(after):
        inputs = ops.pad(inputs, ((0, 0), (before[0], after[0]), (before[1], after[1]), (0, 0)))
    phases = _phases(inputs, layer.strides)
    slices = [
        _shifted(
            phases,
            (row * layer.dilation_rate[0], column * layer.dilation_rate[1]),
            layer,
            output_size,
        )
        for row in range(layer.kernel_size[0])
        for column in range(layer.kernel_size[1])
    ]
    return ops.stack(slices, axis=3)


def _phases(inputs: Tensor, strides: tuple[int, int]) -> Tensor:
    """The input taken apart by its positions within a stride, so that every patch is contiguous.

    Returns:
        A tensor of shape `(batch_size, row_stride, column_stride, height, width, channels)`.
    """
    missing = [-size % stride for size, stride in zip(inputs.shape[1:3], strides, strict=True)]
    if any(missing):
        inputs = ops.pad(inputs, ((0, 0), (0, missing[0]), (0, missing[1]), (0, 0)))
    (rows, columns), (height, width, channels) = strides, inputs.shape[1:]
    if rows == columns == 1:
        return inputs[:, None, None]
    split = (-1, height // rows, rows, width // columns, columns, channels)
    return ops.transpose(ops.reshape(inputs, split), (0, 2, 4, 1, 3, 5))


def _shifted(
    phases: Tensor, offset: tuple[int, int], layer: keras.layers.Layer, output_size: Any
) -> Tensor:
    """What one element of the kernel meets, of shape `(batch_size, height, width, channels)`."""
    (row, row_phase), (column, column_phase) = (
        divmod(shift, stride) for shift, stride in zip(offset, layer.strides, strict=True)
    )
    height, width = output_size
    return phases[:, row_phase, column_phase, row : row + height, column : column + width, :]


def _padding(
    padding: str, size: int, output: int, kernel: int, stride: int, dilation: int
) -> tuple[int, int]:
    """Rows of zeros before and after one spatial axis."""
    if padding != "same":
        return 0, 0
    total = max((output - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return total // 2, total - total // 2
