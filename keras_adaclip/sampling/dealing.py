"""Rows dealt out to devices: each has as many units as any other, and as much padding."""

from typing import Any

import keras
import numpy as np


def dealt(batch: dict[str, Any], num_shards: int) -> dict[str, Any]:
    """The batch with its rows dealt to shards like cards: padding stands at the end of each.

    Args:
        batch: structures of arrays of shape `(batch_size, ...)`, padding at the end.
        num_shards: into how many parts, one after another, devices divide the rows; `batch_size`
            is a multiple of it.

    Example:

    >>> import numpy as np
    >>> dealt({"x": np.arange(6)}, 2)
    {'x': array([0, 2, 4, 1, 3, 5])}
    """
    if num_shards == 1:
        return batch

    def deal(array: np.ndarray) -> np.ndarray:
        hands = array.reshape(-1, num_shards, *array.shape[1:])
        return np.ascontiguousarray(hands.swapaxes(0, 1)).reshape(array.shape)

    return {name: keras.tree.map_structure(deal, part) for name, part in batch.items()}
