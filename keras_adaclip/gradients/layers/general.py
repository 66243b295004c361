"""The general rule: `vmap` of a layer's own vector-Jacobian product.

It is exact for any layer that treats examples independently.
"""

from collections.abc import Sequence
from typing import Any

import keras

from keras_adaclip import backend
from keras_adaclip.gradients.forms import Materialized
from keras_adaclip.gradients.layers.rule import Gradients, LayerRule, TappedCall, is_differentiable

Tensor = Any


class GeneralRule(LayerRule):
    """Runs the layer once more on each example alone and differentiates it by its weights."""

    def gradients(self, call: TappedCall, variables: list[keras.Variable]) -> Gradients:
        """Return the gradients of the layer's variables, written out."""
        layer = call.layer
        flat = keras.tree.flatten((call.args, call.kwargs))
        numbers = [
            number
            for number, value in enumerate(flat)
            if keras.ops.is_tensor(value) and (call.batched is None or number in call.batched)
        ]

        def run(values: Sequence[Tensor], examples: Sequence[Tensor]) -> list[Tensor]:
            """Return the layer's differentiable outputs with these weights and arguments."""
            arguments = list(flat)
            for number, example in zip(numbers, examples, strict=True):
                arguments[number] = example
            args, kwargs = keras.tree.pack_sequence_as((call.args, call.kwargs), arguments)
            mapping = zip(variables, values, strict=True)
            with keras.StatelessScope([*constants, *mapping]):
                outputs = layer(*args, **kwargs)
            return [value for value in keras.tree.flatten(outputs) if is_differentiable(value)]

        constants = [(variable, variable.value) for variable in layer.variables]
        gradients = backend.per_example_layer_gradients(
            run,
            [variable.value for variable in variables],
            [flat[number] for number in numbers],
            call.cotangents,
        )
        return [Materialized(gradient) for gradient in gradients]
