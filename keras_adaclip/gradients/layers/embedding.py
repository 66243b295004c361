"""`Embedding`: an example touches only the rows that it looks up, so no dense gradient is made."""

import keras
from keras import ops

from keras_adaclip.gradients.forms import Lookup
from keras_adaclip.gradients.layers.rule import Gradients, LayerRule, TappedCall, register


@register(keras.layers.Embedding)
class EmbeddingRule(LayerRule):
    """A Gram matrix of equal ids for the norm, a segment sum for the weighted sum."""

    def gradients(self, call: TappedCall, variables: list[keras.Variable]) -> Gradients:
        """Return the gradient of the table, for ids of shape `(batch_size, ...)`."""
        (table,) = variables
        batch_size = ops.shape(call.inputs)[0]
        ids = ops.reshape(call.inputs, (batch_size, -1))
        cotangents = ops.reshape(call.cotangents[0], (batch_size, -1, table.shape[1]))
        return [Lookup(ids, cotangents, table.shape)]
