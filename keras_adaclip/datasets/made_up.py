"""Data made up on the spot, of the shapes of the real sets: to try a program without any data.

The classes can be told apart, so that training has something to find; what a model reaches on them
says nothing about the real data.
"""

from collections.abc import Mapping

import numpy as np

from keras_adaclip.datasets.adult import CATEGORIES, NUMERIC
from keras_adaclip.datasets.image_data import ImageData
from keras_adaclip.datasets.table_data import TableData
from keras_adaclip.datasets.text_data import TextData

_SOURCE = "made up on the spot, in the shape of {}"


def make_up_images(
    name: str,
    shape: tuple[int, int, int],
    num_train: int = 512,
    num_test: int = 256,
    num_classes: int = 10,
    as_bytes: bool = False,
    seed: int = 0,
) -> ImageData:
    """Images of one pattern a class, noise over it.

    Args:
        name: the data set that they stand for, for `source`.
        shape: height, width and channels.
        num_train: number of training images.
        num_test: number of test images.
        num_classes: number of classes.
        as_bytes: whether pixels are bytes from 0 to 255, as of `load_imagenette`.
        seed: of all of it.

    Returns:
        The images; `source` begins with "made up".
    """
    rng = np.random.default_rng(seed)
    height, width, channels = shape
    # Four by four patches, so that a network that pools sees them too.
    patches = rng.random((num_classes, 4, 4, channels), np.float32)
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    patterns = patches[:, rows][:, :, columns]
    parts: list[np.ndarray] = []
    for number in (num_train, num_test):
        labels = rng.integers(0, num_classes, number).astype(np.int32)
        noise = rng.random((number, *shape), np.float32)
        images = 0.75 * patterns[labels] + 0.25 * noise
        if as_bytes:
            images = (255.0 * images).astype(np.uint8)
        parts += [images, labels]
    x_train, y_train, x_test, y_test = parts
    return ImageData(x_train, y_train, x_test, y_test, _SOURCE.format(name))


def make_up_texts(
    name: str,
    num_tokens: int = 10_000,
    length: int = 256,
    num_train: int = 512,
    num_test: int = 256,
    seed: int = 0,
) -> TextData:
    """Texts of two classes, each with a fifth of its words from a list of its own.

    Args:
        name: the data set that they stand for, for `source`.
        num_tokens: number of ids, at least 43.
        length: ids in a sequence; texts have half as many words at least.
        num_train: number of training texts.
        num_test: number of test texts.
        seed: of all of it.

    Returns:
        The texts; `source` begins with "made up".
    """
    rng = np.random.default_rng(seed)
    parts = []
    for number in (num_train, num_test):
        labels = rng.integers(0, 2, number).astype(np.int32)
        words = rng.integers(43, max(44, num_tokens), (number, length))
        telling = rng.integers(3, 23, (number, length)) + 20 * labels[:, None]
        texts = np.where(rng.random((number, length)) < 0.2, telling, words)
        texts[:, 0] = 1
        ends = rng.integers(length // 2, length + 1, number)
        texts[np.arange(length) >= ends[:, None]] = 0
        parts += [texts.astype(np.int32), labels]
    x_train, y_train, x_test, y_test = parts
    return TextData(x_train, y_train, x_test, y_test, num_tokens, _SOURCE.format(name))


def make_up_table(
    name: str,
    numeric: tuple[str, ...] = NUMERIC,
    categories: Mapping[str, tuple[str, ...]] = CATEGORIES,
    num_train: int = 512,
    num_test: int = 256,
    seed: int = 0,
) -> TableData:
    """Rows of two classes, told apart by a sum of the numeric columns.

    Args:
        name: the data set that they stand for, for `source`.
        numeric: names of the numeric columns.
        categories: for the name of each categorical column its values.
        num_train: number of training rows.
        num_test: number of test rows.
        seed: of all of it.

    Returns:
        The rows; `source` begins with "made up".
    """
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=len(numeric))
    parts = []
    for number in (num_train, num_test):
        numbers = rng.normal(size=(number, len(numeric))).astype(np.float32)
        columns = [rng.integers(0, len(values), number) for values in categories.values()]
        labels = (numbers @ weights > 0.0).astype(np.int32)
        parts.append((numbers, np.stack(columns, axis=1).astype(np.int32), labels))
    train, test = parts
    return TableData(*train, *test, numeric, categories, _SOURCE.format(name))
