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


def images(*shape: int) -> np.ndarray:
    """Return random bytes, as `keras.datasets` has them, of shape `(ROWS, *shape)`."""
    return np.random.default_rng(0).integers(0, 256, (ROWS, *shape), "uint8")


def labels(num_classes: int, *shape: int, seed: int = 1, dtype: str = "int64") -> np.ndarray:
    """Return random integers, of shape `(ROWS, *shape)`."""
    return np.random.default_rng(seed).integers(0, num_classes, (ROWS, *shape)).astype(dtype)


def one_hot(num_classes: int, *shape: int) -> np.ndarray:
    """Return random labels, of shape `(ROWS, *shape, num_classes)`."""
    return np.eye(num_classes, dtype="float32")[labels(num_classes, *shape)]


def stopping(patience: int = 10, **options: Any) -> keras.callbacks.Callback:
    """Return early stopping that restores the best weights, unless the options say otherwise."""
    options = {"restore_best_weights": True, "patience": patience, **options}
    return keras.callbacks.EarlyStopping(**options)


def slower(monitor: str = "val_loss", **options: Any) -> keras.callbacks.Callback:
    """Return a callback that lowers the learning rate."""
    return keras.callbacks.ReduceLROnPlateau(monitor, **{"factor": 0.5, "patience": 5, **options})


def checkpoint(monitor: str = "val_loss") -> keras.callbacks.Callback:
    """Return a callback that stores the best weights in the working directory."""
    return keras.callbacks.ModelCheckpoint(
        "best.weights.h5", monitor, save_best_only=True, save_weights_only=True
    )


def saved_model(monitor: str = "val_loss") -> keras.callbacks.Callback:
    """Return a callback that stores the best model, with its layers and its optimizer."""
    return keras.callbacks.ModelCheckpoint("best.keras", monitor, save_best_only=True)


class PredictionsOfEpochs(keras.callbacks.Callback):
    """Predicts after each epoch.

    Args:
        x: Rows.
        model: A model that shares layers with the one that is trained; None for that one.
    """

    def __init__(self, x: Any, model: keras.Model | None = None) -> None:
        super().__init__()
        self.x, self.other = x, model

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Predict."""
        (self.other or self.model).predict(self.x, verbose=0)


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


def augmentation(random: float, *moves: layers.Layer, size: int | None = None) -> keras.Sequential:
    """Return adapted normalization, resizing, flips, other moves, and zooms.

    Args:
        random: 0.0 leaves out what is random.
        moves: Between flips and zooms.
        size: Of the images afterwards; None if they are not resized.
    """
    normalization = layers.Normalization()
    normalization.adapt(images(8, 8, 3))
    resizing = [layers.Resizing(size, size)] if size else []
    moves = (layers.RandomFlip("horizontal"), *moves, layers.RandomZoom(0.2, 0.2))
    return keras.Sequential([normalization, *resizing, *(moves if random else [])])


class Patches(layers.Layer):
    """Cuts images into patches, each flattened."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def call(self, images: Any) -> Any:
        """Return patches of shape `(batch, number, pixels)`."""
        batch_size, height, width, channels = ops.shape(images)
        number = (height // self.size) * (width // self.size)
        patches = ops.image.extract_patches(images, self.size)
        return ops.reshape(patches, (batch_size, number, self.size**2 * channels))


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


def transformer(x: Any, width: int, random: float, activation: Any = "gelu") -> Any:
    """Return a block of attention and dense layers, normalized first."""
    normed = layers.LayerNormalization(epsilon=1e-6)(x)
    attention = layers.MultiHeadAttention(2, width, dropout=0.1 * random)(normed, normed)
    x = layers.Add()([attention, x])
    normed = layers.LayerNormalization(epsilon=1e-6)(x)
    return layers.Add()([mlp(normed, [2 * width, width], 0.1 * random, activation), x])


def vision_transformer(x: Any, random: float, rate: float) -> Any:
    """Return features of images by patches, two blocks and two dense layers.

    Args:
        x: Images.
        random: 0.0 leaves out dropout.
        rate: Of dropout between the dense layers.
    """
    x = PatchEncoder((x.shape[1] // 4) ** 2, 16, has_batch_axis=True)(Patches(4)(x))
    for _ in range(2):
        x = transformer(x, 16, random)
    x = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x))
    return mlp(layers.Dropout(rate * random)(x), [32, 16], rate * random)


def ctc_cost(y_true: Any, y_pred: Any) -> Any:
    """Return the cost of sequences of labels, of shape `(batch, 1)`; the last class is blank."""
    batch_size = ops.shape(y_true)[0]
    lengths = [ops.shape(y)[1] * ops.ones((batch_size,), "int32") for y in (y_true, y_pred)]
    logits = ops.log(y_pred + keras.backend.epsilon())
    blank = y_pred.shape[-1] - 1
    cost = ops.ctc_loss(ops.cast(y_true, "int32"), logits, *lengths, mask_index=blank)
    return ops.expand_dims(cost, 1)
