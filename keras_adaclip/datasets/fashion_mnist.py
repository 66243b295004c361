"""Fashion-MNIST (Xiao et al. 2017), or the nearest real images that this machine has."""

import gzip
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np

_DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_IDX_UNSIGNED_BYTE = 8


@dataclass(frozen=True)
class ImageData:
    """Grey images with labels, split into training and test data.

    Args:
        x_train: float32 of shape `(num_train, 28, 28, 1)`, between 0 and 1.
        y_train: int32 of shape `(num_train,)`, from 0 to 9.
        x_test: float32 of shape `(num_test, 28, 28, 1)`.
        y_test: int32 of shape `(num_test,)`.
        source: which data these are and where they came from, in words.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    source: str


def load_fashion_mnist(debian_folder: Path = _DEBIAN_FOLDER) -> ImageData:
    """Fashion-MNIST from Keras (cached or downloaded), else from Debian, else other digits.

    Args:
        debian_folder: where Debian's package `dataset-fashion-mnist` puts its files.

    Returns:
        The data; `source` says which of the three they are.

    Raises:
        ImportError: where neither a copy of the data nor scikit-learn is there.
    """
    try:
        with _time_limit(seconds=20.0):
            (x_train, y_train), (x_test, y_test) = keras.datasets.fashion_mnist.load_data()
        origin = "Keras's copy"
    # Keras raises a bare `Exception` where a download fails.
    except Exception:
        if all((debian_folder / name).exists() for name in _FILES):
            x_train, y_train, x_test, y_test = (read_idx(debian_folder / n) for n in _FILES)
            origin = f"Debian's files in {debian_folder}"
        else:
            return _scikit_learn_digits()
    return ImageData(
        _scaled(x_train, 255.0),
        y_train.astype(np.int32),
        _scaled(x_test, 255.0),
        y_test.astype(np.int32),
        f"Fashion-MNIST, {len(x_train):,} + {len(x_test):,} images ({origin})",
    )


def read_idx(path: Path) -> np.ndarray:
    """An array of unsigned bytes from a gzipped IDX file, the format of the MNIST family.

    Args:
        path: the file.

    Raises:
        ValueError: where the file is not such an array, or is truncated.
    """
    try:
        with gzip.open(path, "rb") as file:
            content = file.read()
    except (EOFError, OSError, zlib.error) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} is truncated, or no gzip file: {error}") from error
    if len(content) < 4 or content[2] != _IDX_UNSIGNED_BYTE:
        raise ValueError(f"{path} is not an IDX file of unsigned bytes.")
    rank = content[3]
    if len(content) < 4 + 4 * rank:
        raise ValueError(f"{path} ends within its header.")
    shape = tuple(np.frombuffer(content, ">u4", rank, offset=4).tolist())
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * rank)
    if values.size != np.prod(shape):
        raise ValueError(f"{path} holds {values.size} bytes where its header says {shape}.")
    return values.reshape(shape)


def _scikit_learn_digits() -> ImageData:
    """The 1,797 real digits of scikit-learn, 8x8 pixels, enlarged to 28x28."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "Fashion-MNIST could not be loaded, and scikit-learn, whose digits would take its "
            "place, is missing: pip install keras-adaclip[datasets]"
        ) from error
    digits = load_digits()
    enlarged = np.kron(digits.images, np.ones((1, 3, 3)))
    images = _scaled(np.pad(enlarged, ((0, 0), (2, 2), (2, 2))), 16.0)
    labels = digits.target.astype(np.int32)
    return ImageData(
        images[:1500],
        labels[:1500],
        images[1500:],
        labels[1500:],
        "scikit-learn's digits, 1,500 + 297 images (Fashion-MNIST could not be loaded)",
    )


def _scaled(images: np.ndarray, largest: float) -> np.ndarray:
    return (images.astype(np.float32) / np.float32(largest))[..., None]


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Bounds how long a connection may take, so that no network means no long wait."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
