"""Poisson-sampled batches in a few shapes, and the examples of a source in their order."""

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_adaclip.sampling.poisson import PoissonDataset
from keras_adaclip.sampling.rows import PARTS, SourceRows


class FixedShapeBatches(keras.utils.PyDataset):
    """A `PoissonDataset` whose batches have few shapes, so that a step is compiled few times.

    A draw larger than the largest size is padded to the next multiple of it. No row is dropped;
    the step is compiled once more. Where several processes hold the data, all of them pad to the
    same size.

    Args:
        dataset: The source of the draws.
        num_batches: The number of steps in an epoch.
        sizes: Ascending numbers of rows of the whole batch, multiples of the number of processes.
            A batch is padded to the smallest size that holds it. With no sizes, nothing is padded.
        num_shards: The number of equal parts into which the devices of all processes split a batch.
        prepared: A function of a batch that returns the batch to train on.
    """

    def __init__(
        self,
        dataset: PoissonDataset,
        num_batches: int,
        sizes: Sequence[int],
        num_shards: int = 1,
        prepared: Callable[[dict[str, Any]], dict[str, Any]] = lambda batch: batch,
    ) -> None:
        super().__init__()
        self.dataset = dataset
        self._num_batches = num_batches
        self.sizes = tuple(size // dataset.num_shares for size in sizes)
        self._prepared = prepared
        self._num_shards = max(num_shards // dataset.num_shares, 1)
        # Functions that wait for the draws that are being read, in their order.
        self._ahead: deque[Callable[[], dict[str, Any]]] = deque()
        self._process, self._lock = os.getpid(), threading.Lock()

    def __len__(self) -> int:
        return self._num_batches

    def __getitem__(self, index: int) -> dict[str, Any]:
        # No draw beyond the epoch is made, so that the next run's do not depend on reading ahead.
        wanted = min(1 + self.dataset.num_ahead, max(self._num_batches - index, 1))
        with self._lock:
            if self._process != os.getpid():
                # A forked process would repeat the draws of its parent.
                self._process, self._ahead = os.getpid(), deque()
            while len(self._ahead) < wanted:
                rows = self.dataset.draw()
                self._ahead.append(self.dataset.reading(rows, self._size_of(len(rows))))
            read = self._ahead.popleft()
        batch = self._prepared(read())
        return split_among_devices(batch, self._num_shards) if self.sizes else batch

    def _size_of(self, num_rows: int) -> int | None:
        """Return the size to which the latest draw is padded; None leaves it as it is."""
        if not self.sizes:
            return None
        needed = max(num_rows, self.dataset.largest_part)
        largest = self.sizes[-1]
        beyond = math.ceil(needed / largest) * largest
        return next((size for size in self.sizes if size >= needed), beyond)


class SourceBatches(keras.utils.PyDataset):
    """The examples of a source in their order, as batches for evaluation and prediction.

    Args:
        source: A source, as for `PoissonDataset.from_source`.
        batch_size: The number of examples in a batch; the last may be smaller.
    """

    def __init__(self, source: Any, batch_size: int) -> None:
        super().__init__()
        self._rows, self._batch_size = SourceRows(source, None, 0), batch_size

    def __len__(self) -> int:
        return math.ceil(self._rows.num_rows / self._batch_size)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        numbers = np.arange(self._rows.num_rows)[index * self._batch_size :][: self._batch_size]
        parts = self._rows.reading(numbers, len(numbers))()
        # Keras takes strings as tensors only.
        parts = keras.tree.map_structure(
            lambda array: keras.ops.convert_to_tensor(array) if array.dtype == object else array,
            parts,
        )
        batch = [parts.get(name) for name in PARTS]
        while batch[-1] is None:
            batch.pop()
        return tuple(batch)


def split_among_devices(batch: dict[str, Any], num_shards: int) -> dict[str, Any]:
    """Return a batch whose rows go to the devices in turn, so that each has as many units.

    Args:
        batch: Structures of arrays of shape `(batch_size, ...)`, with padding at the end.
        num_shards: The number of consecutive parts into which devices split the rows, a divisor of
            `batch_size`.

    Example:

    >>> import numpy as np
    >>> split_among_devices({"x": np.arange(6)}, 2)
    {'x': array([0, 2, 4, 1, 3, 5])}
    """
    if num_shards == 1:
        return batch

    def in_turn(array: np.ndarray) -> np.ndarray:
        """Return the rows in the order of the devices."""
        parts = array.reshape(-1, num_shards, *array.shape[1:])
        return np.ascontiguousarray(parts.swapaxes(0, 1)).reshape(array.shape)

    return {name: keras.tree.map_structure(in_turn, part) for name, part in batch.items()}
