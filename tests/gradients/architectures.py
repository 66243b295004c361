"""Small models, one for each way in which a layer's gradients can be taken."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import layers, ops


@dataclass
class Architecture:
    """Input shapes (an int: as many ids below 6), a function that makes the model, its ways."""

    shapes: Any
    build: Any
    ways: Any
    not_on: tuple[str, ...] = ()

    def data(self, rows):
        """Inputs, and targets of the model's output shapes."""
        rng = np.random.default_rng(3)
        model = self.model()

        def inputs(shape):
            if isinstance(shape, int):
                return rng.integers(0, 6, (rows, shape)).astype("int32")
            return rng.normal(size=(rows, *shape)).astype("float32")

        x = [inputs(shape) for shape in self.shapes] if isinstance(self.shapes, list) else None
        x = inputs(self.shapes) if x is None else x
        outputs = model(x)
        y = keras.tree.map_structure(
            lambda value: rng.normal(size=tuple(value.shape)).astype("float32"), outputs
        )
        return model, x, y

    def model(self):
        return self.build()


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


class OwnAttention(layers.Layer):
    """A custom layer of products with more than two axes."""

    def build(self, input_shape):
        self.inward = self.add_weight(shape=(input_shape[-1], 2, 4))
        self.outward = self.add_weight(shape=(2, 4, input_shape[-1]))

    def call(self, inputs):
        heads = ops.einsum("abc,cde->abde", inputs, self.inward)
        scores = ops.softmax(ops.einsum("aecd,abcd->acbe", heads, heads))
        return ops.einsum("acbe,aecd,cdf->abf", scores, heads, self.outward)


class OwnWeight(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3, activation="tanh")
        self.shift = self.add_weight(shape=(3,), initializer="ones", name="shift")

    def call(self, inputs, training=None):
        return self.dense(inputs) * self.shift


class TiedDecoder(keras.Model):
    """Uses the table of the embedding once more, outside the layer that owns it."""

    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(6, 3)

    def call(self, inputs):
        return ops.matmul(self.embedding(inputs), ops.transpose(self.embedding.embeddings))


