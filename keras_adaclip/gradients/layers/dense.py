"""`Dense`: `y = activation(x W + b)`, and with LoRA `W + s A B` instead of `W`.

The gradient of W is a sum of outer products (Goodfellow 2015, "Efficient per-example gradient
computations"). The gradients of A and B are smaller ones: of `x` and `s c B^T`, and of `s x A` and
`c`, where c are the cotangents (Hu et al. 2022, "LoRA: Low-rank adaptation of large language
models").
"""

from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients.forms import Materialized, OuterProduct, PerExampleGradient
from keras_adaclip.gradients.layers.rule import Gradients, LayerRule, TappedCall, register

Tensor = Any


@register(keras.layers.Dense)
class DenseRule(LayerRule):
    """Kernel: outer products over the positions. Bias: the cotangents summed over them."""

    taps_activation = True
    covers_low_rank = True

    def gradients(self, call: TappedCall, variables: list[keras.Variable]) -> Gradients:
        """Return the gradients, for inputs of shape `(batch_size, ..., units)`."""
        layer, scale = call.layer, lora_scale(call.layer)
        inputs, cotangents = _positions(call.inputs), _positions(call.cotangents[0])

        def gradient(variable: keras.Variable) -> PerExampleGradient:
            """Return the gradient of one variable."""
            if variable is layer.bias:
                return Materialized(ops.sum(cotangents, axis=1))
            if layer.lora_enabled and variable is layer.lora_kernel_a:
                second = ops.transpose(ops.cast(layer.lora_kernel_b.value, "float32"))
                return OuterProduct(inputs, scale * ops.matmul(cotangents, second), variable.shape)
            if layer.lora_enabled and variable is layer.lora_kernel_b:
                first = ops.cast(layer.lora_kernel_a.value, "float32")
                return OuterProduct(scale * ops.matmul(inputs, first), cotangents, variable.shape)
            return OuterProduct(inputs, cotangents, variable.shape)

        return [gradient(variable) for variable in variables]


def lora_scale(layer: Any) -> float:
    """Return the factor s of the product of LoRA's two matrices, 1 without LoRA."""
    return float(layer.lora_alpha) / float(layer.lora_rank) if layer.lora_enabled else 1.0


def _positions(value: Tensor) -> Tensor:
    """Reshape `(batch_size, ..., size)` to `(batch_size, positions, size)`, as float32."""
    value = ops.cast(value, "float32")
    if len(value.shape) == 2:
        return ops.expand_dims(value, 1)
    if len(value.shape) == 3:
        return value
    return ops.reshape(value, (ops.shape(value)[0], -1, value.shape[-1]))
