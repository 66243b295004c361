"""What each element of a convolution's kernel meets: shifted slices of the padded input.

That is exact for every stride, dilation and padding, in any number of spatial dimensions
(Rochette et al. 2019, "Efficient per-example gradient computations in convolutional neural
networks").
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

Tensor = Any


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

    def slices(self, inputs: Tensor, num_windows: Sequence[int]) -> list[Tensor]:
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
                zip(inputs.shape[1:-1], num_windows, strict=True)
            )
        ]
        if any(before or after for before, after in pairs):
            inputs = ops.pad(inputs, ((0, 0), *pairs, (0, 0)))
        phases = _phases(inputs, self.strides)
        offsets = itertools.product(*(range(size) for size in self.kernel_size))
        return [self._shifted(phases, offset, num_windows) for offset in offsets]

    def patches(self, inputs: Tensor, num_windows: Sequence[int]) -> Tensor:
        """The slices side by side, `(batch_size, prod(num_windows), kernel_elements, channels)`."""
        stacked = ops.stack(self.slices(inputs, num_windows), axis=-2)
        return ops.reshape(stacked, (-1, math.prod(num_windows), *stacked.shape[-2:]))

    def _pair(self, axis: int, size: int, windows: int) -> tuple[int, int]:
        """Rows of zeros before and after one spatial axis."""
        covered = (self.kernel_size[axis] - 1) * self.dilation_rate[axis] + 1
        if self.padding == "same":
            missing = max((windows - 1) * self.strides[axis] + covered - size, 0)
            return missing // 2, missing - missing // 2
        return (covered - 1, 0) if self.padding == "causal" else (0, 0)

    def _shifted(self, phases: Tensor, offset: Sequence[int], num_windows: Sequence[int]) -> Tensor:
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
        return ops.reshape(inputs, (-1, *strides, *inputs.shape[1:]))
    missing = [-size % stride for size, stride in zip(inputs.shape[1:-1], strides, strict=True)]
    if any(missing):
        inputs = ops.pad(inputs, ((0, 0), *((0, rows) for rows in missing), (0, 0)))
    split = [
        part
        for size, stride in zip(inputs.shape[1:-1], strides, strict=True)
        for part in (size // stride, stride)
    ]
    within, across = range(2, 2 * rank + 1, 2), range(1, 2 * rank, 2)
    return ops.transpose(
        ops.reshape(inputs, (-1, *split, inputs.shape[-1])), (0, *within, *across, 2 * rank + 1)
    )
