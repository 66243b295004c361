"""`Embedding` and `ReversibleEmbedding`: an example touches only the rows that it looks up.

So no dense gradient is made. A reversible embedding also multiplies with its table: the two uses
of one weight add up before the norm (see `LookupAndProduct`).
"""

from typing import Any

import keras
from keras import ops

from keras_adaclip.gradients.forms import Lookup, OuterProduct, PerExampleGradient
from keras_adaclip.gradients.layers.low_rank import in_float32, scale_of, times_transposed
from keras_adaclip.gradients.layers.rule import LayerRule, TappedCall, register

Tensor = Any


@register(keras.layers.Embedding)
class EmbeddingRule(LayerRule):
    """Gram of equal ids for the norm, a segment sum for the weighted sum.

    With LoRA a lookup in a table of few columns, and outer products with the rows found there.
    """

    covers_low_rank = True

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient]:
        """The gradient of the table, for ids of shape `(batch_size, ...)`."""
        layer = call.layer
        ids, cotangents = _flat(call, layer.output_dim)

        def gradient(variable: keras.Variable) -> PerExampleGradient:
            if layer.lora_enabled and variable is layer.lora_embeddings_a:
                narrow = times_transposed(cotangents, layer.lora_embeddings_b, layer)
                return Lookup(ids, narrow, variable.shape)
            if layer.lora_enabled and variable is layer.lora_embeddings_b:
                rows = ops.take(in_float32(layer.lora_embeddings_a), ops.cast(ids, "int32"), axis=0)
                return OuterProduct(scale_of(layer) * rows, cotangents, variable.shape)
            return Lookup(ids, cotangents, variable.shape)

        return [gradient(variable) for variable in variables]


class ReversibleEmbeddingRule(LayerRule):
    """A lookup, or where `reverse=True` a matrix product with the table or its own kernel."""

    def gradients(
        self, call: TappedCall, variables: list[keras.Variable]
    ) -> list[PerExampleGradient | None]:
        """The gradient of the weight that this call used, None for the other one."""
        layer = call.layer
        is_reverse = call.args[1] if len(call.args) > 1 else call.kwargs.get("reverse", False)
        table = layer.embeddings
        if not is_reverse:
            return [_lookup(call, v) if v is table else None for v in variables]
        cotangents = ops.cast(call.cotangents[0], "float32")
        if layer.logit_soft_cap is not None:
            capped = ops.cast(layer(*call.args, **call.kwargs), "float32")
            cotangents = cotangents * (1.0 - ops.square(capped / layer.logit_soft_cap))
        batch_size = ops.shape(cotangents)[0]
        cotangents = ops.reshape(cotangents, (batch_size, -1, layer.input_dim))
        inputs = ops.reshape(call.inputs, (batch_size, -1, layer.output_dim))
        if layer.tie_weights:
            product = OuterProduct(cotangents, inputs, table.shape)
        else:
            product = OuterProduct(inputs, cotangents, layer.reverse_embeddings.shape)
        return [product if (v is table) == layer.tie_weights else None for v in variables]


# Keras 3.13 brought it.
if hasattr(keras.layers, "ReversibleEmbedding"):
    register(keras.layers.ReversibleEmbedding)(ReversibleEmbeddingRule)


def _lookup(call: TappedCall, table: keras.Variable) -> Lookup:
    ids, cotangents = _flat(call, table.shape[1])
    return Lookup(ids, cotangents, table.shape)


def _flat(call: TappedCall, size: int) -> tuple[Tensor, Tensor]:
    """Ids and cotangents, of shapes `(batch_size, positions)` and `(..., positions, size)`."""
    ids, cotangents = call.inputs, call.cotangents[0]
    batch_size = ops.shape(ids)[0]
    ids = ops.reshape(ids, (batch_size, -1))
    return ids, ops.reshape(cotangents, (batch_size, -1, size))
