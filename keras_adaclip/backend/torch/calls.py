"""Faster calls of Keras layers, on PyTorch and a CPU.

Keras copies images with channels last to an order with channels first, and for convolutions back
again. PyTorch needs no copy: permuted axes tell it where the channels are. Forward and backward,
in milliseconds of one core, with Keras's call in parentheses: the first pooling of the benchmark's
row `cnn-256` takes 2.5 (17.3) of a step of 34; a group normalization of the row `resnet` 8 (31) and
a convolution 13 (18), each of about 20 in a step of 480.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import torch
from keras import ops

Tensor = Any

# `(batch_size, height, width, channels)` to `(batch_size, channels, height, width)`, and back.
_CHANNELS_FIRST, _CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def fast_call(layer: keras.Layer, in_loop: bool) -> Callable[..., Tensor] | None:
    """Override: for Keras's own classes, if nothing of the instance was replaced."""
    make = _MAKERS.get(type(layer))
    if make is None or {"call", "convolution_op"} & set(vars(layer)):
        return None
    if layer.compute_dtype != "float32" or ops.convert_to_tensor(0.0).device.type != "cpu":
        return None
    return make(layer)


def _pooling(pool: Callable[..., Tensor], layer: keras.Layer) -> Callable[..., Any] | None:
    """Return a call without copies for a pooling layer that does not pad."""
    if (layer.data_format, layer.padding) != ("channels_last", "valid"):
        return None

    def call(inputs: Tensor) -> Tensor:
        """Return the pooled images."""
        pooled = pool(inputs.permute(_CHANNELS_FIRST), layer.pool_size, layer.strides)
        return pooled.permute(_CHANNELS_LAST)

    return call


def _convolution(layer: keras.Layer) -> Callable[..., Any] | None:
    """Return a call that keeps channels last in memory."""
    if layer.data_format != "channels_last" or _is_adapted(layer):
        return None

    def call(inputs: Tensor) -> Tensor:
        """Return the convolution of the images."""
        if inputs.ndim != 4 or inputs.dtype != torch.float32:
            return type(layer).call(layer, inputs)
        images = _in_order(inputs.permute(_CHANNELS_FIRST))
        padding = _padding(layer, images.shape[2:]) if layer.padding == "same" else [0, 0, 0, 0]
        is_even = padding[::2] == padding[1::2]
        if not is_even:  # PyTorch's convolutions pad both sides equally.
            images = torch.nn.functional.pad(images, padding)
        outputs = torch.nn.functional.conv2d(
            images,
            _in_order(_value(layer.kernel).permute(3, 2, 0, 1)),
            _value(layer.bias) if layer.use_bias else None,
            layer.strides,
            padding[::-2] if is_even else 0,
            layer.dilation_rate,
            layer.groups,
        ).permute(_CHANNELS_LAST)
        return outputs if layer.activation is None else layer.activation(outputs)

    return call


def _padding(layer: keras.Layer, sizes: Sequence[int]) -> list[int]:
    """Return the zeros before and after each axis with padding "same", for the last axis first."""
    padding: list[int] = []
    for size, elements, stride, rate in zip(
        sizes, layer.kernel_size, layer.strides, layer.dilation_rate, strict=True
    ):
        missing = max((-(-size // stride) - 1) * stride + (elements - 1) * rate + 1 - size, 0)
        padding = [missing // 2, missing - missing // 2, *padding]
    return padding


def _group_normalization(layer: keras.Layer) -> Callable[..., Any] | None:
    """Return a call that is one operation instead of a dozen."""

    def call(inputs: Tensor) -> Tensor:
        """Return the normalized images."""
        is_image = inputs.ndim == 4 and inputs.dtype == torch.float32 and inputs.numel() > 0
        if not is_image or layer.axis not in (-1, 3):
            return type(layer).call(layer, inputs)
        return torch.nn.functional.group_norm(
            inputs.permute(_CHANNELS_FIRST),
            layer.groups,
            _value(layer.gamma) if layer.scale else None,
            _value(layer.beta) if layer.center else None,
            layer.epsilon,
        ).permute(_CHANNELS_LAST)

    return call


def _is_adapted(layer: keras.Layer) -> bool:
    """Return whether the layer is quantized or has LoRA weights."""
    return bool(getattr(layer, "lora_enabled", False) or getattr(layer, "quantization_mode", None))


def _value(variable: keras.Variable) -> Tensor:
    """Return the value of a variable, inside of a `StatelessScope` that of the scope."""
    return ops.convert_to_tensor(variable)


def _in_order(images: Tensor) -> Tensor:
    """Return the images in memory with channels last."""
    return images.contiguous(memory_format=torch.channels_last)


_MAKERS: dict[type, Callable[[Any], Callable[..., Any] | None]] = {
    keras.layers.MaxPooling2D: functools.partial(_pooling, torch.nn.functional.max_pool2d),
    keras.layers.AveragePooling2D: functools.partial(_pooling, torch.nn.functional.avg_pool2d),
    keras.layers.Conv2D: _convolution,
    keras.layers.GroupNormalization: _group_normalization,
}
