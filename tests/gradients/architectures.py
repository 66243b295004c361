"""Small models with shared, tied, nested and masked layers, and several inputs or outputs."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.gradients.support import built, with_other_weights


@dataclass
class Architecture:
    """Input shapes (an int: that many ids below 6), a function that makes the model, its rules.

    Some backends cannot run all layers on a CPU.
    """

    shapes: Any
    make: Any
    rules: Any
    not_on: tuple[str, ...] = ()

    def data(self, rows):
        """The model, inputs, and targets of the model's output shapes."""
        rng = np.random.default_rng(3)
        model = self.make()

        def inputs(shape):
            if isinstance(shape, int):
                return rng.integers(0, 6, (rows, shape)).astype("int32")
            return rng.normal(size=(rows, *shape)).astype("float32")

        many = isinstance(self.shapes, list)
        x = [inputs(shape) for shape in self.shapes] if many else inputs(self.shapes)
        y = keras.tree.map_structure(
            lambda value: rng.normal(size=tuple(value.shape)).astype("float32"), model(x)
        )
        return model, x, y

    def case(self):
        """The model compiled and with other weights, and three examples."""
        model, x, y = self.data(rows=3)
        several = {"loss": ["mse", "mae"], "loss_weights": [0.3, 2.0]}
        options = several if isinstance(self.shapes, list) else {}
        return with_other_weights(built(model, x, y, **options)), x, y


def stack(*made, shape, dtype="float32"):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *made])


class Scale(layers.Layer):
    """A custom layer with weights of its own and a layer inside."""

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones")
        self.inner = layers.Dense(input_shape[-1])
        self.inner.build(input_shape)

    def call(self, inputs):
        return self.inner(inputs * self.scale) * self.scale


class Shared(layers.Layer):
    """Has a weight, and an argument that all examples share."""

    def build(self, inputs_shape, shared_shape):
        self.scale = self.add_weight(shape=(3,), initializer="ones")

    def call(self, inputs, shared):
        return ops.matmul(inputs * self.scale, shared)


class OwnWeight(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3, activation="tanh")
        self.shift = self.add_weight(shape=(3,), initializer="ones", name="shift")

    def call(self, inputs, training=None):
        return self.dense(inputs) * self.shift


class Reversed(keras.Model):
    """Two lookups of the same ids, and a matrix product with the table or with a second kernel."""

    def __init__(self, **options):
        super().__init__()
        self.embedding = layers.ReversibleEmbedding(20, 4, **options)

    def call(self, inputs):
        hidden = ops.tanh(self.embedding(inputs)) + self.embedding(ops.flip(inputs, axis=1))
        return self.embedding(hidden, reverse=True)


def functional(shape, function, dtype="float32"):
    inputs = keras.Input(shape, dtype=dtype)
    return keras.Model(inputs, function(inputs))


def twice(layer, between=ops.tanh):
    return lambda inputs: layer(between(layer(inputs)))


def masked_mean():
    made = [layers.Embedding(6, 3, mask_zero=True), layers.GlobalAveragePooling1D()]
    return stack(*made, layers.Dense(2), shape=(7,), dtype="int32")


def shared_embedding():
    layer = layers.Embedding(6, 2)
    return functional((3,), lambda ids: layer(ids) * layer(ids[:, :1]), "int32")


class Positions(layers.Layer):
    """Adds an embedding of the places in a text to the tokens, after a change."""

    def __init__(self, numbers, change=lambda value: value, then=None):
        super().__init__()
        self.numbers, self.change, self.then = numbers, change, then
        self.tokens, self.places = layers.Embedding(6, 3), layers.Embedding(7, 3)

    def call(self, inputs):
        places = self.change(self.places(self.numbers))
        return self.tokens(inputs) + (places if self.then is None else self.then(places))


def positions(*arguments):
    makes = [Positions(*arguments), layers.Dense(4, activation="tanh")]
    return stack(*makes, layers.GlobalAveragePooling1D(), shape=(7,), dtype="int32")


def reshaped_rows():
    def call(inputs):
        rows = layers.Dense(4, activation="tanh")(ops.reshape(inputs, (-1, 3)))
        return layers.Dense(2)(ops.reshape(rows, (-1, 5, 4)))

    return functional((5, 3), call)


def one_filter():
    """Kernels with one filter, which PyTorch cannot take of a single image as Keras makes them."""
    makes = [layers.Conv2D(1, 3), layers.Conv2DTranspose(2, 2), layers.Conv2D(1, 2)]
    return stack(*makes, layers.Flatten(), shape=(5, 5, 2))


