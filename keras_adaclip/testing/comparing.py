"""Figures as NumPy arrays, and failures that name them."""

from typing import Any

import numpy as np
from keras import ops


def array(value: Any) -> np.ndarray:
    """Return a tensor in double precision."""
    return np.asarray(ops.convert_to_numpy(value), np.float64)


def require(is_sound: Any, message: str) -> None:
    """Raise an `AssertionError` with a message where something is not sound."""
    if not is_sound:
        raise AssertionError(message)
