"""A faster `call` for convolutions inside of a loop, on JAX and a CPU.

Inside of a `while_loop`, XLA computes the gradients of a convolution 25 to 30 times slower than
outside, but a matrix product as fast as ever. So a convolution is computed as the product of its
windows with the kernel; the windows are shifted slices of the images, one for each element of the
kernel. A federated round with the CNN of the benchmark takes 759 instead of 1,642 ms (process
time of one core, 20 clients of 30 examples).
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from keras import ops

Tensor = Any


def fast_call(layer: keras.layers.Layer, in_loop: bool) -> Callable[..., Tensor] | None:
    """Override: for Keras's own classes in a loop, if nothing of the instance was replaced."""
    if not in_loop or jax.default_backend() != "cpu" or layer.compute_dtype != "float32":
        return None
    is_own = type(layer) in (keras.layers.Conv1D, keras.layers.Conv2D)
    if not is_own or {"call", "convolution_op"} & set(vars(layer)):
        return None
    is_plain = layer.data_format == "channels_last" and layer.padding in ("valid", "same")
    if not is_plain or layer.groups != 1 or getattr(layer, "quantization_mode", None):
        return None

    def call(inputs: Tensor) -> Tensor:
        kernel = ops.convert_to_tensor(layer.kernel)
        outputs = convolution(inputs, kernel, layer.strides, layer.dilation_rate, layer.padding)
        if layer.use_bias:
            outputs = outputs + ops.convert_to_tensor(layer.bias)
        return outputs if layer.activation is None else layer.activation(outputs)

    return call


def convolution(
    inputs: Tensor,
    kernel: Tensor,
    strides: Sequence[int],
    dilation_rate: Sequence[int],
    padding: str,
) -> Tensor:
    """Return a convolution, computed as a product of windows.

    Args:
        inputs: Tensor of shape `(batch_size, *spatial, channels)`.
        kernel: Tensor of shape `(*kernel_size, channels, filters)`.
        strides: Steps between two windows.
        dilation_rate: Steps between two elements of the kernel.
        padding: `"valid"` or `"same"`.

    Returns:
        Tensor of shape `(batch_size, *windows, filters)`.
    """
    sizes, kernel_size = inputs.shape[1:-1], kernel.shape[:-2]
    spans = [
        rate * (elements - 1) + 1 for rate, elements in zip(dilation_rate, kernel_size, strict=True)
    ]
    pairs = jax.lax.padtype_to_pads(sizes, spans, strides, padding.upper())
    inputs = jnp.pad(inputs, [(0, 0), *pairs, (0, 0)])
    windows = [
        (size - span) // stride + 1
        for size, span, stride in zip(inputs.shape[1:-1], spans, strides, strict=True)
    ]

    def slice_at(element: tuple[int, ...]) -> Tensor:
        cut = [slice(None)]
        for place, rate, stride, number in zip(
            element, dilation_rate, strides, windows, strict=True
        ):
            start = place * rate
            cut.append(slice(start, start + (number - 1) * stride + 1, stride))
        return inputs[tuple(cut)]

    patches = jnp.concatenate([slice_at(place) for place in np.ndindex(*kernel_size)], axis=-1)
    flat = patches.reshape(-1, patches.shape[-1])
    products = flat @ kernel.reshape(-1, kernel.shape[-1])
    return products.reshape(*patches.shape[: 1 + len(windows)], kernel.shape[-1])
