"""Made-up data in the shapes of the real sets, to try a program without any download.

The classes differ, so that training has something to learn. Accuracy on them says nothing about the
real data.
"""

import numpy as np

from .adult import ADULT_CATEGORIES, ADULT_NUMBERS
from .labelled_data import LabelledData

_SOURCE = "made-up data, in the shape of {}"


def make_up_images(
    name: str,
    shape: tuple[int, int, int],
    num_train: int = 512,
    num_test: int = 256,
    as_bytes: bool = False,
) -> LabelledData:
    """Images of ten classes: one pattern a class, covered with noise.

    Args:
        name: name of the real data set.
        shape: height, width and channels.
        num_train: number of training images.
        num_test: number of test images.
        as_bytes: whether pixels are bytes from 0 to 255, as those of `load_imagenette`.
    """
    rng = np.random.default_rng(0)
    height, width, channels = shape
    # Four by four patches, so that a network that pools sees them too.
    patches = rng.random((10, 4, 4, channels), np.float32)
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    patterns = patches[:, rows][:, :, columns]
    parts: list[np.ndarray] = []
    for number in (num_train, num_test):
        labels = rng.integers(0, 10, number).astype(np.int32)
        noise = rng.random((number, *shape), np.float32)
        images = 0.75 * patterns[labels] + 0.25 * noise
        if as_bytes:
            images = (255.0 * images).astype(np.uint8)
        parts += [images, labels]
    return LabelledData(*parts, _SOURCE.format(name))


def make_up_texts(
    name: str, num_tokens: int, length: int, num_train: int = 512, num_test: int = 256
) -> LabelledData:
    """Texts of two classes; a fifth of the words come from a list of the class.

    Args:
        name: name of the real data set.
        num_tokens: number of ids, at least 44.
        length: ids in a sequence; a text has at least half as many words.
        num_train: number of training texts.
        num_test: number of test texts.
    """
    rng = np.random.default_rng(0)
    parts: list[np.ndarray] = []
    for number in (num_train, num_test):
        labels = rng.integers(0, 2, number).astype(np.int32)
        words = rng.integers(43, num_tokens, (number, length))
        telling = rng.integers(3, 23, (number, length)) + 20 * labels[:, None]
        texts = np.where(rng.random((number, length)) < 0.2, telling, words)
        texts[:, 0] = 1
        ends = rng.integers(length // 2, length + 1, number)
        texts[np.arange(length) >= ends[:, None]] = 0
        parts += [texts.astype(np.int32), labels]
    return LabelledData(*parts, _SOURCE.format(name))


def make_up_table(name: str, num_train: int = 512, num_test: int = 256) -> LabelledData:
    """Rows with the columns of Adult, of two classes that differ in a sum of the numbers.

    Args:
        name: name of the real data set.
        num_train: number of training rows.
        num_test: number of test rows.
    """
    rng = np.random.default_rng(0)
    weights = rng.normal(size=len(ADULT_NUMBERS))
    sizes = [len(values) for values in ADULT_CATEGORIES.values()]
    parts: list = []
    for number in (num_train, num_test):
        numbers = rng.normal(size=(number, len(weights))).astype(np.float32)
        categories = rng.integers(0, sizes, (number, len(sizes))).astype(np.int32)
        labels = (numbers @ weights > 0.0).astype(np.int32)
        parts += [{"numbers": numbers, "categories": categories}, labels]
    return LabelledData(*parts, _SOURCE.format(name))
