"""The models of the speed benchmark, each one entry in `SUITE`.

The builders are handed the Keras to build with, Keras 3 or `tf_keras`: nothing but NumPy is
imported here, so that the module loads in the environment of every peer.
"""

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
        network: the name under which peers have it.
        build: makes inputs and outputs of a functional Keras model, with the `keras` module that it
            is given; outputs are logits.
        data: makes inputs and integer targets for a number of rows.
        batch_size: rows a step.
        num_trainable: trainable numbers, the same in every framework.
    """

    title: str
    network: str
    build: Callable[[Any], tuple[Any, Any]]
    data: Callable[[int], Arrays]
    batch_size: int
    num_trainable: int

    def check_size(self, num_trainable: int) -> None:
        """Refuses a model of another size.

        Args:
            num_trainable: trainable numbers of the model as a framework counts them.

        Raises:
            ValueError: where that is not the number of this benchmark.
        """
        if num_trainable != self.num_trainable:
            raise ValueError(
                f"{self.title} has {self.num_trainable} trainable numbers. "
                f"Received: num_trainable={num_trainable}"
            )


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


def _fashion_mnist_cnn(keras: Any) -> tuple[Any, Any]:
    """The network of table B1 of Lin et al. 2022."""
    layers = keras.layers
    inputs = keras.Input((28, 28, 1))
    x = layers.Conv2D(16, 3, strides=2, padding="same", activation="relu")(inputs)
    x = layers.MaxPooling2D(2, strides=1)(x)
    x = layers.Conv2D(32, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(2, strides=1)(x)
    x = layers.Dense(32, activation="relu")(layers.Flatten()(x))
    return inputs, layers.Dense(10)(x)


def _cifar_cnn(keras: Any) -> tuple[Any, Any]:
    """The network of table B2 of Lin et al. 2022."""
    layers = keras.layers
    inputs = x = keras.Input((32, 32, 3))
    for filters in (32, 64, 128):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
        x = layers.MaxPooling2D(2)(x)
    x = layers.Dense(128, activation="relu")(layers.Flatten()(x))
    return inputs, layers.Dense(10)(x)


def _resnet_20(keras: Any) -> tuple[Any, Any]:
    """He et al. 2016, section 4.2, with group normalization."""
    layers = keras.layers

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


LENGTH, WIDTH, VOCABULARY = 128, 128, 10_000
LSTM_LENGTH, LSTM_WIDTH, LSTM_UNITS = 64, 64, 128


def _transformer(keras: Any, is_frozen: bool = False) -> tuple[Any, Any]:
    """Two pre-norm blocks with four heads; the positions are learned."""
    layers = keras.layers

    class Positions(layers.Layer):
        """The number of each token, of the shape of the tokens."""

        def call(self, tokens: Any) -> Any:
            if hasattr(keras, "ops"):
                return keras.ops.broadcast_to(keras.ops.arange(LENGTH), keras.ops.shape(tokens))
            import tensorflow as tf

            return tf.broadcast_to(tf.range(LENGTH), tf.shape(tokens))

    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, WIDTH)(inputs)
    x = x + layers.Embedding(LENGTH, WIDTH)(Positions(dtype="int32")(inputs))
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, WIDTH // 4)(y, y)
        y = layers.Dense(4 * WIDTH, activation="gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(WIDTH)(y)
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    if is_frozen:
        for layer in keras.Model(inputs, x).layers:
            layer.trainable = False
        x = layers.Dense(WIDTH, activation="gelu")(x)
    return inputs, layers.Dense(2)(x)


def _frozen_transformer(keras: Any) -> tuple[Any, Any]:
    return _transformer(keras, is_frozen=True)


def _lstm(keras: Any) -> tuple[Any, Any]:
    layers = keras.layers
    inputs = keras.Input((LSTM_LENGTH,), dtype="int32")
    x = layers.LSTM(LSTM_UNITS)(layers.Embedding(VOCABULARY, LSTM_WIDTH)(inputs))
    return inputs, layers.Dense(2)(x)


def _wide_mlp(keras: Any) -> tuple[Any, Any]:
    layers = keras.layers
    inputs = x = keras.Input((784,))
    for _ in range(2):
        x = layers.Dense(2048, activation="relu")(x)
    return inputs, layers.Dense(10)(x)


_PICTURES, _TEXT = _images((32, 32, 3)), _tokens(LENGTH, VOCABULARY)


def _cnn(batch_size: int) -> Benchmark:
    title, data = f"Fashion-MNIST CNN, {batch_size}", _images((28, 28, 1))
    return Benchmark(title, "fashion_mnist_cnn", _fashion_mnist_cnn, data, batch_size, 152_618)


SUITE = {
    "cnn-256": _cnn(256),
    "cnn-1024": _cnn(1024),
    "cifar": Benchmark("CIFAR CNN, 512", "cifar_cnn", _cifar_cnn, _PICTURES, 512, 550_570),
    "resnet": Benchmark(
        "ResNet-20 GroupNorm, 128", "resnet_20", _resnet_20, _PICTURES, 128, 272_474
    ),
    "transformer": Benchmark("transformer, 64", "transformer", _transformer, _TEXT, 64, 1_693_442),
    "lstm": Benchmark("LSTM, 64", "lstm", _lstm, _tokens(LSTM_LENGTH, VOCABULARY), 64, 739_074),
    "mlp": Benchmark(
        "MLP 784-2048-2048-10, 256", "wide_mlp", _wide_mlp, _images((784,)), 256, 5_824_522
    ),
    "head": Benchmark(
        "frozen transformer, trained head, 64",
        "frozen_transformer",
        _frozen_transformer,
        _TEXT,
        64,
        16_770,
    ),
}
