"""From keras.io/examples/generative: the first two that `fit` trains, and the miniature GPT."""

from typing import Any

import keras
import keras_hub
import numpy as np
from catalogue import Made, PredictionsOfEpochs, example, labels
from keras import layers, ops
from language import TokenAndPositionEmbedding, TransformerBlock


class MaskedConvolution(layers.Layer):
    """A convolution of earlier pixels; each call assigns the masked kernel to its variable."""

    def __init__(self, sees_itself: bool, **options: Any) -> None:
        super().__init__()
        self.sees_itself, self.convolution = sees_itself, layers.Conv2D(**options)

    def build(self, shape: Any) -> None:
        """Make the mask, an array."""
        self.convolution.build(shape)
        height, width, *_ = shape = ops.shape(self.convolution.kernel)
        self.mask = np.zeros(shape)
        self.mask[: height // 2] = 1.0
        self.mask[height // 2, : width // 2 + self.sees_itself] = 1.0

    def call(self, x: Any) -> Any:
        """Return convolved images."""
        self.convolution.kernel.assign(self.convolution.kernel * self.mask)
        return self.convolution(x)


class ResidualBlock(layers.Layer):
    """A masked convolution between two of single pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.steps = [
            layers.Conv2D(width, 1, activation="relu"),
            MaskedConvolution(
                True, filters=width // 2, kernel_size=3, activation="relu", padding="same"
            ),
            layers.Conv2D(width, 1, activation="relu"),
        ]

    def call(self, inputs: Any) -> Any:
        """Return the sum."""
        x = inputs
        for step in self.steps:
            x = step(x)
        return layers.add([inputs, x])


@example("generative")
def pixelcnn(random: float) -> Made:
    """Return masked convolutions that learn an image from itself."""
    inputs = keras.Input((14, 14, 1))
    options = {"filters": 8, "activation": "relu"}
    x = MaskedConvolution(False, kernel_size=7, padding="same", **options)(inputs)
    x = ResidualBlock(8)(x)
    for _ in range(2):
        x = MaskedConvolution(True, kernel_size=1, strides=1, padding="valid", **options)(x)
    model = keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))
    rows, optimizer = labels(2, 14, 14, 1, dtype="float32"), keras.optimizers.Adam(5e-4)
    return Made(model, rows, rows, "binary_crossentropy", None, optimizer)


@example("generative")
def text_generation_gpt(random: float) -> Made:
    """Return decoders of KerasHub with a mask, any length, and perplexity as metric."""
    inputs = keras.Input((None,), dtype="int32")
    x = keras_hub.layers.TokenAndPositionEmbedding(30, 12, 12, mask_zero=True)(inputs)
    for _ in range(2):
        x = keras_hub.layers.TransformerDecoder(num_heads=3, intermediate_dim=16)(x)
    model = keras.Model(inputs, layers.Dense(30)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = [keras_hub.metrics.Perplexity(from_logits=True, mask_token_id=0)]
    tokens = labels(30, 13, dtype="int32")
    tokens[:, 9:] = 0
    return Made(model, tokens[:, :-1], tokens[:, 1:], loss, metrics)


@example("generative")
def text_generation_with_miniature_gpt(random: float) -> Made:
    """Return two outputs, of which only one has a loss, and a callback that predicts."""
    inputs = keras.Input((12,), dtype="int32")
    x = TokenAndPositionEmbedding(12, 30, 8)(inputs)
    x = TransformerBlock(8, 2, 0.1 * random, is_causal=True)(x)
    model = keras.Model(inputs, [layers.Dense(30)(x), x])
    loss = [keras.losses.SparseCategoricalCrossentropy(from_logits=True), None]
    tokens = labels(30, 13)
    extra = {"callbacks": [PredictionsOfEpochs(tokens[:1, :-1])]}
    return Made(model, tokens[:, :-1], tokens[:, 1:], loss, fit=extra)


PROGRAMS = (pixelcnn, text_generation_gpt, text_generation_with_miniature_gpt)
