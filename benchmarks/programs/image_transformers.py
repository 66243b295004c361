"""Transformers for images with parts of their own, in the order of keras.io/examples/vision."""

from typing import Any

import keras
import numpy as np
from catalogue import (
    Made,
    PatchEncoder,
    Patches,
    augmentation,
    example,
    labels,
    mlp,
    numbers,
    one_hot,
    slower,
    smoothed,
    sparse,
    stopping,
    transformer,
)
from image_classifiers import StochasticDepth
from keras import layers, ops


def feed_forward(widths: list[int], rate: float) -> keras.Sequential:
    """Return dense layers, the last one linear, and dropout."""
    hidden = [layers.Dense(width, "gelu") for width in widths[:-1]]
    return keras.Sequential([*hidden, layers.Dense(widths[-1]), layers.Dropout(rate)])


def cross_attention(number: int, latents: int, width: int, random: float) -> keras.Model:
    """Return a model of two inputs by name, whose first one may have a batch of one."""
    inputs = {
        "latents": keras.Input((latents, width), name="latents"),
        "data": keras.Input((number, width), name="data"),
    }
    latent = layers.LayerNormalization(epsilon=1e-6)(inputs["latents"])
    data = layers.LayerNormalization(epsilon=1e-6)(inputs["data"])
    query, key, value = (layers.Dense(width)(each) for each in (latent, data, data))
    x = layers.Attention(use_scale=True, dropout=0.1 * random)([query, value, key])
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([x, latent]))
    return keras.Model(inputs, layers.Add()([feed_forward([width] * 2, 0.1 * random)(x), x]))


@example("vision")
def perceiver_image_classification(random: float) -> Made:
    """Return a subclassed model with a latent weight of its own, and modules that run twice."""
    augment = augmentation(random, 16)  # As in the source, no part of the model.

    def build(base: Any) -> Any:
        class Perceiver(base):
            """Asks an image by latents, twice."""

            def build(self, shape: Any) -> None:
                self.latents = self.add_weight(
                    shape=(8, 16), initializer="random_normal", name="latents"
                )
                self.patches, self.encoder = Patches(4), PatchEncoder(16, 16)
                self.cross = cross_attention(16, 8, 16, random)
                inputs = keras.Input((8, 16))
                self.transformer = keras.Model(inputs, transformer(inputs, 16, random))
                self.pool = layers.GlobalAveragePooling1D()
                self.head = feed_forward([16, 10], 0.1 * random)
                super().build(shape)

            def call(self, inputs: Any) -> Any:
                data = self.encoder(self.patches(augment(inputs)))
                latents = ops.expand_dims(self.latents, 0)
                for _ in range(2):
                    latents = self.transformer(self.cross({"latents": latents, "data": data}))
                return self.head(self.pool(latents))

        return Perceiver()

    optimizer = keras.optimizers.Lamb(1e-3, weight_decay=1e-4)
    extra = {"callbacks": [stopping(15), slower()]}
    return Made(build, numbers(16, 16, 3), labels(10, 1), **sparse(optimizer=optimizer), fit=extra)


def partitioned(x: Any, size: int) -> Any:
    """Return windows in the place of the batch."""
    _, height, width, channels = x.shape
    x = ops.reshape(x, (-1, height // size, size, width // size, size, channels))
    return ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, size * size, channels))


def merged(windows: Any, size: int, height: int, width: int, channels: int) -> Any:
    """Return images of windows."""
    x = ops.reshape(windows, (-1, height // size, width // size, size, size, channels))
    return ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, height, width, channels))


def relative_places(size: int) -> np.ndarray:
    """Return the row of the table of biases for each pair of places of a window."""
    places = np.stack(np.meshgrid(*[np.arange(size)] * 2, indexing="ij")).reshape(2, -1)
    moves = places[:, :, None] - places[:, None, :] + size - 1
    return (moves[0] * (2 * size - 1) + moves[1]).reshape(-1)


