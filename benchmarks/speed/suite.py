"""The models of the speed benchmark, each one entry in `SUITE`; building one imports Keras."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Benchmark:
    """A model and its data.

    Args:
        title: what it is.
        build: makes inputs and outputs of a functional Keras model; outputs are logits.
        data: makes inputs and integer targets for a number of rows.
        batch_size: rows a step.
    """

    title: str
    build: Callable[[], tuple[Any, Any]]
    data: Callable[[int], Arrays]
    batch_size: int


def _images(shape: tuple[int, ...], num_classes: int = 10) -> Callable[[int], Arrays]:
    def data(rows: int) -> Arrays:
        rng = np.random.default_rng(0)
        x = rng.random((rows, *shape), dtype=np.float32)
        return x, rng.integers(0, num_classes, rows)

    return data


def _tokens(length: int, vocabulary: int, num_classes: int = 2) -> Callable[[int], Arrays]:
    def data(rows: int) -> Arrays:
        rng = np.random.default_rng(0)
        x = rng.integers(0, vocabulary, (rows, length)).astype("int32")
        return x, rng.integers(0, num_classes, rows)

    return data


def _fashion_mnist_cnn() -> tuple[Any, Any]:
    """The network of table B1 of Lin et al. 2022."""
    import keras
    from keras import layers

    inputs = keras.Input((28, 28, 1))
    x = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(inputs)
    x = layers.MaxPooling2D(2, strides=1)(x)
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(2, strides=1)(x)
    x = layers.Dense(32, activation="relu")(layers.Flatten()(x))
    return inputs, layers.Dense(10)(x)


def _cifar_cnn() -> tuple[Any, Any]:
    """The network of table B2 of Lin et al. 2022."""
    import keras
    from keras import layers

    inputs = x = keras.Input((32, 32, 3))
    for filters in (32, 64, 128):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Dense(128, activation="relu")(layers.Flatten()(x))
    return inputs, layers.Dense(10)(x)


def _resnet_20() -> tuple[Any, Any]:
    """He et al. 2016, section 4.2, with group normalization."""
    import keras
    from keras import layers

    def convolution(x: Any, filters: int, strides: int = 1, size: int = 3) -> Any:
        x = layers.Conv2D(filters, size, strides=strides, padding="same", use_bias=False)(x)
        return layers.GroupNormalization(8)(x)

    inputs = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolution(inputs, 16))
    for filters, first_strides in ((16, 1), (32, 2), (64, 2)):
        for block in range(3):
            strides = first_strides if block == 0 else 1
            y = layers.ReLU()(convolution(x, filters, strides))
            y = convolution(y, filters)
            shortcut = x if x.shape[-1] == filters else convolution(x, filters, strides, 1)
            x = layers.ReLU()(layers.Add()([y, shortcut]))
    return inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


_LENGTH, _WIDTH, _VOCABULARY = 128, 128, 10_000


def _transformer(is_frozen: bool = False) -> tuple[Any, Any]:
    """Two pre-norm blocks with four heads; the positions are learned."""
    import keras
    from keras import layers

    class Positions(layers.Layer):
        """The number of each token, of the shape of the tokens."""

        def call(self, tokens: Any) -> Any:
            return keras.ops.broadcast_to(keras.ops.arange(_LENGTH), keras.ops.shape(tokens))

    inputs = keras.Input((_LENGTH,), dtype="int32")
    x = layers.Embedding(_VOCABULARY, _WIDTH)(inputs)
    x = x + layers.Embedding(_LENGTH, _WIDTH)(Positions(dtype="int32")(inputs))
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, _WIDTH // 4)(y, y)
        y = layers.Dense(4 * _WIDTH, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(_WIDTH)(y)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    if is_frozen:
        for layer in keras.Model(inputs, x).layers:
            layer.trainable = False
        x = layers.Dense(_WIDTH, activation="gelu")(x)
    return inputs, layers.Dense(2)(x)


def _lstm() -> tuple[Any, Any]:
    import keras
    from keras import layers

    inputs = keras.Input((64,), dtype="int32")
    x = layers.LSTM(128)(layers.Embedding(_VOCABULARY, 64)(inputs))
    return inputs, layers.Dense(2)(x)


def _wide_mlp() -> tuple[Any, Any]:
    import keras
    from keras import layers

    inputs = x = keras.Input((784,))
    for _ in range(2):
        x = layers.Dense(2048, activation="relu")(x)
    return inputs, layers.Dense(10)(x)


SUITE = {
    "cnn-256": Benchmark("Fashion-MNIST CNN, 256", _fashion_mnist_cnn, _images((28, 28, 1)), 256),
    "cnn-1024": Benchmark(
        "Fashion-MNIST CNN, 1024", _fashion_mnist_cnn, _images((28, 28, 1)), 1024
    ),
    "cifar": Benchmark("CIFAR CNN, 512", _cifar_cnn, _images((32, 32, 3)), 512),
    "resnet": Benchmark("ResNet-20 GroupNorm, 128", _resnet_20, _images((32, 32, 3)), 128),
    "transformer": Benchmark("transformer, 64", _transformer, _tokens(_LENGTH, _VOCABULARY), 64),
    "lstm": Benchmark("LSTM, 64", _lstm, _tokens(64, _VOCABULARY), 64),
    "mlp": Benchmark("MLP 784-2048-2048-10, 256", _wide_mlp, _images((784,)), 256),
    "head": Benchmark(
        "frozen transformer, trained head, 64",
        lambda: _transformer(is_frozen=True),
        _tokens(_LENGTH, _VOCABULARY),
        64,
    ),
}
