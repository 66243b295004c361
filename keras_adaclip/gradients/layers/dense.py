"""`Dense`: `y = activation(x W + b)`, and with LoRA `W + s A B` in the place of `W`.

The gradient of W is a sum of outer products (Goodfellow 2015, "Efficient per-example gradient
computations"). Those of A and B are too, of smaller ones: of `x` and `s c B^T`, and of `s x A` and
`c`, with c the cotangents (Hu et al. 2022, "LoRA: Low-rank adaptation of large language models").
"""

from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients.forms import Materialized, OuterProduct, PerExampleGradient
from keras_adaclip.gradients.layers.low_rank import times, times_transposed
from keras_adaclip.gradients.layers.rule import LayerRule, TappedCall, register

Tensor = Any


@register(keras.layers.Dense)
class DenseRule(LayerRule):
    """Kernel: outer products over the positions. Bias: the cotangents summed over them."""

    taps_activation = True
    covers_low_rank = True

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradients of kernel and bias, for inputs of shape `(batch_size, ..., units)`."""
        inputs, cotangents = _positions(call.inputs), _positions(call.cotangents[0])
        layer = call.layer

        def gradient(variable: keras.Variable) -> PerExampleGradient:
            if variable is layer.bias:
                return Materialized(ops.sum(ops.cast(cotangents, "float32"), axis=1))
            if not layer.lora_enabled:
                return OuterProduct(inputs, cotangents, variable.shape)
            factors = inputs, cotangents
            if variable is layer.lora_kernel_a:
                factors = inputs, times_transposed(cotangents, layer.lora_kernel_b, layer)
            elif variable is layer.lora_kernel_b:
                factors = times(inputs, layer.lora_kernel_a, layer), cotangents
            return OuterProduct(*factors, variable.shape)

        return [gradient(variable) for variable in variables]


def _positions(value: Tensor) -> Tensor:
    """Reshapes `(batch_size, ..., size)` to `(batch_size, positions, size)`."""
    if len(value.shape) == 2:
        return ops.expand_dims(value, 1)
    if len(value.shape) == 3:
        return value
    return ops.reshape(value, (ops.shape(value)[0], -1, value.shape[-1]))
