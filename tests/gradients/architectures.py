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


class StandardizedConv2D(layers.Conv2D):
    """Changes what is convolved with, and leaves `call` as it was."""

    def convolution_op(self, inputs, kernel):
        return super().convolution_op(inputs, kernel - ops.mean(kernel))


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


def convolution(*made, shape, ways=("Conv2D", "Dense"), not_on=()):
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
    "dense_vectors": side_by_side(
        (3,),
        [
            lambda: layers.Dense(5, activation="tanh"),
            lambda: layers.Dense(5, use_bias=False),
            lambda: layers.Dense(5, activation="softmax"),
            lambda: layers.Dense(5, activation=lambda value: value * ops.tanh(value)),
            lambda: layers.Dense(5, activation=layers.LeakyReLU()),
            lambda: layers.Dense(5, activation=layers.PReLU()),
        ],
        ["Dense"] * 7 + ["general"],
    ),
    "dense_sequence_written_out": dense(shape=(6, 3), activation="gelu"),
    "dense_sequence_gram": dense(shape=(2, 8), activation="relu"),
    "dense_4d": dense(shape=(2, 3, 4)),
    "convolutions": side_by_side(
        (5, 5, 2),
        [
            lambda: layers.Conv2D(3, 3, activation="relu"),
            lambda: layers.Conv2D(3, 3, use_bias=False),
            lambda: layers.Conv2D(3, 3, strides=2, padding="same"),
            lambda: layers.Conv2D(3, 2, strides=2, padding="same"),
            lambda: layers.Conv2D(3, 2, strides=(2, 1)),
            lambda: layers.Conv2D(3, 2, dilation_rate=2, padding="same"),
            lambda: layers.Conv2D(3, (2, 1), dilation_rate=(1, 3)),
            lambda: layers.Conv2D(4, 3, groups=2),
            lambda: layers.Conv2D(3, 1),
            lambda: layers.Conv2D(3, (1, 3), padding="same"),
        ],
        ["Conv2D"] * 10 + ["Dense"],
    ),
    "convolution_gram": convolution(lambda: layers.Conv2D(6, 3, strides=2), shape=(6, 6, 4)),
    "convolution_channels_first": convolution(
        lambda: layers.Conv2D(3, 3, data_format="channels_first", padding="same"),
        shape=(2, 5, 5),
        not_on=("tensorflow",),
    ),
    "convolution_own_operation": convolution(
        lambda: StandardizedConv2D(3, 2), shape=(4, 4, 2), ways=("general", "Dense")
    ),
    "embedding": Architecture(
        7,
        lambda: stack(layers.Embedding(6, 3), layers.Dense(2), shape=(7,), dtype="int32"),
        ["Embedding", "Dense"],
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
    "normalizations": side_by_side(
        (3, 4),
        [
            lambda: layers.LayerNormalization(),
            lambda: layers.LayerNormalization(axis=[2, 1]),
            lambda: layers.LayerNormalization(center=False),
            lambda: layers.LayerNormalization(scale=False),
            lambda: layers.GroupNormalization(2),
            lambda: layers.GroupNormalization(1, scale=False),
            lambda: layers.GroupNormalization(-1, center=False),
        ],
        ["Normalization"] * 7 + ["Dense"],
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
        (5, 5, 2), lambda: functional((5, 5, 2), twice(layers.Conv2D(2, 2))), ["Conv2D"]
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
        (2, 3),
        lambda: functional((2, 3), twice(layers.EinsumDense("abc,cd->abd", (None, 3)))),
        ["general"],
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
    "attention": Architecture((4, 5), attention, ["general"] * 4 + ["Dense"]),
    "custom_layer": Architecture(
        (2, 3), lambda: stack(Scale(), shape=(2, 3)), ["general", "Dense"]
    ),
    "layers_of_sequences": side_by_side(
        (4, 3),
        [
            lambda: layers.EinsumDense("abc,cd->abd", (4, 5), bias_axes="d"),
            lambda: layers.Bidirectional(layers.SimpleRNN(2, unroll=True)),
            lambda: layers.RNN([layers.SimpleRNNCell(2), layers.GRUCell(2)], unroll=True),
            lambda: layers.TimeDistributed(layers.Dense(3)),
            lambda: layers.Conv1D(3, 2, padding="causal"),
            lambda: layers.RMSNormalization(),
            lambda: layers.PReLU(),
        ],
        ["SimpleRNN", "SimpleRNN", "TimeDistributed", "Dense"] + ["general"] * 5,
    ),
    "layers_of_images": side_by_side(
        (4, 4, 2),
        [
            lambda: layers.DepthwiseConv2D(2),
            lambda: layers.SeparableConv2D(3, 2),
            lambda: layers.Conv2DTranspose(3, 2, strides=2),
        ],
        ["general"] * 3 + ["Dense"],
    ),
}
