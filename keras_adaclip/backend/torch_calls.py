"""What stands in for a Keras layer's `call` on PyTorch and a CPU: the same numbers in less time.

Keras computes on images whose channels lie last by copying them to an order in which they lie
first, and for convolutions back again. PyTorch is at its fastest where nothing is copied: a
permutation of the axes alone tells it where the channels are.
"""

import functools
from collections.abc import Callable
from typing import Any

import keras
import torch
from keras import ops

from keras_adaclip.backend.torch_convolutions import padded, paddings

Tensor = Any

# `(batch_size, height, width, channels)` to `(batch_size, channels, height, width)`, and back.
_CHANNELS_FIRST, _CHANNELS_LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def quicker_call(layer: keras.layers.Layer) -> Callable[[Tensor], Tensor] | None:
    """What does the same as the `call` of `layer`; None where that is as good.

    Only of Keras's own classes, and where nothing of the instance was replaced: what a user has
    put in its place stays.
    """
    make = _MAKERS.get(type(layer))
    if make is None or {"call", "convolution_op"} & set(vars(layer)):
        return None
    if layer.compute_dtype != "float32" or ops.convert_to_tensor(0.0).device.type != "cpu":
        return None
    return make(layer)


def _pooling(pool: Callable[..., Tensor], layer: keras.layers.Layer) -> Callable[..., Any] | None:
    """Neither of the two pads."""
    if (layer.data_format, layer.padding) != ("channels_last", "valid"):
        return None

    def call(inputs: Tensor) -> Tensor:
        pooled = pool(inputs.permute(_CHANNELS_FIRST), layer.pool_size, layer.strides)
        return pooled.permute(_CHANNELS_LAST)

    return call


def _convolution(layer: keras.layers.Layer) -> Callable[..., Any] | None:
    """The operation that Keras arrives at, with bias, and the layer's activation."""
    is_adapted = getattr(layer, "lora_enabled", False) or getattr(layer, "quantization_mode", None)
    if layer.data_format != "channels_last" or is_adapted:
        return None

    def call(inputs: Tensor) -> Tensor:
        if inputs.ndim != 4 or inputs.dtype != torch.float32:
            return type(layer).call(layer, inputs)
        images = inputs.permute(_CHANNELS_FIRST)
        kernel = _value(layer.kernel).permute(3, 2, 0, 1)
        pairs = paddings(
            layer.padding, images.shape[2:], kernel.shape[2:], layer.strides, layer.dilation_rate
        )
        images, padding = padded(images, pairs)
        outputs = torch.nn.functional.conv2d(
            _in_order(images),
            _in_order(kernel),
            _value(layer.bias) if layer.use_bias else None,
            layer.strides,
            padding,
            layer.dilation_rate,
            layer.groups,
        ).permute(_CHANNELS_LAST)
        return outputs if layer.activation is None else layer.activation(outputs)

    return call


def _group_normalization(layer: keras.layers.Layer) -> Callable[..., Any] | None:
    """One operation in the place of a dozen, with one of its own for the way back."""

    def call(inputs: Tensor) -> Tensor:
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


def _value(variable: keras.Variable) -> Tensor:
    """The value that counts here: in a scope, that of the scope."""
    return ops.convert_to_tensor(variable)


def _in_order(images: Tensor) -> Tensor:
    """In the order of memory in which channels lie last."""
    return images.contiguous(memory_format=torch.channels_last)


_MAKERS: dict[type, Callable[[Any], Callable[..., Any] | None]] = {
    keras.layers.MaxPooling2D: functools.partial(_pooling, torch.nn.functional.max_pool2d),
    keras.layers.AveragePooling2D: functools.partial(_pooling, torch.nn.functional.avg_pool2d),
    keras.layers.Conv2D: _convolution,
    keras.layers.GroupNormalization: _group_normalization,
}
