"""Gradients, loops and faster calls of layers on PyTorch.

Keras copies images with channels last to an order with channels first. PyTorch needs no copy:
permuted axes tell it where the channels are. Forward and backward, in milliseconds of one core,
with Keras's call in parentheses: the first pooling of the benchmark's row `cnn-256` takes 2.5
(17.3) of a step of 34; a group normalization of the row `resnet` 8 (31) and a convolution 13 (18),
each of about 20 in a step of 480.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch
from keras import ops

from keras_adaclip.backend import contract
from keras_adaclip.backend.contract import Function, ResultAndGradients, Tensor, Tensors, Variables

# `(batch_size, height, width, channels)` to `(batch_size, channels, height, width)`, and back.
_CHANNELS_FIRST, _CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
_POOLS = {
    keras.layers.MaxPooling2D: torch.nn.functional.max_pool2d,
    keras.layers.AveragePooling2D: torch.nn.functional.avg_pool2d,
}


def differentiate_at_taps(function: Function, variables: Variables) -> ResultAndGradients:
    """Override: tensors that pass a tap require gradients."""
    taps: list[Tensor] = []

    def tap(value: Tensor) -> Tensor:
        """Return a tensor that requires gradients."""
        if value.ndim > 2 and value.shape[-1] == 1:
            # A kernel with one filter: PyTorch cannot differentiate the convolution of a single
            # image by it, unless the stride of its last axis is the largest.
            value = torch.movedim(value[..., 0][None], 0, -1)
        if not value.requires_grad:
            value = value.detach().requires_grad_()
        taps.append(value)
        return value

    with torch.enable_grad():
        loss, further = function(tap)
    return keras.tree.map_structure(_detach, further), _gradients(loss, taps)


def gradients_at(function: Function, values: Tensors) -> tuple[list[Tensor], Any]:
    """Override: `torch.func.grad`."""
    with torch.enable_grad():
        detached = [value.detach() for value in values]
        gradients, further = torch.func.grad(function, has_aux=True)(detached)
    return list(gradients), further


def convolution_kernel_gradients(
    layer: Any, inputs: Tensor, cotangents: Tensor, pairs: Sequence[tuple[int, int]]
) -> Tensor | None:
    """Override: one grouped convolution, on a CPU and for kernels larger than 1.

    The examples of a batch become groups of channels of one image. The gradient of a grouped
    convolution keeps the groups apart, so its groups are the gradients of the examples (Rochette et
    al. 2019). In milliseconds of one core, with products of patches in parentheses: 27 (63) for
    each convolution with 16 filters in the speed benchmark's row `resnet`, whose step takes 480.
    """
    batch_size, filters = inputs.shape[0], cotangents.shape[-1]
    is_a_product = all(elements == 1 for elements in layer.kernel_size)
    # Many groups of few channels are slow on a GPU.
    if is_a_product or batch_size == 0 or inputs.device.type != "cpu":
        return None
    images, is_even = torch.movedim(inputs, -1, 1), all(first == last for first, last in pairs)
    if not is_even:  # A convolution pads both sides alike.
        images = torch.nn.functional.pad(images, [rows for pair in pairs[::-1] for rows in pair])
    images, cotangents = (
        value.to(torch.float32).reshape(1, -1, *value.shape[2:])
        for value in (images, torch.movedim(cotangents, -1, 1))
    )
    shape = (filters, inputs.shape[-1] // layer.groups, *layer.kernel_size)
    # Only the shape of the kernels is read; expanded ones would be copied.
    kernels = images.new_empty((batch_size * shape[0], *shape[1:]))
    _, gradients, _ = torch.ops.aten.convolution_backward(
        cotangents,
        images,
        kernels,
        None,
        tuple(layer.strides),
        [before if is_even else 0 for before, _ in pairs],
        tuple(layer.dilation_rate),
        False,
        [0] * len(pairs),
        batch_size * layer.groups,
        (False, True, False),
    )
    return gradients.reshape(batch_size, *shape)


def map_units(function: Function, values: list[Tensor], may_loop: bool = True) -> list[Tensor]:
    """Override: `torch.func.vmap`, or one unit at a time."""
    try:
        with warnings.catch_warnings():
            # PyTorch warns of operations without a rule for batches, which it loops over.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            return list(torch.func.vmap(function, randomness="different")(values))
    except RuntimeError:  # Some functions branch on values, and not every operation has a `vmap`.
        if not may_loop:
            raise
        rows = [function([value[row] for value in values]) for row in range(len(values[0]))]
        return [torch.stack(parts) for parts in zip(*rows, strict=True)]


def masked(kept: Tensor, values: Tensor) -> Tensor:
    """Override: on a CPU, copies nothing if all rows are kept, as in nearly every step."""
    if kept.device.type == "cpu" and bool(kept.all()):
        return values
    return contract.masked(kept, values)


def sum_of_rows(values: Tensor, places: Tensor, num_rows: int) -> Tensor:
    """Override: without the copy that Keras makes."""
    table = values.new_zeros((num_rows, *values.shape[1:]))
    return table.index_add_(0, places, values)


def _detach(value: Any) -> Any:
    """Return a tensor without its graph, and anything else unchanged."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def _gradients(loss: Tensor, by: list[Tensor]) -> list[Tensor]:
    """Return the gradients of a loss, zeros if unconnected."""
    if not by or not loss.requires_grad:
        return [torch.zeros_like(value) for value in by]
    return list(torch.autograd.grad(loss, by, materialize_grads=True))


