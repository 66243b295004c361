"""Arrays of pixels, as they are published, to `ImageData`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_adaclip.datasets.image_data import ImageData

Parts = Sequence[np.ndarray]


def from_keras(load_data: Any) -> list[np.ndarray]:
    """What a `load_data` of Keras gives, as four arrays in one list.

    Args:
        load_data: the function.
    """
    (x_train, y_train), (x_test, y_test) = load_data()
    return [x_train, y_train, x_test, y_test]


def from_rows(rows: Mapping[str, Iterable[Mapping[str, Any]]]) -> list[np.ndarray]:
    """The rows of TensorFlow Datasets, as four arrays in one list.

    Args:
        rows: for the name of each split its rows, with `image` and `label`.
    """
    parts = []
    for split in rows.values():
        images, labels = zip(*((row["image"], row["label"]) for row in split), strict=True)
        parts += [np.stack(images), np.asarray(labels)]
    return parts


def image_data(name: str, parts: Parts, origin: str, largest: float = 255.0) -> ImageData:
    """Training images and labels, test images and labels, as the examples want them.

    Args:
        name: name of the data set.
        parts: images of shape `(num, height, width)` or `(num, height, width, channels)` and
            labels of shape `(num,)` or `(num, 1)`, for training and for test.
        origin: where they came from.
        largest: the value of a white pixel.

    Raises:
        ValueError: where images and labels differ in number.
    """
    x_train, y_train, x_test, y_test = parts
    for x, y in ((x_train, y_train), (x_test, y_test)):
        if len(x) != len(y):
            raise ValueError(f"{name} from {origin} has {len(x)} images and {len(y)} labels.")
    return ImageData(
        _scaled(x_train, largest),
        _labels(y_train),
        _scaled(x_test, largest),
        _labels(y_test),
        f"{name}, {len(x_train):,} + {len(x_test):,} images ({origin})",
    )


def _scaled(images: np.ndarray, largest: float) -> np.ndarray:
    if images.ndim == 3:
        images = images[..., None]
    return images.astype(np.float32) / np.float32(largest)


def _labels(labels: np.ndarray) -> np.ndarray:
    return np.asarray(labels).reshape(-1).astype(np.int32)
