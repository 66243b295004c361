"""The networks of the comparison (Lin et al. 2022, appendix B) and their activations."""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

import keras_adaclip as ka


def table_b1(activation: Any) -> list[keras.Layer]:
    """The network of table B1.

    The table gives the last layer 32 units; there are ten classes, so that is taken for a misprint.
    """
    return [
        layers.Conv2D(16, 3, strides=2, padding="same", activation=activation()),
        layers.MaxPooling2D(2, strides=1),
        layers.Conv2D(32, 3, padding="same", activation=activation()),
        layers.MaxPooling2D(2, strides=1),
        layers.Flatten(),
        layers.Dense(32, activation=activation()),
        layers.Dense(10),
    ]


def table_b3(activation: Any) -> list[keras.Layer]:
    """The network of table B3, which the paper calls smaller.

    With 512 hidden units, as printed, it has more parameters than that of table B1 (281,034 and
    152,618); 512 is also what the second pooling leaves.
    """
    return [
        layers.Conv2D(16, 5, activation=activation()),
        layers.AveragePooling2D(2),
        layers.Conv2D(32, 5, activation=activation()),
        layers.AveragePooling2D(2),
        layers.Flatten(),
        layers.Dense(512, activation=activation()),
        layers.Dense(10),
    ]


def _tempered(*values: float) -> Callable[[], Any]:
    return lambda: ka.activations.TemperedSigmoid(*values)


NETWORKS = {"b1": table_b1, "b3": table_b3}

# What makes an activation for one layer. A tempered sigmoid has scale, inverse temperature and
# offset: (2, 2, 1) is tanh, the other is Papernot et al.'s (2021) choice.
ACTIVATIONS: dict[str, Callable[[], Any]] = {
    "relu": lambda: "relu",
    "tanh": lambda: "tanh",
    "tempered(2, 2, 1)": _tempered(2.0, 2.0, 1.0),
    "tempered(1.58, 3, 0.71)": _tempered(1.58, 3.0, 0.71),
}


def build(network: str, activation: str) -> keras.Model:
    """A private model for images of shape `(28, 28, 1)` and ten classes.

    Args:
        network: a key of `NETWORKS`.
        activation: a key of `ACTIVATIONS`.
    """
    stack = NETWORKS[network](ACTIVATIONS[activation])
    return ka.PrivateSequential([keras.Input((28, 28, 1)), *stack], name=f"network_{network}")
