"""What each element of a convolution's kernel meets: shifted slices of the padded input.

That is exact for every stride, dilation and padding, in any number of spatial dimensions
(Rochette et al. 2019, "Efficient per-example gradient computations in convolutional neural
networks"). Sizes that TensorFlow learns only when the step runs (sequences of many lengths) are
tensors here, all others are numbers.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

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
            One tensor of shape `(batch_size, *num_windows, channels)` for each kernel element.
        """
        pairs = [
            self._pair(axis, size, windows)
            for axis, (size, windows) in enumerate(
                zip(ops.shape(inputs)[1:-1], num_windows, strict=True)
            )
        ]
        inputs = _padded(inputs, pairs)
        phases = _phases(inputs, self.strides)
        offsets = itertools.product(*(range(size) for size in self.kernel_size))
        return [self._shifted(phases, offset, num_windows) for offset in offsets]

    def patches(self, inputs: Tensor, num_windows: Sequence[Size]) -> Tensor:
        """The slices side by side, `(batch_size, prod(num_windows), kernel_elements, channels)`."""
        stacked = ops.stack(self.slices(inputs, num_windows), axis=-2)
        return ops.reshape(stacked, (-1, math.prod(num_windows), *stacked.shape[-2:]))

    def _pair(self, axis: int, size: Size, windows: Size) -> tuple[Size, Size]:
        """Rows of zeros before and after one spatial axis."""
        covered = (self.kernel_size[axis] - 1) * self.dilation_rate[axis] + 1
        if self.padding == "same":
            missing = (windows - 1) * self.strides[axis] + covered - size
            missing = max(missing, 0) if isinstance(missing, int) else ops.maximum(missing, 0)
            return missing // 2, missing - missing // 2
        return (covered - 1, 0) if self.padding == "causal" else (0, 0)

    def _shifted(
        self, phases: Tensor, offset: Sequence[int], num_windows: Sequence[Size]
    ) -> Tensor:
        """What one element of the kernel meets."""
        places = [
            divmod(number * dilation, stride)
            for number, dilation, stride in zip(
                offset, self.dilation_rate, self.strides, strict=True
            )
        ]
        slices = [
            slice(start, start + windows)
            for (start, _), windows in zip(places, num_windows, strict=True)
        ]
        return phases[(slice(None), *(phase for _, phase in places), *slices, slice(None))]


def _phases(inputs: Tensor, strides: Sequence[int]) -> Tensor:
    """The input taken apart by its positions within a stride, so that every slice is contiguous.

    Returns:
        A tensor of shape `(batch_size, *strides, *spatial, channels)`.
    """
    rank = len(strides)
    if all(stride == 1 for stride in strides):
        return ops.reshape(inputs, (-1, *strides, *ops.shape(inputs)[1:]))
    sizes = ops.shape(inputs)[1:-1]
    inputs = _padded(inputs, [(0, -size % n) for size, n in zip(sizes, strides, strict=True)])
    sizes = ops.shape(inputs)[1:-1]
    split = [part for size, n in zip(sizes, strides, strict=True) for part in (size // n, n)]
    within, across = range(2, 2 * rank + 1, 2), range(1, 2 * rank, 2)
    return ops.transpose(
        ops.reshape(inputs, (-1, *split, inputs.shape[-1])), (0, *within, *across, 2 * rank + 1)
    )


def _padded(inputs: Tensor, pairs: Sequence[tuple[Size, Size]]) -> Tensor:
    """Zeros before and after each spatial axis."""
    if all(isinstance(rows, int) and rows == 0 for pair in pairs for rows in pair):
        return inputs
    return ops.pad(inputs, ((0, 0), *pairs, (0, 0)))
