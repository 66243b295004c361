"""What each element of a convolution's kernel meets: rows of channels of the padded input.

That is exact for every stride, dilation and padding, in any number of spatial dimensions
(Rochette et al. 2019, "Efficient per-example gradient computations in convolutional neural
networks"). Sizes that TensorFlow learns only when the step runs (sequences of many lengths) are
tensors here, all others are numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend

Tensor = Any
Size = Any


def channels_last(layer: keras.layers.Layer, value: Tensor) -> Tensor:
    """A layer's input or output with its channels as the last axis."""
    if layer.data_format == "channels_last":
        return value
    return ops.moveaxis(value, 1, -1)


@dataclass(frozen=True)
class Windows:
    """Where the windows of a convolution lie, one number for each spatial dimension.

    Args:
        kernel_size: elements of the kernel.
        strides: steps between two windows.
        dilation_rate: steps between two elements of the kernel.
        padding: "valid", "same" or "causal".
    """

    kernel_size: tuple[int, ...]
    strides: tuple[int, ...]
    dilation_rate: tuple[int, ...]
    padding: str

    @classmethod
    def of(cls, layer: keras.layers.Layer) -> "Windows":
        """Those of a convolutional layer."""
        return cls(layer.kernel_size, layer.strides, layer.dilation_rate, layer.padding)

    def slices(self, inputs: Tensor, num_windows: Sequence[Size]) -> list[Tensor]:
        """What each kernel element meets in every window.

        Args:
            inputs: tensor of shape `(batch_size, *spatial, channels)`.
            num_windows: the number of windows along each spatial dimension.

        Returns:
            One tensor of shape `(batch_size, prod(num_windows), channels)` for each kernel element.
        """
        rows, places = self._rows(inputs, num_windows)
        return [backend.take_rows(rows, places[:, number]) for number in range(places.shape[1])]

    def patches(self, inputs: Tensor, num_windows: Sequence[Size]) -> Tensor:
        """The slices side by side, `(batch_size, prod(num_windows), kernel_elements, channels)`."""
        rows, places = self._rows(inputs, num_windows)
        return backend.take_rows(rows, places)

    def pairs(self, sizes: Sequence[Size], num_windows: Sequence[Size]) -> list[tuple[Size, Size]]:
        """Rows of zeros before and after each spatial axis.

        Args:
            sizes: those of the inputs, one for each spatial dimension.
            num_windows: the number of windows along each spatial dimension.
        """
        return [
            self._pair(axis, size, windows)
            for axis, (size, windows) in enumerate(zip(sizes, num_windows, strict=True))
        ]

    def _rows(self, inputs: Tensor, num_windows: Sequence[Size]) -> tuple[Tensor, Any]:
        """The padded input as rows of channels, and which of them each window's elements meet.

        Returns:
            Tensors of shapes `(batch_size, rows, channels)` and
            `(prod(num_windows), kernel_elements)`.
        """
        sizes = ops.shape(inputs)[1:-1]
        pairs = self.pairs(sizes, num_windows)
        sizes = [before + size + after for size, (before, after) in zip(sizes, pairs, strict=True)]
        rows = ops.reshape(_padded(inputs, pairs), (-1, math.prod(sizes), inputs.shape[-1]))
        # Sizes that are numbers give places that are constants of the step.
        are_numbers = all(isinstance(size, int) for size in (*sizes, *num_windows))
        return rows, self._places(np if are_numbers else ops, sizes, num_windows)

    def _places(self, numpy: Any, sizes: Sequence[Size], num_windows: Sequence[Size]) -> Any:
        places: Any = numpy.zeros((1, 1), "int32")
        for axis, (size, windows) in enumerate(zip(sizes, num_windows, strict=True)):
            first = self.strides[axis] * numpy.arange(windows, dtype="int32")[:, None]
            further = self.dilation_rate[axis] * numpy.arange(self.kernel_size[axis], dtype="int32")
            along = (first + further)[None, :, None, :]
            places = numpy.reshape(
                places[:, None, :, None] * size + along,
                (-1, math.prod(self.kernel_size[: axis + 1])),
            )
        return places

    def _pair(self, axis: int, size: Size, windows: Size) -> tuple[Size, Size]:
        """Rows of zeros before and after one spatial axis."""
        covered = (self.kernel_size[axis] - 1) * self.dilation_rate[axis] + 1
        if self.padding == "same":
            missing = (windows - 1) * self.strides[axis] + covered - size
            missing = max(missing, 0) if isinstance(missing, int) else ops.maximum(missing, 0)
            return missing // 2, missing - missing // 2
        return (covered - 1, 0) if self.padding == "causal" else (0, 0)


def _padded(inputs: Tensor, pairs: Sequence[tuple[Size, Size]]) -> Tensor:
    """Zeros before and after each spatial axis."""
    if all(isinstance(rows, int) and rows == 0 for pair in pairs for rows in pair):
        return inputs
    return ops.pad(inputs, ((0, 0), *pairs, (0, 0)))
