"""What a program is, and what programs share: random rows, patches, positions, augmentation.

Programs are rebuilt at a small size from what is peculiar to their source: layers, losses, metrics,
inputs, masks, shapes of targets. `random` is 1.0, or 0.0 for the same model without dropout and
augmentation, whose gradients are known.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import layers, ops

ROWS = 64
EXAMPLES = "https://keras.io/examples/"


@dataclass
class Made:
    """A program that is ready to run.

    Args:
        model: A functional model or a task, or a function from the base class to a subclassed one.
        x: `ROWS` rows, one array or a structure of arrays.
        y: Their targets, or None.
        loss: Of `compile`; None if the model has its own.
        metrics: Of `compile`.
        optimizer: The program's own.
        fit: Other arguments of `fit`, such as `callbacks` and `class_weight`.
    """

    model: Any
    x: Any
    y: Any = None
    loss: Any = None
    metrics: Any = None
    optimizer: Any = "adam"
    fit: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """An entry of the suite.

    Args:
        name: For the table and the command line.
        source: Address of what it is rebuilt from.
        make: Makes the program; 0.0 leaves out random layers.
        left_out: Why it does not run on these backends, by backend.
    """

    name: str
    source: str
    make: Callable[[float], Made]
    left_out: dict[str, str] = field(default_factory=dict)


def example(folder: str, **left_out: str) -> Callable[[Callable[[float], Made]], Program]:
    """Return a decorator that makes a `Program` of a function named as an example of keras.io."""

    def program(make: Callable[[float], Made]) -> Program:
        name = make.__name__.lstrip("_")
        return Program(name, f"{EXAMPLES}{folder}/{name}/", make, left_out)

    return program


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Return random numbers from 0 to 1, of shape `(ROWS, *shape)`."""
    return np.random.default_rng(seed).random((ROWS, *shape)).astype("float32")


def labels(num_classes: int, *shape: int, seed: int = 1) -> np.ndarray:
    """Return random integers, of shape `(ROWS, *shape)`."""
    return np.random.default_rng(seed).integers(0, num_classes, (ROWS, *shape))


def one_hot(num_classes: int, *shape: int) -> np.ndarray:
    """Return random labels, of shape `(ROWS, *shape, num_classes)`."""
    return np.eye(num_classes, dtype="float32")[labels(num_classes, *shape)]


def stopping(patience: int = 10) -> keras.callbacks.Callback:
    """Return early stopping that restores the best weights."""
    return keras.callbacks.EarlyStopping("val_loss", patience=patience, restore_best_weights=True)


def slower() -> keras.callbacks.Callback:
    """Return a callback that lowers the learning rate."""
    return keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=5)


def checkpoint(monitor: str = "val_loss") -> keras.callbacks.Callback:
    """Return a callback that stores the best weights in the working directory."""
    return keras.callbacks.ModelCheckpoint(
        "best.weights.h5", monitor, save_best_only=True, save_weights_only=True
    )


def sparse(**options: Any) -> dict[str, Any]:
    """Return loss and metrics of most classifiers with logits."""
    return {
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "metrics": [
            keras.metrics.SparseCategoricalAccuracy(name="acc"),
            keras.metrics.SparseTopKCategoricalAccuracy(5, name="top5-acc"),
        ],
        **options,
    }


def smoothed(from_logits: bool) -> dict[str, Any]:
    """Return loss and metrics of classifiers with smoothed labels."""
    return {
        "loss": keras.losses.CategoricalCrossentropy(from_logits=from_logits, label_smoothing=0.1),
        "metrics": [
            keras.metrics.CategoricalAccuracy(name="accuracy"),
            keras.metrics.TopKCategoricalAccuracy(5, name="top-5-accuracy"),
        ],
    }


def augmentation(random: float, size: int, rotation: float = 0.02) -> keras.Sequential:
    """Return adapted normalization, resizing, flips, rotations and zooms."""
    normalization = layers.Normalization()
    normalization.adapt(numbers(8, 8, 3))
    moves = [
        layers.RandomFlip("horizontal"),
        layers.RandomRotation(rotation),
        layers.RandomZoom(0.2, 0.2),
    ]
    return keras.Sequential(
        [normalization, layers.Resizing(size, size), *(moves if random else [])]
    )


class Patches(layers.Layer):
    """Cuts images into patches, each flattened."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def call(self, images: Any) -> Any:
        """Return patches of shape `(batch, number, pixels)`."""
        patches = ops.image.extract_patches(images, self.size)
        return ops.reshape(patches, (-1, patches.shape[1] * patches.shape[2], patches.shape[3]))


class PatchEncoder(layers.Layer):
    """Projects patches and adds an embedding of their positions, looked up without a batch axis.

    Args:
        number: Of patches.
        width: Of the embedding.
        has_batch_axis: Whether positions have a batch axis of one.
    """

    def __init__(self, number: int, width: int, has_batch_axis: bool = False) -> None:
        super().__init__()
        self.number, self.has_batch_axis = number, has_batch_axis
        self.projection = layers.Dense(width)
        self.positions = layers.Embedding(number, width)

    def build(self, shape: Any) -> None:
        """Build both parts."""
        self.projection.build(shape)
        self.positions.build((self.number,))

    def call(self, patches: Any) -> Any:
        """Return encoded patches."""
        places = ops.arange(self.number)
        if self.has_batch_axis:
            places = ops.expand_dims(places, 0)
        return self.projection(patches) + self.positions(places)


def mlp(x: Any, widths: list[int], rate: float, activation: Any = "gelu") -> Any:
    """Return dense layers with dropout."""
    for width in widths:
        x = layers.Dropout(rate)(layers.Dense(width, activation)(x))
    return x


def transformer(x: Any, width: int, random: float, heads: int = 2, rate: float = 0.1) -> Any:
    """Return a block of attention and dense layers, normalized first."""
    normed = layers.LayerNormalization(epsilon=1e-6)(x)
    attention = layers.MultiHeadAttention(heads, width, dropout=rate * random)(normed, normed)
    x = layers.Add()([attention, x])
    normed = layers.LayerNormalization(epsilon=1e-6)(x)
    return layers.Add()([mlp(normed, [2 * width, width], rate * random), x])
