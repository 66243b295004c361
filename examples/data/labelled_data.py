"""Inputs with labels."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np


@dataclass(frozen=True)
class LabelledData:
    """Training data and test data.

    Args:
        x_train: inputs as `fit` takes them: an array of shape `(num_train, ...)`, or a dictionary
            of such arrays.
        y_train: int32 of shape `(num_train,)`, classes from 0.
        x_test: inputs of shape `(num_test, ...)`.
        y_test: int32 of shape `(num_test,)`.
        source: name, size and origin of the data.
    """

    x_train: Any
    y_train: np.ndarray
    x_test: Any
    y_test: np.ndarray
    source: str

    @property
    def name(self) -> str:
        """Name of the data, without size and origin."""
        return self.source.partition(",")[0]

    def first(self, num_train: int, num_test: int) -> Self:
        """Only the first examples, for a short trial; inputs must be arrays.

        Args:
            num_train: number of training examples.
            num_test: number of test examples.
        """
        return replace(
            self,
            x_train=self.x_train[:num_train],
            y_train=self.y_train[:num_train],
            x_test=self.x_test[:num_test],
            y_test=self.y_test[:num_test],
            source=f"{self.source}, the first {num_train:,} + {num_test:,}",
        )
