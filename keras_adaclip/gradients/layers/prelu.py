"""`PReLU`: `y = max(x, 0) - alpha * max(-x, 0)`."""

import keras
from keras import ops

from keras_adaclip.gradients.forms import Materialized, PerExampleGradient
from keras_adaclip.gradients.layers.broadcasting import summed_to
from keras_adaclip.gradients.layers.rule import LayerRule, TappedCall, register


@register(keras.layers.PReLU)
class PReLURule(LayerRule):
    """Alpha: the negative part of the input times the cotangent, summed over `shared_axes`."""

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradient of the slopes."""
        negative = ops.minimum(ops.cast(call.inputs, "float32"), 0.0)
        products = ops.cast(call.cotangents[0], "float32") * negative
        return [Materialized(summed_to(products, variable.shape)) for variable in variables]
