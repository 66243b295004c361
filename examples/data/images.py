"""Images: MNIST, Fashion-MNIST and CIFAR-10 from `keras.datasets`, Imagenette by TFDS."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from .download import cached_or_downloaded, require_answer
from .labelled_data import LabelledData

_KERAS = "https://storage.googleapis.com/tensorflow/tf-keras-datasets"
_DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
_IMAGENETTE = "https://s3.amazonaws.com/fast-ai-imageclas/imagenette2-160.tgz"


def load_mnist() -> LabelledData:
    """MNIST (LeCun et al. 1998): 60,000 + 10,000 grey digits of 28x28 pixels, 10 classes.

    Raises:
        FileNotFoundError: if `mnist.npz` is not in Keras's cache and cannot be downloaded.
    """
    load_data = keras.datasets.mnist.load_data
    parts = cached_or_downloaded("MNIST", "mnist.npz", f"{_KERAS}/mnist.npz", load_data)
    return _image_data("MNIST", *parts)


def load_cifar10() -> LabelledData:
    """CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 photographs of 32x32 pixels, 10 classes.

    Raises:
        FileNotFoundError: if the archive is not in Keras's cache and cannot be downloaded.
    """
    parts = cached_or_downloaded(
        "CIFAR-10",
        "cifar-10-batches-py-target_archive",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        keras.datasets.cifar10.load_data,
    )
    if keras.config.image_data_format() == "channels_first":
        parts = [(x.transpose(0, 2, 3, 1), y) for x, y in parts]
    return _image_data("CIFAR-10", *parts)


def load_fashion_mnist(debian_folder: Path = _DEBIAN_FOLDER) -> LabelledData:
    """Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 grey images of 28x28 pixels, 10 classes.

    It is read from Keras's cache, after a download if it is missing, or else from Debian's package
    `dataset-fashion-mnist`. If neither is available, scikit-learn's 1,797 digits are returned, so
    that the demo always has real images; `source` says so.

    Args:
        debian_folder: folder of Debian's package.

    Raises:
        ImportError: if there is no copy of Fashion-MNIST, and no scikit-learn.
    """
    # Keras reads this file last.
    file = "t10k-images-idx3-ubyte.gz"
    load_data = keras.datasets.fashion_mnist.load_data
    try:
        parts = cached_or_downloaded(
            "Fashion-MNIST", f"fashion-mnist/{file}", f"{_KERAS}/{file}", load_data
        )
    except FileNotFoundError as error:
        if not (debian_folder / file).exists():
            return _digits(error)
        parts = [
            (
                _read_idx(debian_folder / f"{name}-images-idx3-ubyte.gz"),
                _read_idx(debian_folder / f"{name}-labels-idx1-ubyte.gz"),
            )
            for name in ("train", "t10k")
        ]
        return _image_data("Fashion-MNIST", *parts, origin=f"Debian's files in {debian_folder}")
    return _image_data("Fashion-MNIST", *parts)


def _read_idx(path: Path) -> np.ndarray:
    """Unsigned bytes in the format of the MNIST family: rank in byte 3, then sizes, then values."""
    content = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(content, ">u4", content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def _digits(reason: Exception) -> LabelledData:
    """The digits of scikit-learn, 8x8 pixels, enlarged to 28x28."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            f"{reason} Without it, the example takes scikit-learn's digits, and scikit-learn is "
            "missing: pip install keras-adaclip[datasets]"
        ) from error
    digits = load_digits()
    images = np.pad(np.kron(digits.images, np.ones((1, 3, 3))), ((0, 0), (2, 2), (2, 2)))
    train, test = slice(1500), slice(1500, None)
    return _image_data(
        "scikit-learn's digits",
        (images[train], digits.target[train]),
        (images[test], digits.target[test]),
        origin="Fashion-MNIST could not be loaded",
        white=16.0,
    )


def _image_data(
    name: str,
    train: Sequence[Any],
    test: Sequence[Any],
    origin: str = "Keras's copy",
    white: float = 255.0,
) -> LabelledData:
    """Images as float32 of shape `(num, height, width, channels)` between 0 and 1."""

    def scaled(images: np.ndarray) -> np.ndarray:
        images = images[..., None] if images.ndim == 3 else images
        return images.astype(np.float32) / np.float32(white)

    (x_train, y_train), (x_test, y_test) = train, test
    return LabelledData(
        scaled(x_train),
        y_train.reshape(-1).astype(np.int32),
        scaled(x_test),
        y_test.reshape(-1).astype(np.int32),
        f"{name}, {len(x_train):,} + {len(x_test):,} images ({origin})",
    )


def load_imagenette(image_size: int = 160) -> LabelledData:
    """Imagenette (Howard 2019): 9,469 + 3,925 photographs of ten classes of ImageNet.

    TensorFlow Datasets prepares and reads it. The square in the middle of each image is resized.
    The images are bytes from 0 to 255, which take a quarter of the memory of float32.

    Args:
        image_size: height and width, in pixels.

    Raises:
        FileNotFoundError: if the data set is not prepared and cannot be downloaded.
        ImportError: if TensorFlow Datasets is missing.
    """
    try:
        import tensorflow_datasets
    except ImportError as error:
        raise ImportError(
            "TensorFlow Datasets is needed for Imagenette: pip install keras-adaclip[datasets]"
        ) from error
    builder = tensorflow_datasets.builder("imagenette/160px-v2")
    if not builder.is_prepared():
        try:
            # TensorFlow Datasets itself would try again for minutes.
            require_answer(_IMAGENETTE)
        except OSError as error:
            raise FileNotFoundError(
                f"Imagenette is not available here ({type(error).__name__}: {error}). Run again "
                f"with a network, or copy a prepared data set to {builder.data_dir}. "
                f"It is downloaded from {_IMAGENETTE}."
            ) from error
        builder.download_and_prepare()
    parts: list[np.ndarray] = []
    for split in ("train", "validation"):
        rows = list(tensorflow_datasets.as_numpy(builder.as_dataset(split=split)))
        parts.append(np.stack([_square(row["image"], image_size) for row in rows]))
        parts.append(np.array([row["label"] for row in rows], np.int32))
    source = f"Imagenette, {len(parts[0]):,} + {len(parts[2]):,} images (TensorFlow Datasets)"
    return LabelledData(*parts, source)


def _square(image: np.ndarray, size: int) -> np.ndarray:
    resized = keras.preprocessing.image.smart_resize(
        image, (size, size), data_format="channels_last"
    )
    return np.clip(np.rint(resized), 0, 255).astype(np.uint8)
