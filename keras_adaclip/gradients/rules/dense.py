"""`Dense`: `y = activation(x W + b)`.

The gradient of W is a sum of outer products (Goodfellow 2015, "Efficient per-example gradient
computations").
"""

from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients.factored import Materialized, OuterProduct, PerExampleGradient
from keras_adaclip.gradients.rules.rule import LayerRule, TappedCall, register

Tensor = Any


@register(keras.layers.Dense)
class DenseRule(LayerRule):
    """Kernel: outer products over the positions. Bias: the cotangents summed over them."""

    taps_activation = True

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradients of kernel and bias, for inputs of shape `(batch_size, ..., units)`."""
        inputs, cotangents = _positions(call.inputs), _positions(call.cotangents[0])
        layer = call.layer
        return [
            OuterProduct(inputs, cotangents, variable.shape)
            if variable is not layer.bias
            else Materialized(ops.sum(ops.cast(cotangents, "float32"), axis=1))
            for variable in variables
        ]


def _positions(value: Tensor) -> Tensor:
    """Reshapes `(batch_size, ..., size)` to `(batch_size, positions, size)`."""
    if len(value.shape) == 2:
        return ops.expand_dims(value, 1)
    if len(value.shape) == 3:
        return value
    return ops.reshape(value, (ops.shape(value)[0], -1, value.shape[-1]))