def fast_call(layer: keras.Layer, in_loop: bool) -> Callable[..., Tensor] | None:
    """Override: for Keras's own classes, if nothing of the instance was replaced."""
    is_on_cpu = ops.convert_to_tensor(0.0).device.type == "cpu"
    if "call" in vars(layer) or layer.compute_dtype != "float32" or not is_on_cpu:
        return None
    if type(layer) is keras.layers.GroupNormalization:
        return functools.partial(_group_normalized, layer)
    if type(layer) is keras.layers.Conv2D and "convolution_op" not in vars(layer):
        is_plain = layer.padding == "valid" or layer.strides == (1, 1)
        is_adapted = layer.lora_enabled or layer.quantization_mode
        if is_plain and not is_adapted and layer.data_format == "channels_last":
            return functools.partial(_convolved, layer)
        return None
    is_plain = type(layer) in _POOLS and layer.padding == "valid"
    if is_plain and layer.data_format == "channels_last":
        return functools.partial(_pooled, layer)
    return None


def _pooled(layer: Any, inputs: Tensor) -> Tensor:
    """Return the pooled images, without a copy."""
    images = inputs.permute(_CHANNELS_FIRST)
    return _POOLS[type(layer)](images, layer.pool_size, layer.strides).permute(_CHANNELS_LAST)


def _convolved(layer: Any, inputs: Tensor) -> Tensor:
    """Return the convolution of the images, with channels last in memory."""
    if inputs.ndim != 4 or inputs.dtype != torch.float32:
        return type(layer).call(layer, inputs)
    images, kernel = (
        value.permute(axes).contiguous(memory_format=torch.channels_last)
        for value, axes in (
            (inputs, _CHANNELS_FIRST),
            (ops.convert_to_tensor(layer.kernel), (3, 2, 0, 1)),
        )
    )
    bias = ops.convert_to_tensor(layer.bias) if layer.use_bias else None
    outputs = torch.nn.functional.conv2d(
        images, kernel, bias, layer.strides, layer.padding, layer.dilation_rate, layer.groups
    ).permute(_CHANNELS_LAST)
    return outputs if layer.activation is None else layer.activation(outputs)


def _group_normalized(layer: Any, inputs: Tensor) -> Tensor:
    """Return the normalized images, by one operation instead of a dozen."""
    is_image = inputs.ndim == 4 and inputs.dtype == torch.float32 and inputs.numel() > 0
    if not is_image or layer.axis not in (-1, 3):
        return type(layer).call(layer, inputs)
    weights = [
        None if each is None else ops.convert_to_tensor(each) for each in (layer.gamma, layer.beta)
    ]
    images = inputs.permute(_CHANNELS_FIRST)
    normalized = torch.nn.functional.group_norm(images, layer.groups, *weights, layer.epsilon)
    return normalized.permute(_CHANNELS_LAST)
