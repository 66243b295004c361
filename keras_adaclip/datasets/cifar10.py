"""CIFAR-10: 60,000 small photographs of ten kinds of things (Krizhevsky 2009)."""

from pathlib import Path

import keras
import numpy as np

from keras_adaclip.datasets import pixels
from keras_adaclip.datasets.files import unpickled_arrays
from keras_adaclip.datasets.image_data import ImageData
from keras_adaclip.datasets.sources import (
    first_available,
    keras_source,
    local_source,
    tfds_source,
)

_FILES = "the unpacked `cifar-10-batches-py/` or `cifar-10-batches-bin/`"
_PUBLISHED_AT = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_SHAPE = (3, 32, 32)


def load_cifar10() -> ImageData:
    """CIFAR-10: 50,000 training and 10,000 test images of 32x32 coloured pixels, 10 classes.

    Looked for in this order:

    1. in the folder that the environment variable `KERAS_ADACLIP_DATA` names: the unpacked folder
       of either archive of <https://www.cs.toronto.edu/~kriz/cifar.html>, `cifar-10-batches-py/`
       or `cifar-10-batches-bin/`;
    2. `keras.datasets.cifar10`, which downloads it once;
    3. TensorFlow Datasets, `cifar10` (`pip install keras-adaclip[datasets]`).

    Raises:
        FileNotFoundError: where none has it; the message says what each answered.
        ValueError: where a local file is broken.
    """
    parts, origin = first_available(
        "CIFAR-10",
        (
            local_source(_read, _FILES),
            keras_source(_of_keras),
            tfds_source("cifar10", pixels.from_rows, published_at=_PUBLISHED_AT),
        ),
        _FILES,
    )
    return pixels.image_data("CIFAR-10", parts, origin)


def _of_keras() -> list[np.ndarray]:
    parts = pixels.from_keras(keras.datasets.cifar10.load_data)
    # Keras puts the colours first where its image data format says so.
    if parts[0].shape[1:] == _SHAPE:
        parts[0], parts[2] = (parts[index].transpose(0, 2, 3, 1) for index in (0, 2))
    return parts


def _read(folder: Path) -> list[np.ndarray] | None:
    readers = {
        "cifar-10-batches-py": ("", _read_python),
        "cifar-10-batches-bin": (".bin", _read_binary),
    }
    for name, (suffix, read) in readers.items():
        paths = [folder / name / f"{batch}{suffix}" for batch in _BATCHES]
        if all(path.is_file() for path in paths):
            images, labels = zip(*map(read, paths), strict=True)
            return [
                np.concatenate(images[:-1]),
                np.concatenate(labels[:-1]),
                images[-1],
                labels[-1],
            ]
    return None


def _read_python(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with path.open("rb") as file:
        try:
            batch = unpickled_arrays(file)
            return _images(np.asarray(batch[b"data"], np.uint8)), np.asarray(batch[b"labels"])
        except (ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{path} is not as it was published: {error}") from error


def _read_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """One byte of label and 3,072 of pixels an image."""
    content = np.frombuffer(path.read_bytes(), np.uint8)
    row = 1 + int(np.prod(_SHAPE))
    if content.size == 0 or content.size % row:
        raise ValueError(f"{path} holds {content.size} bytes, which is not {row} an image.")
    rows = content.reshape(-1, row)
    return _images(rows[:, 1:]), rows[:, 0]


def _images(values: np.ndarray) -> np.ndarray:
    return values.reshape(-1, *_SHAPE).transpose(0, 2, 3, 1)