class WindowAttention(layers.Layer):
    """Attention inside of windows, with a table of biases for relative positions.

    Args:
        width: Of the features.
        size: Of a window's side.
        heads: Of the attention.
        rate: Of dropout.
        is_global: Whether queries are given, the same for all windows of an image.
    """

    def __init__(
        self, width: int, size: int, heads: int, rate: float, is_global: bool = False
    ) -> None:
        super().__init__()
        self.width, self.size, self.heads, self.is_global = width, size, heads, is_global
        self.project = layers.Dense(width * (2 if is_global else 3))
        self.dropout, self.leave = layers.Dropout(rate), layers.Dense(width)

    def build(self, shape: Any) -> None:
        """Make the table."""
        shape = shape[0] if self.is_global else shape
        self.biases = self.add_weight(shape=((2 * self.size - 1) ** 2, self.heads), name="biases")
        self.project.build(shape)
        self.leave.build(shape)

    def call(self, inputs: Any, regions: Any = None) -> Any:
        """Return windows; `regions` is a mask with one slice for each window of an image."""
        x, given = inputs if self.is_global else (inputs, None)
        number, per_head = self.size**2, self.width // self.heads
        shape = (-1, number, 2 + (given is None), self.heads, per_head)
        parts = ops.reshape(self.project(x), shape)
        *query, key, value = ops.unstack(ops.transpose(parts, (2, 0, 3, 1, 4)), axis=0)
        if given is not None:
            repeats = ops.shape(x)[0] // ops.shape(given)[0]
            given = ops.reshape(ops.repeat(given, repeats, 0), (-1, number, self.heads, per_head))
            query = [ops.transpose(given, (0, 2, 1, 3))]
        scores = query[0] * per_head**-0.5 @ ops.transpose(key, (0, 1, 3, 2))
        bias = ops.take(self.biases, relative_places(self.size), axis=0)
        scores += ops.transpose(ops.reshape(bias, (number, number, -1)), (2, 0, 1))[None]
        if regions is not None:
            shape = (-1, regions.shape[0], self.heads, number, number)
            scores = ops.reshape(scores, shape) + ops.cast(regions, "float32")[None, :, None]
            scores = ops.reshape(scores, (-1, self.heads, number, number))
        x = ops.transpose(self.dropout(ops.softmax(scores)) @ value, (0, 2, 1, 3))
        return self.dropout(self.leave(ops.reshape(x, (-1, number, self.width))))


