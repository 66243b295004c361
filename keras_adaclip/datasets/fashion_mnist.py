"""Fashion-MNIST (Xiao et al. 2017), or the nearest real images that this machine has."""

from pathlib import Path

import keras
import numpy as np

from keras_adaclip.datasets import pixels
from keras_adaclip.datasets.files import read_idx, read_idx_folder
from keras_adaclip.datasets.image_data import ImageData
from keras_adaclip.datasets.sources import (
    Source,
    UnavailableError,
    first_available,
    keras_source,
    local_source,
    tfds_source,
)

__all__ = ["ImageData", "load_fashion_mnist", "read_idx"]

_DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_FILES = "the four IDX files of Fashion-MNIST in `fashion-mnist/`"


def load_fashion_mnist(debian_folder: Path = _DEBIAN_FOLDER) -> ImageData:
    """Fashion-MNIST: 60,000 training and 10,000 test images of 28x28 grey pixels, 10 classes.

    Looked for in this order:

    1. in the folder that the environment variable `KERAS_ADACLIP_DATA` names: the four IDX files
       (`train-images-idx3-ubyte` and so on, with or without `.gz`) in `fashion-mnist/` or
       `FashionMNIST/raw/`;
    2. `keras.datasets.fashion_mnist`, which downloads it once;
    3. Debian's package `dataset-fashion-mnist`;
    4. TensorFlow Datasets, `fashion_mnist`, where that has prepared it before.

    Where none has it, the demo still is to run on real images: scikit-learn's 1,797 digits take
    its place, and `source` says so. No other loader puts one data set in the place of another.

    Args:
        debian_folder: where Debian's package puts its files.

    Returns:
        The data; `source` says which they are.

    Raises:
        ImportError: where neither a copy of the data nor scikit-learn is there.
        ValueError: where a local file is broken.
    """
    try:
        parts, origin = first_available(
            "Fashion-MNIST",
            (
                local_source(_read, _FILES),
                keras_source(lambda: pixels.from_keras(keras.datasets.fashion_mnist.load_data)),
                Source(f"Debian's files in {debian_folder}", lambda: _of_debian(debian_folder)),
                # No download: the digits are there, and they are at once.
                tfds_source("fashion_mnist", pixels.from_rows, published_at=None),
            ),
            _FILES,
        )
    except FileNotFoundError as error:
        return _scikit_learn_digits(str(error))
    return pixels.image_data("Fashion-MNIST", parts, origin)


def _read(folder: Path) -> list[np.ndarray] | None:
    return read_idx_folder((folder / "fashion-mnist", folder / "FashionMNIST" / "raw"))


def _of_debian(folder: Path) -> list[np.ndarray]:
    found = read_idx_folder((folder,))
    if found is None:
        raise UnavailableError("not installed (apt install dataset-fashion-mnist)")
    return found


def _scikit_learn_digits(answers: str) -> ImageData:
    """The 1,797 real digits of scikit-learn, 8x8 pixels, enlarged to 28x28."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "Fashion-MNIST could not be loaded, and scikit-learn, whose digits would take its "
            f"place, is missing: pip install keras-adaclip[datasets]\n{answers}"
        ) from error
    digits = load_digits()
    enlarged = np.kron(digits.images, np.ones((1, 3, 3)))
    images = np.pad(enlarged, ((0, 0), (2, 2), (2, 2)))
    labels = digits.target
    parts = (images[:1500], labels[:1500], images[1500:], labels[1500:])
    return pixels.image_data(
        "scikit-learn's digits", parts, "Fashion-MNIST could not be loaded", largest=16.0
    )
