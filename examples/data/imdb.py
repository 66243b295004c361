"""IMDB: 50,000 film reviews, half of them friendly (Maas et al. 2011)."""

import keras
import numpy as np

from .download import cached_or_downloaded
from .labelled_data import LabelledData


def load_imdb(num_tokens: int = 10_000, length: int = 256) -> LabelledData:
    """IMDB: 25,000 + 25,000 reviews as token ids, class 1 if friendly.

    Id 0 is padding, 1 begins a review, 2 is a rarer word, and ids from 3 are words. Keras numbers
    the words by their frequency in the reviews. Epsilon does not cover a vocabulary of private
    texts; this one was published with the data set.

    Args:
        num_tokens: number of ids.
        length: ids in a sequence; of a longer review the last ones are kept.

    Raises:
        FileNotFoundError: if `imdb.npz` is not in Keras's cache and cannot be downloaded.
    """
    train, test = cached_or_downloaded(
        "IMDB",
        "imdb.npz",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/imdb.npz",
        lambda: keras.datasets.imdb.load_data(num_words=num_tokens),
    )
    (x_train, y_train), (x_test, y_test) = train, test
    return LabelledData(
        keras.utils.pad_sequences(x_train, length, padding="post", truncating="pre"),
        y_train.astype(np.int32),
        keras.utils.pad_sequences(x_test, length, padding="post", truncating="pre"),
        y_test.astype(np.int32),
        f"IMDB, {len(x_train):,} + {len(x_test):,} reviews (Keras's copy; ids are ranks of the "
        "words by their frequency in the reviews themselves)",
    )
