"""Images with labels."""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np


@dataclass(frozen=True)
class ImageData:
    """Images with labels, split into training and test data.

    Args:
        x_train: of shape `(num_train, height, width, channels)`: float32 between 0 and 1. Those of
            `load_imagenette` are bytes from 0 to 255, which take a quarter of the memory.
        y_train: int32 of shape `(num_train,)`, classes from 0.
        x_test: of shape `(num_test, height, width, channels)`.
        y_test: int32 of shape `(num_test,)`.
        source: which data these are and where they came from, in words.
    """

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    source: str

    def first(self, num_train: int, num_test: int) -> Self:
        """The first examples alone, for a short trial.

        Args:
            num_train: number of training images.
            num_test: number of test images.
        """
        return replace(
            self,
            x_train=self.x_train[:num_train],
            y_train=self.y_train[:num_train],
            x_test=self.x_test[:num_test],
            y_test=self.y_test[:num_test],
        )
