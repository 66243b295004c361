"""Rows of a table with labels."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TableData:
    """Rows with numeric and categorical columns, split into training and test data.

    Args:
        numeric_train: float32 of shape `(num_train, len(numeric))`, scaled by fixed constants.
        categorical_train: int32 of shape `(num_train, len(categories))`: in each column the place
            of the value in the column's list.
        y_train: int32 of shape `(num_train,)`, classes from 0.
        numeric_test: float32 of shape `(num_test, len(numeric))`.
        categorical_test: int32 of shape `(num_test, len(categories))`.
        y_test: int32 of shape `(num_test,)`.
        numeric: names of the numeric columns.
        categories: for the name of each categorical column its values, the missing one first.
        source: which data these are and where they came from, in words.
    """

    numeric_train: np.ndarray
    categorical_train: np.ndarray
    y_train: np.ndarray
    numeric_test: np.ndarray
    categorical_test: np.ndarray
    y_test: np.ndarray
    numeric: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]
    source: str
