"""`Embedding`: an example touches only the rows that it looks up, so no dense gradient is made."""

import keras
from keras import ops

from keras_adaclip.gradients.factored import Lookup, PerExampleGradient
from keras_adaclip.gradients.rules.rule import LayerRule, TappedCall, register


@register(keras.layers.Embedding)
class EmbeddingRule(LayerRule):
    """Gram of equal ids for the norm, a segment sum for the weighted sum."""

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradient of the table, for ids of shape `(batch_size, ...)`."""
        (table,) = variables
        ids, cotangents = call.inputs, call.cotangents[0]
        batch_size = ops.shape(ids)[0]
        ids = ops.reshape(ids, (batch_size, -1))
        cotangents = ops.reshape(cotangents, (batch_size, -1, table.shape[1]))
        return [Lookup(ids, cotangents, table.shape)]