class Penalized(keras.Model):
    """Multiplies by a norm of a kernel that another layer owns."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, inputs):
        return self.dense(inputs) * ops.sum(ops.square(self.dense.kernel))


class Borrowing(layers.Layer):
    """Shares a variable with the layer that made it, so both own it."""

    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def call(self, inputs):
        return ops.matmul(inputs, ops.transpose(self.kernel))


def tied_layers():
    first = layers.Dense(4, activation="tanh")
    inputs = keras.Input((3,))
    hidden = first(inputs)
    return keras.Model(inputs, Borrowing(first.kernel)(hidden))


class TiedDense(layers.Dense):
    """Multiplies with the kernel of another layer, which it owns too, and adds its own bias."""

    def __init__(self, other):
        super().__init__(other.units)
        self.other = other

    def build(self, input_shape):
        self._kernel = self.other._kernel
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")


def tied_kernels():
    first = layers.Dense(3, activation="tanh")
    inputs = keras.Input((3,))
    return keras.Model(inputs, TiedDense(first)(first(inputs)))


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


def reshaped_rows():
    def call(inputs):
        rows = layers.Dense(4, activation="tanh")(ops.reshape(inputs, (-1, 3)))
        return layers.Dense(2)(ops.reshape(rows, (-1, 5, 4)))

    return functional((5, 3), call)


def transposed():
    def call(inputs):
        steps = layers.Dense(4, activation="tanh")(ops.transpose(inputs, (1, 0, 2)))
        return layers.Dense(2)(ops.transpose(steps, (1, 0, 2)))

    return functional((5, 3), call)


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


def frozen():
    model = stack(layers.Dense(4), layers.BatchNormalization(), layers.Dense(2), shape=(3,))
    model.layers[0].trainable = model.layers[1].trainable = False
    return model


def attention():
    def call(inputs):
        attended = layers.MultiHeadAttention(2, 3)(inputs, inputs, use_causal_mask=True)
        return layers.Dense(2)(attended)

    return functional((4, 5), call)


def masked_attention():
    ids = keras.Input((4,), dtype="int32")
    embedded = layers.Embedding(6, 3, mask_zero=True)(ids)
    attended = layers.MultiHeadAttention(2, 3)(embedded, embedded)
    return keras.Model(ids, layers.GlobalAveragePooling1D()(attended))


def grouped_query_attention():
    query, value = keras.Input((3, 5), name="query"), keras.Input((4, 5), name="value")
    attention = layers.GroupQueryAttention(2, num_query_heads=4, num_key_value_heads=2)
    return keras.Model([query, value], layers.Dense(2)(attention(query, value)))


def scaled_attention():
    def call(inputs):
        return layers.Dense(2)(layers.Attention(use_scale=True)([inputs, inputs]))

    return functional((4, 3), call)


def masked_recurrence():
    return stack(
        layers.Embedding(6, 3, mask_zero=True),
        layers.LSTM(3, unroll=True),
        layers.Dense(2),
        shape=(3,),
        dtype="int32",
    )


def side_by_side(shape, makes, ways):
    """Many layers on the same inputs, in one model: planned, compiled and checked at once."""

    def call(inputs):
        outputs = [layers.Flatten()(make()(inputs)) for make in makes]
        return layers.Dense(2)(layers.Concatenate()(outputs))

    return Architecture(shape, lambda: functional(shape, call), ways)


def dense(*, shape, **options):
    return Architecture(
        shape,
        lambda: stack(layers.Dense(5, **options), layers.Dense(2), shape=shape),
        ["Dense"] * 2,
    )


def convolution(*made, shape, ways=("Convolution", "Dense"), not_on=()):
    return Architecture(
        shape,
        lambda: stack(*(make() for make in made), layers.Flatten(), layers.Dense(2), shape=shape),
        list(ways),
        not_on,
    )


def normalization(make, shape, not_on=()):
    return Architecture(
        shape,
        lambda: stack(layers.Dense(4), make(), layers.Dense(2), shape=shape),
        ["Dense", "Normalization", "Dense"],
        not_on,
    )


ARCHITECTURES = {
    "dense_sequence_written_out": dense(shape=(6, 3), activation="gelu"),
    "dense_sequence_gram": dense(shape=(2, 8), activation="relu"),
    "dense_4d": dense(shape=(2, 3, 4)),
    "layer_as_activation": Architecture(
        (3,),
        lambda: stack(layers.Dense(5, activation=layers.PReLU()), layers.Dense(2), shape=(3,)),
        ["Dense", "PReLU", "Dense"],
    ),
    "convolution_gram": convolution(lambda: layers.Conv2D(6, 3, strides=2), shape=(6, 6, 4)),
    "convolution_groups": convolution(lambda: layers.Conv2D(4, 3, groups=2), shape=(4, 4, 2)),
    "convolution_pooled": convolution(
        lambda: layers.Conv2D(3, 2, activation="relu"),
        lambda: layers.MaxPooling2D(2, strides=1),
        lambda: layers.AveragePooling2D((2, 1)),
        lambda: layers.MaxPooling2D(2, padding="same"),
        shape=(6, 5, 2),
    ),
    "embedding_masked_mean": Architecture(
        7,
        lambda: stack(
            layers.Embedding(6, 3, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(2),
            shape=(7,),
            dtype="int32",
        ),
        ["Embedding", "Dense"],
    ),
    "embedding_masked_recurrence": Architecture(
        3, masked_recurrence, ["Embedding", "LSTM", "Dense"]
    ),
    # Keras's layer fails on PyTorch for an axis that is not among the last ones.
    "layer_normalization_first_axis": normalization(
        lambda: layers.LayerNormalization(axis=1), (3, 4), not_on=("torch",)
    ),
    "group_normalization_axis": normalization(
        lambda: layers.GroupNormalization(groups=2, axis=1), (4, 3, 4)
    ),
    "shared_dense": Architecture((3,), lambda: functional((3,), twice(layers.Dense(3))), ["Dense"]),
    "shared_convolution": Architecture(
        (5, 5, 2), lambda: functional((5, 5, 2), twice(layers.Conv2D(2, 2))), ["Convolution"]
    ),
    "shared_embedding": Architecture(
        3,
        lambda: functional(
            (3,),
            lambda ids: (lambda layer: layer(ids) * layer(ids[:, :1]))(layers.Embedding(6, 2)),
            "int32",
        ),
        ["Embedding"],
    ),
    "shared_normalization": Architecture(
        (3,), lambda: functional((3,), twice(layers.LayerNormalization())), ["Normalization"]
    ),
    "shared_general": Architecture(
        (2, 3), lambda: functional((2, 3), twice(Scale())), ["general", "Dense"]
    ),
    "own_attention": Architecture(
        (4, 3), lambda: stack(OwnAttention(), OwnAttention(), shape=(4, 3)), ["general"] * 2
    ),
    "tied_kernels": Architecture((3,), tied_kernels, ["Dense"] * 2),
    "reversible_embedding": Architecture(
        4, lambda: Reversed(tie_weights=True, logit_soft_cap=2.0), ["ReversibleEmbedding"]
    ),
    "reversible_embedding_untied": Architecture(
        4, lambda: Reversed(tie_weights=False), ["ReversibleEmbedding"]
    ),
    "tied_layers": Architecture((3,), tied_layers, ["Dense", "general"]),
    "tied_decoder": Architecture(4, TiedDecoder, "whole"),
    "kernel_used_elsewhere": Architecture((3,), Penalized, "whole"),
    "weight_of_the_model": Architecture((4,), OwnWeight, ["general", "Dense"]),
    "reshaped_rows": Architecture((5, 3), reshaped_rows, "whole"),
    "time_major": Architecture((5, 3), transposed, "whole"),
    "frozen": Architecture((3,), frozen, ["Dense"]),
    "nested": Architecture((3,), nested, ["Dense", "Normalization", "Dense", "Dense"]),
    "inputs_and_outputs": Architecture([(3,), (2, 4)], branches, ["Dense"] * 4),
    "attention": Architecture((4, 5), attention, ["EinsumDense"] * 4 + ["Dense"]),
    "attention_masked": Architecture(4, masked_attention, ["Embedding"] + ["EinsumDense"] * 4),
    "attention_to_another_input": Architecture(
        [(3, 5), (4, 5)], grouped_query_attention, ["EinsumDense"] * 4 + ["Dense"]
    ),
    "attention_along_one_axis": Architecture(
        (2, 3, 4),
        lambda: functional(
            (2, 3, 4),
            lambda inputs: layers.MultiHeadAttention(2, 3, attention_axes=2)(inputs, inputs),
        ),
        ["EinsumDense"] * 4,
    ),
    "attention_with_a_scale": Architecture((4, 3), scaled_attention, ["general", "Dense"]),
    "recurrent": side_by_side(
        (4, 3),
        [
            lambda: layers.Bidirectional(layers.SimpleRNN(2, unroll=True)),
            lambda: layers.RNN([layers.SimpleRNNCell(2), layers.GRUCell(2)], unroll=True),
            lambda: layers.TimeDistributed(layers.Dense(3)),
        ],
        ["SimpleRNN", "SimpleRNN", "general", "TimeDistributed", "Dense"],
    ),
}