def unused():
    """A layer of which the loss takes nothing."""

    def call(inputs):
        return ops.where(inputs[:, :2] > 1e6, layers.Dense(2)(inputs), layers.Dense(2)(inputs))

    return functional((3,), call)


def branches():
    left, right = keras.Input((3,), name="left"), keras.Input((2, 4), name="right")
    joined = layers.Concatenate()([layers.Dense(3)(left), layers.Flatten()(layers.Dense(2)(right))])
    return keras.Model(
        [left, right], [layers.Dense(2, name="one")(joined), layers.Dense(1, name="two")(joined)]
    )


def nested():
    inner = stack(layers.Dense(4, activation="tanh"), layers.LayerNormalization(), shape=(3,))
    middle = functional((3,), lambda inputs: layers.Dense(3)(inner(inputs)))
    return functional((3,), lambda inputs: layers.Dense(2)(middle(middle(inputs))))


def masked_attention():
    ids = keras.Input((4,), dtype="int32")
    embedded = layers.Embedding(6, 3, mask_zero=True)(ids)
    attended = layers.MultiHeadAttention(2, 3)(embedded, embedded)
    return keras.Model(ids, layers.GlobalAveragePooling1D()(attended))


def recurrent():
    def call(inputs):
        makes = [
            layers.Bidirectional(layers.SimpleRNN(2, unroll=True)),
            layers.RNN([layers.SimpleRNNCell(2), layers.GRUCell(2)], unroll=True),
            layers.TimeDistributed(layers.Dense(3)),
        ]
        outputs = [layers.Flatten()(make(inputs)) for make in makes]
        return layers.Dense(2)(layers.Concatenate()(outputs))

    return functional((4, 3), call)


ARCHITECTURES = {
    "convolution_groups": Architecture(
        (4, 4, 2),
        lambda: stack(
            layers.Conv2D(4, 3, groups=2), layers.Flatten(), layers.Dense(2), shape=(4, 4, 2)
        ),
        ["Convolution", "Dense"],
    ),
    "embedding_masked_mean": Architecture(7, masked_mean, ["Embedding", "Dense"]),
    "shared_dense": Architecture((3,), lambda: functional((3,), twice(layers.Dense(3))), ["Dense"]),
    "shared_embedding": Architecture(3, shared_embedding, ["Embedding"]),
    "shared_general": Architecture(
        (2, 3), lambda: functional((2, 3), twice(Scale())), ["general", "Dense"]
    ),
    "reversible_embedding": Architecture(
        4, lambda: Reversed(tie_weights=True, logit_soft_cap=2.0), ["ReversibleEmbedding"]
    ),
    "shared_argument": Architecture(
        (3,),
        lambda: functional((3,), lambda x: layers.Dense(2)(Shared()(x, shared=ops.eye(3) * 2.0))),
        ["general", "Dense"],
    ),
    "weight_of_the_model": Architecture((4,), OwnWeight, ["general", "Dense"]),
    "positions": Architecture(
        7, lambda: positions(ops.arange(7)), ["Embedding", "Embedding", "Dense"]
    ),
    "positions_with_an_axis_for_rows": Architecture(
        7, lambda: positions(ops.arange(7)[None]), ["Embedding", "Embedding", "Dense"]
    ),
    "positions_scaled": Architecture(
        7,
        lambda: positions(ops.arange(7), lambda value: 2.0 * ops.tanh(value)),
        ["Embedding", "Embedding", "Dense"],
    ),
    "layer_on_positions": Architecture(
        7,
        lambda: positions(ops.arange(7), ops.tanh, layers.Dense(3)),
        ["Embedding", "Embedding", "Dense", "Dense"],
    ),
    "mean_of_positions": Architecture(
        7, lambda: positions(ops.arange(7), lambda value: ops.mean(value, axis=0)), "whole"
    ),
    "reshaped_rows": Architecture((5, 3), reshaped_rows, "whole"),
    "one_filter": Architecture(
        (5, 5, 2), one_filter, ["Convolution", "TransposedConvolution", "Convolution"]
    ),
    "unused": Architecture((3,), unused, ["Dense", "Dense"]),
    "nested": Architecture((3,), nested, ["Dense", "Normalization", "Dense", "Dense"]),
    "inputs_and_outputs": Architecture([(3,), (2, 4)], branches, ["Dense"] * 4),
    "attention_masked": Architecture(4, masked_attention, ["Embedding"] + ["EinsumDense"] * 4),
    "recurrent": Architecture(
        (4, 3), recurrent, ["SimpleRNN", "SimpleRNN", "general", "general", "Dense"]
    ),
}
