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
    images,
    labels,
    mlp,
    numbers,
    one_hot,
    slower,
    smoothed,
    sparse,
    stopping,
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
        "latent_array": keras.Input((latents, width), name="latent_array"),
        "data_array": keras.Input((number, width), name="data_array"),
    }
    latent = layers.LayerNormalization(epsilon=1e-6)(inputs["latent_array"])
    data = layers.LayerNormalization(epsilon=1e-6)(inputs["data_array"])
    query, key, value = (layers.Dense(width)(each) for each in (latent, data, data))
    attention = layers.Attention(use_scale=True, dropout=0.1 * random)
    x = attention([query, key, value], return_attention_scores=False)
    x = layers.LayerNormalization(epsilon=1e-6)(layers.Add()([x, latent]))
    return keras.Model(inputs, layers.Add()([feed_forward([width] * 2, 0.2 * random)(x), x]))


def latent_transformer(latents: int, width: int, random: float) -> keras.Model:
    """Return a model of two blocks whose dense layers are a sequential model each."""
    inputs = x = keras.Input((latents, width))
    for _ in range(2):
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        attention = layers.MultiHeadAttention(2, width, dropout=0.1 * random)(normed, normed)
        x = layers.Add()([attention, x])
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.Add()([feed_forward([width] * 2, 0.2 * random)(normed), x])
    return keras.Model(inputs, x)


@example("vision")
def perceiver_image_classification(random: float) -> Made:
    """Return a subclassed model with a latent weight of its own, and modules that run twice."""
    augment = augmentation(random, size=16)  # As in the source, no part of the model.

    def build(base: Any) -> Any:
        class Perceiver(base):
            """Asks an image by latents, twice."""

            def build(self, shape: Any) -> None:
                self.latents = self.add_weight(
                    shape=(8, 16), initializer="random_normal", trainable=True
                )
                self.patcher, self.encoder = Patches(4), PatchEncoder(16, 16)
                self.cross_attention = cross_attention(16, 8, 16, random)
                self.transformer = latent_transformer(8, 16, random)
                self.pool = layers.GlobalAveragePooling1D()
                self.head = feed_forward([16, 10], 0.2 * random)
                super().build(shape)

            def call(self, inputs: Any) -> Any:
                arrays = {
                    "latent_array": ops.expand_dims(self.latents, 0),
                    "data_array": self.encoder(self.patcher(augment(inputs))),
                }
                for _ in range(2):
                    latents = self.transformer(self.cross_attention(arrays))
                    arrays["latent_array"] = latents
                return self.head(self.pool(latents))

        return Perceiver()

    extra = {"callbacks": [stopping(15), slower(factor=0.2, patience=3)]}
    optimizer, y_rows = keras.optimizers.Adam(1e-3), labels(10, 1, dtype="uint8")
    return Made(build, images(16, 16, 3), y_rows, **sparse(optimizer=optimizer), fit=extra)


def partitioned(x: Any, size: int) -> Any:
    """Return windows in the place of the batch."""
    _, height, width, channels = x.shape
    x = ops.reshape(x, (-1, height // size, size, width // size, size, channels))
    return ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, size, size, channels))


