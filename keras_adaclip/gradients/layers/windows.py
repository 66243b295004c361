"""Windows of a convolution: the rows of channels of the padded input that each element meets.

This is exact for every stride, dilation and padding, in any number of spatial dimensions
(Rochette et al. 2019, "Efficient per-example gradient computations in convolutional neural
networks"). Sizes that TensorFlow knows only when the step runs (sequences of many lengths) are
tensors here, all others are numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from keras_adaclip import backend

Tensor = Any
Size = Any


@dataclass(frozen=True)
class Windows:
    """The windows of a convolution, with one number for each spatial dimension.

    Args:
        kernel_size: Elements of the kernel.
        strides: Distance between two windows.
        dilation_rate: Distance between two elements of the kernel.
        padding: "valid", "same" or "causal".
    """

    kernel_size: tuple[int, ...]
    strides: tuple[int, ...]
    dilation_rate: tuple[int, ...]
    padding: str

    @classmethod
    def of(cls, layer: Any) -> "Windows":
        """Return the windows of a convolutional layer."""
        return cls(layer.kernel_size, layer.strides, layer.dilation_rate, layer.padding)

    def slices(self, inputs: Tensor, num_windows: Sequence[Size]) -> list[Tensor]:
        """Return the rows that each kernel element meets in every window.

        Args:
            inputs: Tensor of shape `(batch_size, *spatial, channels)`.
            num_windows: The number of windows along each spatial dimension.

        Returns:
            One tensor of shape `(batch_size, prod(num_windows), channels)` per kernel element.
        """
        rows, places = self._rows(inputs, num_windows)
        return [backend.take_rows(rows, places[:, number]) for number in range(places.shape[1])]

    def patches(self, inputs: Tensor, num_windows: Sequence[Size]) -> Tensor:
        """Return all slices, `(batch_size, prod(num_windows), kernel_elements, channels)`."""
        rows, places = self._rows(inputs, num_windows)
        return backend.take_rows(rows, places)

    def padding_sizes(
        self, sizes: Sequence[Size], num_windows: Sequence[Size]
    ) -> list[tuple[Size, Size]]:
        """Return the number of rows of zeros before and after each spatial axis.

        Args:
            sizes: The sizes of the inputs along each spatial dimension.
            num_windows: The number of windows along each spatial dimension.
        """
        pairs = []
        for axis, (size, windows) in enumerate(zip(sizes, num_windows, strict=True)):
            covered = (self.kernel_size[axis] - 1) * self.dilation_rate[axis] + 1
            if self.padding == "same":
                missing = (windows - 1) * self.strides[axis] + covered - size
                missing = max(missing, 0) if isinstance(missing, int) else ops.maximum(missing, 0)
                pairs.append((missing // 2, missing - missing // 2))
            else:
                pairs.append((covered - 1 if self.padding == "causal" else 0, 0))
        return pairs

    def _rows(self, inputs: Tensor, num_windows: Sequence[Size]) -> tuple[Tensor, Any]:
        """Return the padded input as rows of channels, and the rows that each window meets.

        Returns:
            Tensors of shapes `(batch_size, rows, channels)` and
            `(prod(num_windows), kernel_elements)`.
        """
        sizes = ops.shape(inputs)[1:-1]
        pairs = self.padding_sizes(sizes, num_windows)
        if any(not isinstance(rows, int) or rows > 0 for pair in pairs for rows in pair):
            inputs = ops.pad(inputs, ((0, 0), *pairs, (0, 0)))
        sizes = [before + size + after for size, (before, after) in zip(sizes, pairs, strict=True)]
        rows = ops.reshape(inputs, (-1, math.prod(sizes), inputs.shape[-1]))
        # Sizes that are numbers give places that are constants of the step.
        are_numbers = all(isinstance(size, int) for size in (*sizes, *num_windows))
        return rows, self._places(np if are_numbers else ops, sizes, num_windows)

    def _places(self, numpy: Any, sizes: Sequence[Size], num_windows: Sequence[Size]) -> Any:
        """Return the index of the row that each element of each window meets."""
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
