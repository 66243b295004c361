"""Gradients of convolution kernels, one an example, from PyTorch's own backward operation.

The examples of a batch stand side by side as groups of channels of a single image: a grouped
convolution keeps them apart, and so does its gradient, whose groups are the examples' gradients
(Rochette et al. 2019).
"""

from collections.abc import Sequence
from typing import Any

import torch

Tensor = Any
Pairs = Sequence[tuple[int, int]]


def convolution_kernel_gradients(
    inputs: Tensor,
    cotangents: Tensor,
    kernel_size: Sequence[int],
    strides: Sequence[int],
    dilation_rate: Sequence[int],
    pairs: Pairs,
    groups: int,
) -> Tensor | None:
    """The gradients of a convolution's kernel by example; None where products are as good.

    Args:
        inputs: tensor of shape `(batch_size, *spatial, channels)`.
        cotangents: tensor of shape `(batch_size, *spatial, filters)`.
        kernel_size: elements of the kernel, one number for each spatial dimension.
        strides: steps between two windows.
        dilation_rate: steps between two elements of the kernel.
        pairs: rows of zeros before and after each spatial dimension of the inputs.
        groups: groups of channels and filters.

    Returns:
        Float32 of shape `(batch_size, filters, channels // groups, *kernel_size)`.
    """
    batch_size, channels, filters = inputs.shape[0], inputs.shape[-1], cotangents.shape[-1]
    is_a_product = all(elements == 1 for elements in kernel_size)
    # On a GPU, many groups of few channels are slow.
    if is_a_product or batch_size == 0 or inputs.device.type != "cpu":
        return None
    images, padding = padded(torch.movedim(inputs, -1, 1), pairs)
    images = _side_by_side(images)
    # Of the kernels themselves only the shape is looked at, but expanded ones would be copied.
    kernels = images.new_empty((batch_size * filters, channels // groups, *kernel_size))
    _, gradients, _ = torch.ops.aten.convolution_backward(
        _side_by_side(torch.movedim(cotangents, -1, 1)),
        images,
        kernels,
        None,
        tuple(strides),
        padding,
        tuple(dilation_rate),
        False,
        [0] * len(kernel_size),
        batch_size * groups,
        (False, True, False),
    )
    return gradients.reshape(batch_size, filters, channels // groups, *kernel_size)


def paddings(
    padding: str,
    sizes: Sequence[int],
    kernel_size: Sequence[int],
    strides: Sequence[int],
    dilation_rate: Sequence[int],
) -> list[tuple[int, int]]:
    """Rows of zeros before and after each spatial dimension, for "same" or "valid".

    Args:
        padding: "same" or "valid".
        sizes: those of the inputs, one number for each spatial dimension.
        kernel_size: elements of the kernel.
        strides: steps between two windows.
        dilation_rate: steps between two elements of the kernel.
    """
    if padding == "valid":
        return [(0, 0)] * len(sizes)
    pairs = []
    for size, elements, stride, rate in zip(
        sizes, kernel_size, strides, dilation_rate, strict=True
    ):
        covered = (elements - 1) * rate + 1
        missing = max((-(-size // stride) - 1) * stride + covered - size, 0)
        pairs.append((missing // 2, missing - missing // 2))
    return pairs


def padded(images: Tensor, pairs: Pairs) -> tuple[Tensor, list[int]]:
    """The images, padded where an operation cannot do it on its way, and what it is to pad.

    Args:
        images: tensor of shape `(batch_size, channels, *spatial)`.
        pairs: rows of zeros before and after each spatial dimension.
    """
    if all(before == after for before, after in pairs):
        return images, [before for before, _ in pairs]
    flat = [rows for pair in reversed(pairs) for rows in pair]
    return torch.nn.functional.pad(images, flat), [0] * len(pairs)


def _side_by_side(images: Tensor) -> Tensor:
    """From `(batch_size, channels, *spatial)` to `(1, batch_size * channels, *spatial)`."""
    return images.to(torch.float32).reshape(1, -1, *images.shape[2:])