def merged(windows: Any, size: int, height: int, width: int, channels: int) -> Any:
    """Return images of windows."""
    x = ops.reshape(windows, (-1, height // size, width // size, size, size, channels))
    return ops.reshape(ops.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, height, width, channels))


def relative_places(size: int) -> np.ndarray:
    """Return the row of the table of biases for each pair of places of a window."""
    places = np.stack(np.meshgrid(*[np.arange(size)] * 2, indexing="ij")).reshape(2, -1)
    moves = places[:, :, None] - places[:, None, :] + size - 1
    return moves[0] * (2 * size - 1) + moves[1]


def position_bias(table: Any, places: Any) -> Any:
    """Return the biases of all pairs of places, of shape `(1, heads, places, places)`."""
    number = places.shape[0]
    bias = ops.take(table, ops.reshape(places, (-1,)), axis=0)
    bias = ops.transpose(ops.reshape(bias, (number, number, -1)), (2, 0, 1))
    return ops.expand_dims(bias, axis=0)


class ShiftedAttention(layers.Layer):
    """Attention inside of windows; its table, and a variable of integers, exist before it is built.

    Args:
        width: Of the features.
        size: Of a window's side.
        heads: Of the attention.
        rate: Of dropout.
    """

    def __init__(self, width: int, size: int, heads: int, rate: float) -> None:
        super().__init__()
        self.heads, self.project = heads, layers.Dense(width * 3)
        self.dropout, self.leave = layers.Dropout(rate), layers.Dense(width)
        self.biases = self.add_weight(
            shape=((2 * size - 1) ** 2, heads), initializer="zeros", trainable=True
        )
        places = relative_places(size)
        self.places = keras.Variable(places, shape=places.shape, dtype="int", trainable=False)

    def call(self, x: Any, mask: Any = None) -> Any:
        """Return windows; the mask has one slice for each window of an image."""
        _, number, channels = x.shape
        per_head = channels // self.heads
        x = ops.reshape(self.project(x), (-1, number, 3, self.heads, per_head))
        query, key, value = ops.transpose(x, (2, 0, 3, 1, 4))
        scores = query * per_head**-0.5 @ ops.transpose(key, (0, 1, 3, 2))
        scores = scores + position_bias(self.biases, self.places)
        if mask is not None:
            added = ops.expand_dims(ops.expand_dims(mask, axis=1), axis=0)
            shape = (-1, mask.shape[0], self.heads, number, number)
            scores = ops.reshape(scores, shape) + ops.cast(added, "float32")
            scores = ops.reshape(scores, (-1, self.heads, number, number))
        scores = self.dropout(keras.activations.softmax(scores, axis=-1))
        x = ops.transpose(scores @ value, (0, 2, 1, 3))
        return self.dropout(self.leave(ops.reshape(x, (-1, number, channels))))


class Swin(layers.Layer):
    """A block of shifted windows, with one layer of dropout for both branches."""

    def __init__(self, side: int, width: int, shift: int, rate: float) -> None:
        super().__init__()
        self.side, self.shift = side, shift
        self.first = layers.LayerNormalization(epsilon=1e-5)
        self.second = layers.LayerNormalization(epsilon=1e-5)
        self.attention = ShiftedAttention(width, 2, 4, rate)
        self.drop_path = layers.Dropout(rate)
        self.dense = keras.Sequential(
            [
                *(layers.Dense(32), layers.Activation("gelu"), layers.Dropout(rate)),
                *(layers.Dense(width), layers.Dropout(rate)),
            ]
        )

    def build(self, shape: Any) -> None:
        """Make the mask, a variable that is not trained."""
        if self.shift == 0:
            self.mask = None
            return
        regions = np.zeros((1, self.side, self.side, 1))
        edges = (slice(0, -2), slice(-2, -1), slice(-1, None))
        for number, (rows, columns) in enumerate((a, b) for a in edges for b in edges):
            regions[:, rows, columns] = number
        windows = ops.reshape(partitioned(ops.convert_to_tensor(regions), 2), (-1, 4))
        mask = ops.expand_dims(windows, axis=1) - ops.expand_dims(windows, axis=2)
        mask = ops.where(mask != 0, -100.0, mask)
        self.mask = keras.Variable(mask, shape=mask.shape, dtype=mask.dtype, trainable=False)

    def call(self, x: Any, training: bool = False) -> Any:
        """Return features of the same shape."""
        side, (_, _, channels), before = self.side, x.shape, x
        x = ops.reshape(self.first(x), (-1, side, side, channels))
        if self.shift > 0:
            x = ops.roll(x, shift=[-self.shift, -self.shift], axis=[1, 2])
        windows = self.attention(ops.reshape(partitioned(x, 2), (-1, 4, channels)), mask=self.mask)
        x = merged(windows, 2, side, side, channels)
        if self.shift > 0:
            x = ops.roll(x, shift=[self.shift, self.shift], axis=[1, 2])
        x = ops.reshape(x, (-1, side * side, channels))
        x = before + self.drop_path(x, training=training)
        return x + self.drop_path(self.dense(self.second(x)))


class PatchMerging(layers.Layer):
    """Joins four neighbours and projects them."""

    def __init__(self, side: int, width: int) -> None:
        super().__init__()
        self.side, self.project = side, layers.Dense(2 * width, use_bias=False)

    def call(self, x: Any) -> Any:
        """Return a quarter of the patches."""
        _, _, channels = x.shape
        x = ops.reshape(x, (-1, self.side, self.side, channels))
        x = ops.concatenate([x[:, a::2, b::2, :] for b in (0, 1) for a in (0, 1)], axis=-1)
        return self.project(ops.reshape(x, (-1, (self.side // 2) ** 2, 4 * channels)))


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

    def __init__(self, size: int, number: int, width: int) -> None:
        super().__init__()
        self.size, self.project = size, layers.Dense(width)
        self.flatten = layers.Reshape((number, -1))
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
        return self.project(self.normalize(self.flatten(patches))), patches


class AddPositions(layers.Layer):
    """Adds an embedding of positions, a tensor that the layer keeps."""

    def __init__(self, number: int, width: int) -> None:
        super().__init__()
        self.embedding = layers.Embedding(number, width)
        self.places = ops.arange(start=0, stop=number, step=1)

    def call(self, x: Any) -> Any:
        """Return the sum."""
        return x + self.embedding(self.places)


class LocalityAttention(layers.MultiHeadAttention):
    """Attention of Keras with a temperature, a variable that `add_weight` has not made."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tau = keras.Variable(float(self._key_dim) ** 0.5, trainable=True)

    def _compute_attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: Any = None,
        return_attention_scores: bool = False,
    ) -> Any:
        query = ops.multiply(query, 1.0 / self.tau)
        scores = ops.einsum(self._dot_product_equation, key, query)
        scores = self._masked_softmax(scores, attention_mask)
        dropped = self._dropout_layer(scores, training=training)
        return ops.einsum(self._combine_equation, dropped, value), scores


@example("vision")
def vit_small_ds(random: float) -> Made:
    """Return shifted patches and attention that leaves out a token itself."""
    inputs = keras.Input((16, 16, 3))
    augment = augmentation(random, layers.RandomRotation(0.02), size=16)
    x = AddPositions(16, 16)(ShiftedPatches(4, 16, 16)(augment(inputs))[0])
    mask = ops.cast([1 - ops.eye(16)], dtype="int8")
    for _ in range(2):
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        attention = LocalityAttention(num_heads=2, key_dim=16, dropout=0.1 * random)
        x = layers.Add()([attention(normed, normed, attention_mask=mask), x])
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.Add()([mlp(y, [32, 16], 0.1 * random), x])
    x = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x))
    x = mlp(layers.Dropout(0.5 * random)(x), [32, 16], 0.5 * random)
    optimizer = keras.optimizers.AdamW(1e-3, weight_decay=1e-4)
    model, y_rows = keras.Model(inputs, layers.Dense(10)(x)), labels(10, 1, dtype="uint8")
    return Made(model, images(16, 16, 3), y_rows, **sparse(optimizer=optimizer))


class SqueezeExcite(layers.Layer):
    """Weighs channels by their means."""

    def build(self, shape: Any) -> None:
        """Make the layers, which are built when they are called."""
        self.pool = layers.GlobalAvgPool2D(keepdims=True)
        self.dense = [
            *(layers.Dense(shape[-1] // 4, use_bias=False), layers.Activation("gelu")),
            *(layers.Dense(shape[-1], use_bias=False), layers.Activation("sigmoid")),
        ]
        super().build(shape)

    def call(self, inputs: Any, **options: Any) -> Any:
        """Return weighed channels."""
        x = self.pool(inputs)
        for layer in self.dense:
            x = layer(x)
        return x * inputs


class Reduce(layers.Layer):
    """Convolves, adds and shrinks by a strided convolution or by a pool.

    Args:
        growth: Of the channels; None for a pool, which has no normalization.
    """

    def __init__(self, growth: int | None) -> None:
        super().__init__()
        self.growth = growth

    def build(self, shape: Any) -> None:
        """Make the layers."""
        self.pads = [layers.ZeroPadding2D(1) for _ in range(2)]
        self.steps = [
            *(layers.DepthwiseConv2D(3, use_bias=False), layers.Activation("gelu")),
            *(SqueezeExcite(), layers.Conv2D(shape[-1], 1, use_bias=False)),
        ]
        if self.growth:
            self.norms = [layers.LayerNormalization(-1, 1e-5) for _ in range(2)]
            self.shrink = layers.Conv2D(self.growth * shape[-1], 3, 2, use_bias=False)
        else:
            self.shrink = layers.MaxPool2D(3, 2)
        super().build(shape)

    def call(self, inputs: Any, **options: Any) -> Any:
        """Return images of half the side."""
        x = self.norms[0](inputs) if self.growth else inputs
        y = self.pads[0](x)
        for step in self.steps:
            y = step(y)
        x = self.shrink(self.pads[1](x + y))
        return self.norms[1](x) if self.growth else x


class WindowAttention(layers.Layer):
    """Attention inside of windows, whose queries may be given for the whole image."""

    def __init__(self, size: int, heads: int, is_global: bool) -> None:
        super().__init__()
        self.size, self.heads, self.is_global = size, heads, is_global

    def build(self, shapes: Any) -> None:
        """Make the table and the layers."""
        width = shapes[0][-1]
        self.project = layers.Dense(width * (2 if self.is_global else 3))
        self.biases = self.add_weight(
            shape=[(2 * self.size - 1) ** 2, self.heads],
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            name="biases",
        )
        self.drops = [layers.Dropout(0.0) for _ in range(2)]
        self.leave, self.softmax = layers.Dense(width), layers.Activation("softmax")
        super().build(shapes)

    def call(self, inputs: Any, **options: Any) -> Any:
        """Return windows; inputs are a list of them, and of queries where those are global."""
        windows, *given = inputs
        batch_size, number, channels = ops.shape(windows)
        per_head = channels // self.heads
        shape = [batch_size, number, 3 - len(given), self.heads, per_head]
        parts = ops.transpose(ops.reshape(self.project(windows), shape), [2, 0, 3, 1, 4])
        parts = [ops.squeeze(part, 0) for part in ops.split(parts, 3 - len(given), axis=0)]
        if given:
            queries = ops.repeat(given[0], batch_size // ops.shape(given[0])[0], axis=0)
            queries = ops.reshape(queries, [batch_size, number, self.heads, per_head])
            parts.insert(0, ops.transpose(queries, [0, 2, 1, 3]))
        query, key, value = parts
        scores = query * per_head**-0.5 @ ops.transpose(key, [0, 1, 3, 2])
        scores = scores + position_bias(self.biases, ops.convert_to_tensor(self.places()))
        x = ops.transpose(self.drops[0](self.softmax(scores)) @ value, [0, 2, 1, 3])
        return self.drops[1](self.leave(ops.reshape(x, [batch_size, number, channels])))

    def places(self) -> Any:
        """Return the rows of the table, made anew in each call."""
        grid = ops.meshgrid(*[ops.arange(self.size)] * 2, indexing="ij")
        places = ops.reshape(ops.stack(grid, axis=0), [2, -1])
        moves = places[:, :, None] - places[:, None, :] + self.size - 1
        return moves[0] * (2 * self.size - 1) + moves[1]


class Block(layers.Layer):
    """A block of local windows, or of windows with global queries."""

    def __init__(self, size: int, heads: int, is_global: bool, rate: float) -> None:
        super().__init__()
        self.size, self.heads, self.is_global, self.rate = size, heads, is_global, rate

    def build(self, shapes: Any) -> None:
        """Make the layers."""
        channels = shapes[0][-1]
        self.norms = [layers.LayerNormalization(-1, 1e-5) for _ in range(2)]
        self.attention = WindowAttention(self.size, self.heads, self.is_global)
        self.drops = [StochasticDepth(self.rate) for _ in range(2)]
        self.dense = feed_forward([3 * channels, channels], 0.0)
        super().build(shapes)

    def call(self, inputs: Any, **options: Any) -> Any:
        """Return images; inputs are a list of images, and of queries where those are global."""
        images, *queries = inputs
        _, height, width, channels = ops.shape(images)
        windows = partitioned(self.norms[0](images), self.size)
        windows = ops.reshape(windows, [-1, self.size**2, channels])
        x = merged(self.attention([windows, *queries]), self.size, height, width, channels)
        x = images + self.drops[0](x * 1.0)
        return x + self.drops[1](1.0 * self.dense(self.norms[1](x)))


class Level(layers.Layer):
    """Makes queries of an image and runs blocks in turn without and with them."""

    def build(self, shape: Any) -> None:
        """Make the layers."""
        self.queries = Reduce(None)
        self.blocks = [Block(4, 2, is_global, 0.2 * is_global) for is_global in (False, True)]
        super().build(shape)

    def call(self, inputs: Any, **options: Any) -> Any:
        """Return images."""
        queries = self.queries(inputs)
        return self.blocks[1]([self.blocks[0]([inputs]), queries])


@example("vision")
def image_classification_using_global_context_vision_transformer(random: float) -> Made:
    """Return a subclassed model of local and global windows; its layers make theirs in `build`."""

    def build(base: Any) -> Any:
        class GlobalContext(base):
            """A stem, a level and a head."""

            def __init__(self) -> None:
                super().__init__()
                self.stem = [layers.ZeroPadding2D(1), layers.Conv2D(8, 3, 2), Reduce(1)]
                self.drop, self.level = layers.Dropout(0.0), Level()
                self.normalize = layers.LayerNormalization(-1, 1e-5)
                self.pool, self.head = layers.GlobalAvgPool2D(), layers.Dense(5, "softmax")

            def build(self, shape: Any) -> None:
                super().build(shape)
                self.built = True

            def call(self, inputs: Any, **options: Any) -> Any:
                x = inputs
                for layer in self.stem:
                    x = layer(x)
                return self.head(self.pool(self.normalize(self.level(self.drop(x)))))

        return GlobalContext()

    loss = "sparse_categorical_crossentropy"
    return Made(build, numbers(32, 32, 3), labels(5), loss, ["accuracy"])


class Attention(layers.Layer):
    """Attention with a normalization for each input; it keeps its scores for plots."""

    def __init__(self, width: int, rate: float) -> None:
        super().__init__()
        self.attention = layers.MultiHeadAttention(1, width, dropout=rate)
        self.norms = [layers.LayerNormalization(epsilon=1e-5) for _ in range(3)]
        self.attention_scores = None

    def call(self, input_query: Any, key: Any, value: Any) -> Any:
        """Return the queries, changed."""
        given = (input_query, key, value)
        query, key, value = (norm(x) for norm, x in zip(self.norms, given, strict=True))
        found, scores = self.attention(
            query=query, key=key, value=value, return_attention_scores=True
        )
        self.attention_scores = scores
        return input_query + found


class AttentionAndDense(layers.Layer):
    """One attention for each of two streams, and dense layers; only some of them may ever run."""

    def __init__(self, width: int, rate: float) -> None:
        super().__init__()
        self.streams = {name: Attention(width, rate) for name in ("fast", "slow")}
        self.normalize = layers.LayerNormalization(epsilon=1e-5)
        self.dense = feed_forward([4 * width, width], rate)
        self.attention_scores = None

    def build(self, shape: Any) -> None:
        """Say that the layer is built; its parts are built when they are called."""
        self.built = True

    def call(self, query: Any, key: Any, value: Any, stream: str = "fast") -> Any:
        """Return the queries, changed by the attention of a stream."""
        x = self.streams[stream](query, key, value)
        self.attention_scores = self.streams[stream].attention_scores
        return x + self.dense(self.normalize(x))


class TwoStreams(layers.Layer):
    """A recurrent cell: a fast stream over a chunk of tokens, a slow stream between chunks."""

    def __init__(self, chunk: int, width: int, rate: float) -> None:
        super().__init__()
        self.chunk, self.width, self.state_size = chunk, width, chunk * width
        self.fast = [AttentionAndDense(width, rate) for _ in range(3)]
        self.slow = AttentionAndDense(width, rate)

    def build(self, shape: Any) -> None:
        """Say that the cell is built."""
        self.built = True

    def call(self, inputs: Any, states: Any) -> Any:
        """Return the fast stream and the slow one, flattened."""
        slow, x = ops.reshape(states[0], (-1, self.chunk, self.width)), inputs
        for place, layer in enumerate(self.fast):
            x = layer(query=x, key=x, value=x, stream="fast")
            if place % 2 == 0:
                x = layer(query=x, key=slow, value=slow, stream="slow")
        slow = self.slow(query=slow, key=x, value=x)
        return x, [ops.reshape(slow, (-1, self.chunk * self.width))]


class ChunkedPatches(layers.Layer):
    """Cuts images into patches and those into chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.flatten = layers.Conv2D(16, 4, 4), layers.Reshape((-1, 16))
        self.add_positions = AddPositions(16, 16)
        self.normalize = layers.LayerNormalization(epsilon=1e-5)
        self.chunks = layers.Reshape((4, 4, 16))

    def call(self, images: Any) -> Any:
        """Return chunks of shape `(batch, chunks, patches, width)`."""
        return self.chunks(self.normalize(self.add_positions(self.flatten(self.project(images)))))


@example("vision")
def temporal_latent_bottleneck(random: float) -> Made:
    """Return a subclassed model in half precision: recurrence over chunks, a cell of attention.

    The comparison of a step is in full precision.
    """
    keras.config.set_dtype_policy("mixed_float16" if random else "float32")

    def build(base: Any) -> Any:
        class Bottleneck(base):
            """Patches, recurrence, a mean and a head."""

            def __init__(self) -> None:
                super().__init__()
                self.patches = ChunkedPatches()
                self.rnn = layers.RNN(TwoStreams(4, 16, 0.2 * random), unroll=False)
                self.pool = layers.GlobalAveragePooling1D()
                self.head = layers.Dense(10, "softmax", dtype="float32")

            def call(self, inputs: Any) -> Any:
                return self.head(self.pool(self.rnn(self.patches(inputs))))

        return Bottleneck()

    optimizer = keras.optimizers.AdamW(1e-4, weight_decay=1e-4)
    loss, y_rows = "sparse_categorical_crossentropy", labels(10, 1, dtype="uint8")
    return Made(build, numbers(16, 16, 3), y_rows, loss, ["accuracy"], optimizer)


PROGRAMS = (
    perceiver_image_classification,
    swin_transformers,
    vit_small_ds,
    image_classification_using_global_context_vision_transformer,
    temporal_latent_bottleneck,
)
