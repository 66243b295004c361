"""MNIST: 70,000 grey handwritten digits (LeCun et al. 1998)."""

from pathlib import Path

import keras
import numpy as np

from keras_adaclip.datasets import pixels
from keras_adaclip.datasets.files import read_idx_folder, read_npz
from keras_adaclip.datasets.image_data import ImageData
from keras_adaclip.datasets.sources import (
    first_available,
    keras_source,
    local_source,
    tfds_source,
)

_FILES = "`mnist.npz`, as Keras publishes it, or the four IDX files in `mnist/`"
_PUBLISHED_AT = "https://storage.googleapis.com/cvdf-datasets/mnist/train-labels-idx1-ubyte.gz"


def load_mnist() -> ImageData:
    """MNIST: 60,000 training and 10,000 test images of 28x28 grey pixels, 10 classes.

    Looked for in this order:

    1. in the folder that the environment variable `KERAS_ADACLIP_DATA` names: `mnist.npz`, as
       Keras publishes it, or the four IDX files (`train-images-idx3-ubyte` and so on, with or
       without `.gz`) in `mnist/` or `MNIST/raw/`;
    2. `keras.datasets.mnist`, which downloads it once;
    3. TensorFlow Datasets, `mnist` (`pip install keras-adaclip[datasets]`).

    Raises:
        FileNotFoundError: where none has it; the message says what each answered.
        ValueError: where a local file is broken.
    """
    parts, origin = first_available(
        "MNIST",
        (
            local_source(_read, _FILES),
            keras_source(lambda: pixels.from_keras(keras.datasets.mnist.load_data)),
            tfds_source("mnist", pixels.from_rows, published_at=_PUBLISHED_AT),
        ),
        _FILES,
    )
    return pixels.image_data("MNIST", parts, origin)


def _read(folder: Path) -> list[np.ndarray] | None:
    if (folder / "mnist.npz").is_file():
        return read_npz(folder / "mnist.npz", ("x_train", "y_train", "x_test", "y_test"))
    return read_idx_folder((folder / "mnist", folder / "MNIST" / "raw"))
