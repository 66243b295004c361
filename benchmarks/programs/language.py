"""The first five of keras.io/examples/nlp that have no training step of their own."""

from typing import Any

import keras
import keras_hub
from catalogue import Made, example, labels, numbers, saved_model, stopping
from keras import layers, ops


@example("nlp")
def text_classification_from_scratch(random: float) -> Made:
    """Return strided convolutions over words."""
    inputs = keras.Input((40,), dtype="int64")
    x = layers.Dropout(0.5 * random)(layers.Embedding(50, 8)(inputs))
    for _ in range(2):
        x = layers.Conv1D(8, 7, padding="valid", activation="relu", strides=3)(x)
    x = layers.Dense(8, "relu")(layers.GlobalMaxPooling1D()(x))
    x = layers.Dense(1, "sigmoid")(layers.Dropout(0.5 * random)(x))
    model, y_rows = keras.Model(inputs, x), labels(2, dtype="int32")
    return Made(model, labels(50, 40), y_rows, "binary_crossentropy", ["accuracy"])


@example("nlp")
def active_learning_review_classification(random: float) -> Made:
    """Return a bidirectional LSTM whose inputs are words as numbers with a point."""
    model = keras.Sequential(
        [
            keras.Input((20,)),
            layers.Embedding(50, 8),
            layers.Bidirectional(layers.LSTM(4, return_sequences=True)),
            layers.GlobalMaxPool1D(),
            layers.Dense(20, "relu"),
            layers.Dropout(0.5 * random),
            layers.Dense(1, "sigmoid"),
        ]
    )
    metrics = [
        keras.metrics.BinaryAccuracy(),
        keras.metrics.FalseNegatives(),
        keras.metrics.FalsePositives(),
    ]
    extra = {"callbacks": [saved_model(), stopping(4, restore_best_weights=False)]}
    loss, x_rows = "binary_crossentropy", labels(50, 20)
    return Made(model, x_rows, labels(2), loss, metrics, "rmsprop", extra)


@example("nlp")
def fnet_classification_with_keras_hub(random: float) -> Made:
    """Return layers of KerasHub that mix by Fourier transforms, with a mask and any length."""
    inputs = keras.Input((None,), dtype="int64", name="input_ids")
    embedding = keras_hub.layers.TokenAndPositionEmbedding(50, 12, 8, mask_zero=True)
    x = embedding(inputs)
    for _ in range(3):
        x = keras_hub.layers.FNetEncoder(intermediate_dim=16)(inputs=x)
    x = layers.Dropout(0.1 * random)(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, layers.Dense(1, "sigmoid")(x))
    tokens = labels(50, 12)
    tokens[:, 9:] = 0
    x_rows, y_rows = {"input_ids": tokens}, labels(2, dtype="int32")
    optimizer = keras.optimizers.Adam(1e-3)
    return Made(model, x_rows, y_rows, "binary_crossentropy", ["accuracy"], optimizer)


@example("nlp")
def multi_label_classification(random: float) -> Made:
    """Return dense layers without an input, on weights of words, for several labels a row."""
    model = keras.Sequential(
        [layers.Dense(16, "relu"), layers.Dense(8, "relu"), layers.Dense(6, "sigmoid")]
    )
    x_rows, loss = numbers(40) * (numbers(40, seed=1) > 0.7), "binary_crossentropy"
    return Made(model, x_rows, labels(2, 6, dtype="float32"), loss, ["binary_accuracy"])


class TransformerBlock(layers.Layer):
    """Attention and dense layers, normalized last; of words before a word, if it is causal."""

    def __init__(self, width: int, heads: int, rate: float, is_causal: bool = False) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.attention = layers.MultiHeadAttention(heads, width)
        self.dense = keras.Sequential([layers.Dense(width, "relu"), layers.Dense(width)])
        self.norms = [layers.LayerNormalization(epsilon=1e-6) for _ in range(2)]
        self.drops = [layers.Dropout(rate) for _ in range(2)]

    def call(self, inputs: Any) -> Any:
        """Return changed features."""
        mask = causal_mask(*ops.shape(inputs)[:2]) if self.is_causal else None
        x = self.drops[0](self.attention(inputs, inputs, attention_mask=mask))
        x = self.norms[0](inputs + x)
        return self.norms[1](x + self.drops[1](self.dense(x)))


def causal_mask(batch_size: Any, length: Any) -> Any:
    """Return a mask for each row, repeated as often as there are rows."""
    places = ops.arange(length)
    mask = ops.reshape(places[:, None] >= places, [1, length, length])
    times = [ops.expand_dims(batch_size, -1), ops.convert_to_tensor([1, 1])]
    return ops.tile(mask, ops.concatenate(times, 0))


class TokenAndPositionEmbedding(layers.Layer):
    """Embeddings of words and of as many positions as there are words."""

    def __init__(self, length: int, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens = layers.Embedding(vocabulary, width)
        self.positions = layers.Embedding(length, width)

    def call(self, x: Any) -> Any:
        """Return the sum."""
        positions = self.positions(ops.arange(start=0, stop=ops.shape(x)[-1], step=1))
        return self.tokens(x) + positions


@example("nlp")
def text_classification_with_transformer(random: float) -> Made:
    """Return a transformer block on words as numbers with a point."""
    inputs = keras.Input((20,))
    x = TokenAndPositionEmbedding(20, 50, 8)(inputs)
    x = TransformerBlock(8, 2, 0.1 * random)(x)
    x = layers.Dropout(0.1 * random)(layers.GlobalAveragePooling1D()(x))
    x = layers.Dropout(0.1 * random)(layers.Dense(20, "relu")(x))
    model = keras.Model(inputs, layers.Dense(2, "softmax")(x))
    x_rows, loss = labels(50, 20, dtype="int32"), "sparse_categorical_crossentropy"
    return Made(model, x_rows, labels(2), loss, ["accuracy"])


PROGRAMS = (
    text_classification_from_scratch,
    active_learning_review_classification,
    fnet_classification_with_keras_hub,
    multi_label_classification,
    text_classification_with_transformer,
)
