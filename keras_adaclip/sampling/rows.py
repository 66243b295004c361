"""The rows of a data set: arrays in memory, or examples read from a source."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from keras_adaclip.sampling.arrays import as_arrays, common_length
from keras_adaclip.sampling.reader import PARTS, Parts, SourceReader


class ArrayRows:
    """Arrays in memory.

    Args:
        x: An array or frame, or a structure of arrays, of shape `(num_rows, ...)`.
        y: Targets of the same length, or None.
        sample_weight: Weights of the same length, or None.
    """

    num_ahead = 0

    def __init__(self, x: Any, y: Any = None, sample_weight: Any = None) -> None:
        given = zip(PARTS, (x, y, sample_weight), strict=True)
        self.parts = {name: as_arrays(part) for name, part in given if part is not None}
        self.num_rows = common_length(self.parts)

    def reading(self, numbers: np.ndarray, size: int) -> Callable[[], Parts]:
        """Return a function that returns the rows with these numbers, without padding."""
        return lambda: {
            name: keras.tree.map_structure(lambda array: array[numbers], part)
            for name, part in self.parts.items()
        }

    def begin_run(self) -> None:
        """Prepare for training."""


class SourceRows:
    """Examples that are read when they are drawn.

    Args:
        source: An object with `len(source)` and `source[i]`.
        function: Makes an example of what the source holds; None if it holds examples.
        num_workers: The number of threads that read ahead; 0 reads a batch when it is needed.

    Raises:
        TypeError: If the source cannot be read by number, or an example is not of numbers.
        ValueError: If the source is empty.
    """

    def __init__(
        self, source: Any, function: Callable[[Any], Any] | None, num_workers: int
    ) -> None:
        self.num_rows = _length_of(source)
        self._reader = SourceReader(source, function, num_workers)
        self._num_workers = num_workers
        self._workers: tuple[int, ThreadPoolExecutor] | None = None
        self.num_ahead = 2 * num_workers

    def begin_run(self) -> None:
        """Prepare for training.

        Raises:
            ValueError: If the source has another length than at first.
        """
        if self._workers is not None:
            # What an earlier run has not used is not read any more.
            self._workers[1].shutdown(wait=False, cancel_futures=True)
            self._workers = None
        found = _length_of(self._reader.source)
        if found != self.num_rows:
            raise ValueError(
                "The source has changed its length, which sampling and accounting rely on. Make "
                f"a new `PoissonDataset`. Received: {found:,} examples, {self.num_rows:,} before"
            )

    def reading(self, numbers: np.ndarray, size: int) -> Callable[[], Parts]:
        """Begin to read the rows with these numbers; return a function that waits for them.

        Args:
            numbers: Row numbers.
            size: The number of rows of the result, with padding behind those that are read.
        """
        listed = np.asarray(numbers).tolist()
        if not self._num_workers:
            return lambda: self._reader(listed, size)
        if self._workers is None or self._workers[0] != os.getpid():
            # A forked process has no threads of its parent.
            self._workers = os.getpid(), ThreadPoolExecutor(self._num_workers)
        return self._workers[1].submit(self._reader, listed, size).result

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_workers": None}


def _length_of(source: Any) -> int:
    """Return the number of examples of a source that can be read by number."""
    kind = type(source)
    # Arrays of zarr have a shape and no length.
    has_length = hasattr(kind, "__len__")
    shape: Any = () if has_length else getattr(source, "shape", ())
    if not (hasattr(kind, "__getitem__") and (has_length or shape)):
        raise TypeError(
            "A source needs `len(source)` and `source[i]`, so that a step can read the examples "
            "that were drawn. A generator or a `tf.data.Dataset` has no numbers: write its "
            "examples to a file first, with `keras_adaclip.sampling.write_source(examples, path)`. "
            f"Received: source of type {kind.__name__}"
        )
    if isinstance(source, keras.utils.PyDataset):
        raise TypeError(
            "A source holds single examples, and a `PyDataset` holds batches. Give what it makes "
            f"its batches of, or pass it to `fit`. Received: source of type {kind.__name__}"
        )
    if isinstance(source, (dict, str, bytes)):
        raise TypeError(
            "A source holds examples by their number, from 0 on. "
            f"Received: source of type {kind.__name__}"
        )
    num_examples = len(source) if has_length else int(shape[0])
    if num_examples == 0:
        raise ValueError("The source must hold at least one example. Received: 0 examples")
    return num_examples