class Swin(layers.Layer):
    """A block of shifted windows."""

    def __init__(self, side: int, width: int, shift: int, rate: float) -> None:
        super().__init__()
        self.side, self.width, self.shift = side, width, shift
        self.first = layers.LayerNormalization(epsilon=1e-5)
        self.second = layers.LayerNormalization(epsilon=1e-5)
        self.attention = WindowAttention(width, 2, 4, rate)
        self.drop_path = StochasticDepth(rate)
        self.dense = keras.Sequential(
            [layers.Dense(32, "gelu"), layers.Dropout(rate), layers.Dense(width)]
        )

    def build(self, shape: Any) -> None:
        """Make the mask, a variable that is not trained."""
        self.mask = None
        if self.shift:
            regions = np.zeros((1, self.side, self.side, 1))
            edges = (slice(0, -2), slice(-2, -1), slice(-1, None))
            for number, (rows, columns) in enumerate((a, b) for a in edges for b in edges):
                regions[:, rows, columns] = number
            cut = regions.reshape(1, self.side // 2, 2, self.side // 2, 2).transpose(0, 1, 3, 2, 4)
            cut = cut.reshape(-1, 4)
            mask = np.where(cut[:, None] != cut[:, :, None], -100.0, 0.0)
            self.mask = self.add_weight(
                shape=mask.shape, trainable=False, name="mask", dtype="float32"
            )
            self.mask.assign(mask)

    def call(self, x: Any) -> Any:
        """Return features of the same shape."""
        before, side = x, self.side
        x = ops.reshape(self.first(x), (-1, side, side, self.width))
        if self.shift:
            x = ops.roll(x, (-1, -1), axis=(1, 2))
        windows = self.attention(partitioned(x, 2), regions=self.mask)
        x = merged(windows, 2, side, side, self.width)
        if self.shift:
            x = ops.roll(x, (1, 1), axis=(1, 2))
        x = before + self.drop_path(ops.reshape(x, (-1, side * side, self.width)))
        return x + self.drop_path(self.dense(self.second(x)))


class PatchMerging(layers.Layer):
    """Joins four neighbours and projects them."""

    def __init__(self, side: int, width: int) -> None:
        super().__init__()
        self.side, self.project = side, layers.Dense(2 * width, use_bias=False)

    def call(self, x: Any) -> Any:
        """Return a quarter of the patches."""
        x = ops.reshape(x, (-1, self.side, self.side, x.shape[-1]))
        parts = [x[:, a::2, b::2] for b in (0, 1) for a in (0, 1)]
        x = ops.concatenate(parts, axis=-1)
        return self.project(ops.reshape(x, (-1, (self.side // 2) ** 2, x.shape[-1])))


@example("vision")
def swin_transformers(random: float) -> Made:
    """Return shifted windows; patches are cut before the model."""
    inputs = keras.Input((64, 12))
    x = PatchEncoder(64, 16)(inputs)
    x = Swin(8, 16, 0, 0.03 * random)(x)
    x = PatchMerging(8, 16)(Swin(8, 16, 1, 0.03 * random)(x))
    outputs = layers.Dense(10, "softmax")(layers.GlobalAveragePooling1D()(x))
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=1e-4)
    model = keras.Model(inputs, outputs)
    return Made(model, numbers(64, 12), one_hot(10), **smoothed(False), optimizer=optimizer)


class ShiftedPatches(layers.Layer):
    """Joins an image with four shifted copies, cuts patches, and returns tokens and patches."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.size, self.project = size, layers.Dense(width)
        self.normalize = layers.LayerNormalization(epsilon=1e-6)

    def call(self, images: Any) -> Any:
        """Return tokens and patches."""
        side, half = images.shape[1], self.size // 2
        shifted = [images]
        for down in (0, half):
            for right in (0, half):
                top, left = half - down, half - right
                crop = images[:, top : top + side - half, left : left + side - half]
                pads = ((0, 0), (down, half - down), (right, half - right), (0, 0))
                shifted.append(ops.pad(crop, pads))
        patches = ops.image.extract_patches(ops.concatenate(shifted, axis=-1), self.size)
        flat = ops.reshape(patches, (-1, (side // self.size) ** 2, patches.shape[-1]))
        return self.project(self.normalize(flat)), patches


class AddPositions(layers.Layer):
    """Adds an embedding of positions that are made once."""

    def __init__(self, number: int, width: int) -> None:
        super().__init__()
        self.embedding, self.places = layers.Embedding(number, width), np.arange(number)

    def call(self, x: Any) -> Any:
        """Return the sum."""
        return x + self.embedding(self.places)


class LocalityAttention(layers.MultiHeadAttention):
    """Attention of Keras with a trainable temperature."""

    def build(self, query_shape: Any, value_shape: Any, key_shape: Any = None) -> None:
        """Make the temperature."""
        super().build(query_shape, value_shape, key_shape)
        root = keras.initializers.Constant(float(self._key_dim) ** 0.5)
        self.tau = self.add_weight(shape=(), initializer=root, name="tau")

    def _compute_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: Any = None,
        return_attention_scores: bool = False,
    ) -> Any:
        scores = ops.einsum(self._dot_product_equation, key, query / self.tau)
        scores = self._masked_softmax(scores, attention_mask)
        dropped = self._dropout_layer(scores, training=training)
        return ops.einsum(self._combine_equation, dropped, value), scores


class WarmUpCosine(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises, and falls like a cosine."""

    def __call__(self, step: Any) -> Any:
        """Return the rate of a step."""
        step = ops.cast(step, "float32")
        falling = 5e-4 * (1 + ops.cos(np.pi * (step - 10) / 90))
        return ops.where(step < 10, step * 1e-4, falling)


@example("vision")
def vit_small_ds(random: float) -> Made:
    """Return shifted patches and attention that leaves out a token itself."""
    inputs = keras.Input((16, 16, 3))
    x = AddPositions(16, 16)(ShiftedPatches(4, 16)(augmentation(random, 16)(inputs))[0])
    mask = 1 - np.eye(16, dtype="int8")[None]
    for _ in range(2):
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        attention = LocalityAttention(num_heads=2, key_dim=16, dropout=0.1 * random)
        x = layers.Add()([attention(normed, normed, attention_mask=mask), x])
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.Add()([mlp(y, [32, 16], 0.1 * random), x])
    x = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x))
    x = mlp(layers.Dropout(0.5 * random)(x), [32, 16], 0.5 * random)
    optimizer = keras.optimizers.AdamW(WarmUpCosine(), weight_decay=1e-4)
    model = keras.Model(inputs, layers.Dense(10)(x))
    return Made(model, numbers(16, 16, 3), labels(10, 1), **sparse(optimizer=optimizer))


class SqueezeExcite(layers.Layer):
    """Weighs channels by their means."""

    def build(self, shape: Any) -> None:
        """Make both dense layers."""
        self.narrow = layers.Dense(shape[-1] // 4, "gelu", use_bias=False)
        self.widen = layers.Dense(shape[-1], "sigmoid", use_bias=False)
        super().build(shape)

    def call(self, x: Any) -> Any:
        """Return weighed channels."""
        return self.widen(self.narrow(ops.mean(x, axis=(1, 2), keepdims=True))) * x


class Reduce(layers.Layer):
    """Convolves, adds and shrinks by a strided convolution or by a pool.

    Args:
        width: Of the output; None for a pool, which has no normalization.
    """

    def __init__(self, width: int | None) -> None:
        super().__init__()
        self.width = width

    def build(self, shape: Any) -> None:
        """Make the layers."""
        self.steps = [
            layers.DepthwiseConv2D(3, padding="same", use_bias=False),
            layers.Activation("gelu"),
            SqueezeExcite(),
            layers.Conv2D(shape[-1], 1, use_bias=False),
        ]
        if self.width:
            self.norms = [layers.LayerNormalization(epsilon=1e-5) for _ in range(2)]
            self.shrink = layers.Conv2D(self.width, 3, 2, "same", use_bias=False)
        else:
            self.shrink = layers.MaxPooling2D(3, 2, "same")
        super().build(shape)

    def call(self, x: Any) -> Any:
        """Return images of half the side."""
        x = y = self.norms[0](x) if self.width else x
        for step in self.steps:
            y = step(y)
        x = self.shrink(x + y)
        return self.norms[1](x) if self.width else x


class GlobalBlock(layers.Layer):
    """A block of windows with scaled branches, whose queries may be those of the whole image."""

    def __init__(self, width: int, rate: float, is_global: bool) -> None:
        super().__init__()
        self.is_global = is_global
        self.norms = [layers.LayerNormalization(epsilon=1e-5) for _ in range(2)]
        self.attention = WindowAttention(width, 4, 2, 0.0, is_global)
        self.drop = StochasticDepth(rate)
        self.dense = keras.Sequential([layers.Dense(2 * width, "gelu"), layers.Dense(width)])

    def build(self, shape: Any) -> None:
        """Make the scales."""
        self.gammas = [
            self.add_weight(shape=(shape[0][-1],), initializer="ones", name=f"gamma{place}")
            for place in (1, 2)
        ]

    def call(self, inputs: Any) -> Any:
        """Return images; inputs are a list of images, and of queries where they are global."""
        images, *queries = inputs
        _, height, width, channels = images.shape
        windows = partitioned(self.norms[0](images), 4)
        windows = self.attention([windows, *queries] if self.is_global else windows)
        x = images + self.drop(merged(windows, 4, height, width, channels) * self.gammas[0])
        return x + self.drop(self.gammas[1] * self.dense(self.norms[1](x)))


@example("vision")
def image_classification_using_global_context_vision_transformer(random: float) -> Made:
    """Return a subclassed model of local and global windows."""

    def build(base: Any) -> Any:
        class GlobalContext(base):
            """A stem, a level and a head."""

            def __init__(self) -> None:
                super().__init__()
                self.stem = [layers.Conv2D(8, 3, 2, "same"), Reduce(8)]
                self.queries = Reduce(None)
                self.blocks = [GlobalBlock(8, rate * random, rate > 0) for rate in (0.0, 0.1)]
                self.normalize = layers.LayerNormalization(epsilon=1e-5)
                self.pool, self.head = layers.GlobalAvgPool2D(), layers.Dense(5, "softmax")

            def call(self, inputs: Any) -> Any:
                x = inputs
                for layer in self.stem:
                    x = layer(x)
                queries = self.queries(x)
                x = self.blocks[1]([self.blocks[0]([x]), queries])
                return self.head(self.pool(self.normalize(x)))

        return GlobalContext()

    optimizer = keras.optimizers.Adam(1e-4)
    loss = "sparse_categorical_crossentropy"
    return Made(build, numbers(32, 32, 3), labels(5), loss, ["accuracy"], optimizer)


class AttentionAndDense(layers.Layer):
    """Attention with a normalization for each input; it keeps its scores for plots."""

    def __init__(self, width: int, rate: float) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(1, width, dropout=rate)
        self.norms = [layers.LayerNormalization(epsilon=1e-5) for _ in range(4)]
        self.dense = feed_forward([4 * width, width], rate)
        self.attention_scores = None

    def call(self, query: Any, key: Any, value: Any) -> Any:
        """Return the queries, changed."""
        parts = [norm(each) for norm, each in zip(self.norms, (query, key, value), strict=False)]
        found, scores = self.attention(*parts[:1], parts[2], parts[1], return_attention_scores=True)
        self.attention_scores = scores
        x = query + found
        return x + self.dense(self.norms[3](x))


class TwoStreams(layers.Layer):
    """A recurrent cell: a fast stream over a chunk of tokens, a slow stream between chunks."""

    def __init__(self, chunk: int, width: int, rate: float) -> None:
        super().__init__()
        self.state_size = self.output_size = (chunk, width)
        self.fast = [AttentionAndDense(width, rate) for _ in range(2)]
        self.slow = AttentionAndDense(width, rate)

    def get_initial_state(self, batch_size: Any = None) -> Any:
        """Return zeros."""
        return [ops.zeros((batch_size, *self.state_size))]

    def call(self, inputs: Any, states: Any) -> Any:
        """Return the fast stream and the slow one."""
        (slow,), x = states, inputs
        for place, layer in enumerate(self.fast):
            x = layer(query=x, key=x, value=x)
            if place % 2 == 0:
                x = layer(query=x, key=slow, value=slow)
        return x, [self.slow(query=slow, key=x, value=x)]


@example("vision")
def temporal_latent_bottleneck(random: float) -> Made:
    """Return a subclassed model: a recurrent layer over chunks, with a cell of attention."""

    def build(base: Any) -> Any:
        class Bottleneck(base):
            """Patches, recurrence, a mean and a head."""

            def __init__(self) -> None:
                super().__init__()
                self.project = layers.Conv2D(16, 4, strides=4)
                self.flatten = layers.Reshape((16, 16))
                self.add_positions = AddPositions(16, 16)
                self.normalize = layers.LayerNormalization(epsilon=1e-5)
                self.chunks = layers.Reshape((4, 4, 16))
                self.rnn = layers.RNN(TwoStreams(4, 16, 0.2 * random))
                self.pool, self.head = layers.GlobalAveragePooling1D(), layers.Dense(10, "softmax")

            def call(self, inputs: Any) -> Any:
                x = self.add_positions(self.flatten(self.project(inputs)))
                return self.head(self.pool(self.rnn(self.chunks(self.normalize(x)))))

        return Bottleneck()

    optimizer = keras.optimizers.AdamW(1e-4, weight_decay=1e-4)
    loss = "sparse_categorical_crossentropy"
    return Made(build, numbers(16, 16, 3), labels(10, 1), loss, ["accuracy"], optimizer)


PROGRAMS = (
    perceiver_image_classification,
    swin_transformers,
    vit_small_ds,
    image_classification_using_global_context_vision_transformer,
    temporal_latent_bottleneck,
)
