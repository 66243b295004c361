"""Texts as sequences of token ids, with labels."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TextData:
    """Texts as sequences of token ids of one length, split into training and test data.

    Id 0 fills a sequence up at its end, 1 begins each text, 2 stands for a word without an id of
    its own; ids from 3 are words.

    Args:
        x_train: int32 of shape `(num_train, length)`, ids below `num_tokens`.
        y_train: int32 of shape `(num_train,)`, classes from 0.
        x_test: int32 of shape `(num_test, length)`.
        y_test: int32 of shape `(num_test,)`.
        num_tokens: the number of ids.
        source: which data these are, where they came from, and what the ids are made of.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_tokens: int
    source: str
