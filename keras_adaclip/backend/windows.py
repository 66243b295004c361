"""The windows of convolutions: how inputs are padded, and what each window sees.

Exact for every stride, dilation and padding, in any number of spatial dimensions. Sizes that
TensorFlow knows only when the step runs (sequences of many lengths) are tensors here, all others
are numbers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

Tensor = Any
Size = Any


def padding(
    layer: Any, sizes: Sequence[Size], num_windows: Sequence[Size]
) -> list[tuple[Size, Size]]:
    """Return the number of zeros before and after the inputs along each spatial axis.

    Args:
        layer: A layer with `kernel_size`, `strides`, `dilation_rate` and `padding`.
        sizes: The sizes of the inputs along each spatial axis.
        num_windows: The number of windows along each spatial axis.
    """
    pairs = []
    for size, windows, elements, stride, rate in zip(
        sizes, num_windows, layer.kernel_size, layer.strides, layer.dilation_rate, strict=True
    ):
        covered = (elements - 1) * rate + 1
        before, after = covered - 1 if layer.padding == "causal" else 0, 0
        if layer.padding == "same":
            missing = (windows - 1) * stride + covered - size
            missing = max(missing, 0) if isinstance(missing, int) else ops.maximum(missing, 0)
            before, after = missing // 2, missing - missing // 2
        pairs.append((before, after))
    return pairs


def patches(layer: Any, inputs: Tensor, num_windows: Sequence[Size]) -> Tensor:
    """Return the channels that each kernel element meets in each window.

    Args:
        layer: A layer with `kernel_size`, `strides`, `dilation_rate` and `padding`.
        inputs: Tensor of shape `(batch_size, *spatial, channels)`.
        num_windows: Number of windows along each spatial dimension.

    Returns:
        A tensor of shape `(batch_size, *num_windows, kernel_elements, channels)`.
    """
    if layer.padding != "valid":
        pairs = padding(layer, ops.shape(inputs)[1:-1], num_windows)
        inputs = ops.pad(inputs, [(0, 0), *pairs, (0, 0)])

    def met_by(element: tuple[int, ...]) -> Tensor:
        """Return what one kernel element meets in all windows."""
        starts = [place * rate for place, rate in zip(element, layer.dilation_rate, strict=True)]
        axes = zip(starts, num_windows, layer.strides, strict=True)
        return inputs[:, *(slice(start, start + n * step, step) for start, n, step in axes)]

    return ops.stack([met_by(element) for element in np.ndindex(*layer.kernel_size)], axis=-2)
