"""The rows of a data set: arrays in memory, or examples that a source reads by number."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import numpy as np

from keras_adaclip.sampling.arrays import (
    SparseRows,
    as_array,
    as_arrays,
    common_length,
    filled,
    holds_strings,
    is_list_of_numbers,
    padding,
)

Parts = dict[str, Any]
PARTS = ("x", "y", "sample_weight")
# The number of examples whose memory is compared before several threads read.
_NUM_COMPARED = 8


class ArrayRows:
    """Arrays in memory.

    Args:
        x: An array, frame or sparse matrix, or a structure of them, of shape `(num_rows, ...)`.
        y: Targets of the same length, or None.
        sample_weight: Weights of the same length, or None.
    """

    num_ahead = 0

    def __init__(self, x: Any, y: Any = None, sample_weight: Any = None) -> None:
        given = zip(PARTS, (x, y, sample_weight), strict=True)
        kept = (SparseRows,)
        self.parts = {name: as_arrays(part, kept) for name, part in given if part is not None}
        self.num_rows = common_length(self.parts)
        self.parts = filled(self.parts, self.num_rows)

    def reading(self, numbers: np.ndarray, size: int) -> Callable[[], Parts]:
        """Return a function that returns the rows with these numbers; see `SourceRows`."""

        def padded(array: np.ndarray) -> np.ndarray:
            """Return rows of an array with padding behind them."""
            rows = padding((size, *array.shape[1:]), array.dtype)
            rows[: len(numbers)] = array[numbers]
            return rows

        return lambda: keras.tree.map_structure(padded, self.parts)

    def begin_run(self) -> None:
        """Prepare for training."""


class SourceRows:
    """Examples that are read when they are drawn, and stacked.

    Args:
        source: An object with `len(source)` and `source[i]`.
        function: Makes an example of an entry of the source; None if the entries are examples.
        num_workers: The number of threads that read ahead; 0 reads a batch when it is needed.
            Threads take turns where the user's code fills the same arrays in each call.

    Raises:
        TypeError: If the source cannot be read by number, or an example is not of numbers.
        ValueError: If the source is empty.
    """

    def __init__(
        self, source: Any, function: Callable[[Any], Any] | None, num_workers: int
    ) -> None:
        self.num_rows = _length_of(source)
        self._source, self._function, self._num_workers = source, function, num_workers
        self._workers: tuple[int, ThreadPoolExecutor] | None = None
        self.num_ahead = 2 * num_workers
        self._first = as_row(self._example(0))
        takes_turns = num_workers > 1 and self._fills_the_same_arrays()
        self._turns: Any = threading.Lock() if takes_turns else contextlib.nullcontext()

    def begin_run(self) -> None:
        """Prepare for training.

        Raises:
            ValueError: If the source has another length than at first.
        """
        if self._workers is not None:
            # What an earlier run has not used is not read any more.
            self._workers[1].shutdown(wait=False, cancel_futures=True)
            self._workers = None
        found = _length_of(self._source)
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
            return lambda: self._read(listed, size)
        if self._workers is None or self._workers[0] != os.getpid():
            # A forked process has no threads of its parent.
            self._workers = os.getpid(), ThreadPoolExecutor(self._num_workers)
        return self._workers[1].submit(self._read, listed, size).result

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._source, self._function, self._num_workers)

    def _read(self, numbers: Sequence[int], size: int) -> Parts:
        """Return the examples with these numbers as structures of arrays `(size, ...)`."""
        rows = empty_rows(self._first, size)
        with self._turns:
            for place, number in enumerate(numbers):
                # Copied before the next is read: the user's code may fill the same arrays again.
                copy_example(rows, place, self._example(number), number)
        return rows

    def _example(self, number: int) -> Parts:
        """Return the parts of an example by name."""
        with reading(f"Example {number} of the source"):
            example = self._source[number]
            if self._function is not None:
                example = self._function(example)
        return parts_of(example, number)

    def _fills_the_same_arrays(self) -> bool:
        """Return whether some examples that are read one after another have the same memory."""
        numbers = np.linspace(0, self.num_rows - 1, min(self.num_rows, _NUM_COMPARED), dtype=int)
        # All are kept until the last is read, so that none takes the memory of another.
        examples = list(map(self._example, numbers.tolist()))
        memory = [address for example in examples for address in _memory_of(example)]
        return len(set(memory)) < len(memory)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Name in errors what the user's code, which may raise anything, was reading."""
    try:
        yield
    except Exception as error:
        message = f"{what} could not be read: {type(error).__name__}: {error}"
        raise RuntimeError(message) from error


def _length_of(source: Any) -> int:
    """Return the number of examples of a source that can be read by number."""
    kind = type(source)
    # Arrays of zarr have a shape and no length.
    has_length = hasattr(kind, "__len__")
    shape: Any = () if has_length else getattr(source, "shape", ())
    is_read_by_number = hasattr(kind, "__getitem__") and (has_length or shape)
    if not is_read_by_number or isinstance(source, (keras.utils.PyDataset, dict, str, bytes)):
        raise TypeError(
            "A source needs `len(source)` and `source[i]`, one example for each number from 0 on. "
            "A `PyDataset` holds batches: pass it to `fit`. A generator or a `tf.data.Dataset` has "
            "no numbers: write its examples to a file first, with "
            "`keras_adaclip.sampling.write_source(examples, path)`. "
            f"Received: source of type {kind.__name__}"
        )
    num_examples = len(source) if has_length else int(shape[0])
    if num_examples == 0:
        raise ValueError("The source must hold at least one example. Received: 0 examples")
    return num_examples


def parts_of(example: Any, number: int) -> Parts:
    """Return the parts of an example by name.

    Args:
        example: `x`, `(x, y)` or `(x, y, sample_weight)`.
        number: The number of the example.
    """
    given = example if isinstance(example, tuple) else (example,)
    if not 1 <= len(given) <= len(PARTS):
        raise ValueError(
            "An example must be `x`, `(x, y)` or `(x, y, sample_weight)`; with `map=` a function "
            f"makes one of anything else. Received: a tuple of {len(given)} for example {number}"
        )
    parts = {name: part for name, part in zip(PARTS, given, strict=False) if part is not None}
    if "x" not in parts:
        raise ValueError(
            f"Example {number} of the source is None. Entries that are filtered out, as by "
            "`filter` of a Grain data set, must be left out of the source, since every number up "
            "to its length can be drawn."
        )
    return parts


def as_row(part: Any) -> Any:
    """Return the first example, or a part of it, as a structure of arrays with one row."""
    if isinstance(part, dict):
        return {key: as_row(value) for key, value in part.items()}
    if isinstance(part, (list, tuple)) and not is_list_of_numbers(part):
        return tuple(map(as_row, part))
    row = _as_numpy(part)
    if row.dtype.kind not in "biufSUTO" or (row.dtype.kind == "O" and not holds_strings(row)):
        raise TypeError(
            f"The first example holds an object of type {type(part).__name__}, not of numbers. "
            "A function `map=` of the entry can turn it into numbers."
        )
    return as_array(row[None])


def empty_rows(first: Any, size: int) -> Any:
    """Return a structure of arrays of padding with so many rows like the first one's."""
    return keras.tree.map_structure(
        lambda array: padding((size, *array.shape[1:]), array.dtype), first
    )


def copy_example(rows: Any, place: int, value: Any, number: int, where: str = "") -> None:
    """Copy an example, or a part of it, into a row of a structure of arrays.

    Args:
        rows: Arrays of shape `(size, ...)`, structured like the first example.
        place: The row.
        value: The example, or a part of it.
        number: The number of the example, for messages.
        where: The place of the part in the example, for messages.

    Raises:
        ValueError: If the example has another form than the first.
    """
    if isinstance(rows, np.ndarray):
        row = value if type(value) is np.ndarray else _as_numpy(value)
        if row.shape != rows.shape[1:] or not _fits(row.dtype, rows.dtype):
            raise ValueError(
                f"Example {number} of the source has the shape {row.shape} and dtype {row.dtype} "
                f"in `{where}`, and the first example has {rows.shape[1:]} and {rows.dtype}. All "
                "must have the shape of the first, and a dtype that its dtype can hold; a function "
                "`map=` of the entry can pad, crop or convert."
            )
        rows[place] = row[()]
        return
    if not isinstance(value, (list, tuple, dict)) or _keys(value) != _keys(rows):
        raise ValueError(
            f"Example {number} of the source has another structure or other parts than the first "
            f"one{where and f' in `{where}`'}. All examples must have the same."
        )
    for key in _keys(rows):
        copy_example(rows[key], place, value[key], number, f"{where}[{key!r}]" if where else key)


def _keys(structure: Any) -> Any:
    """Return the keys of a dict, or the places of a list or tuple."""
    return structure.keys() if isinstance(structure, dict) else range(len(structure))


def _memory_of(entry: Any) -> set[int]:
    """Return the addresses of the arrays, tensors, lists and dicts of an example."""
    if isinstance(entry, np.ndarray):
        return {entry.__array_interface__["data"][0]}
    if isinstance(entry, (dict, list, tuple)):
        parts = entry.values() if isinstance(entry, dict) else entry
        # Python may make one tuple of constants once for all.
        own = set() if isinstance(entry, tuple) else {id(entry)}
        return own.union(*map(_memory_of, parts))
    return {entry.data_ptr()} if hasattr(entry, "data_ptr") else set()


def _fits(found: np.dtype, dtype: np.dtype) -> bool:
    """Return whether numbers are stored without loss, but for integers and `float64` as floats."""
    if found == dtype:
        return True
    if dtype.kind == "O":
        return found.kind in "SUTO"
    is_float = dtype == np.dtype(keras.config.floatx())
    wide = found == np.float64 or found.kind in "biu"
    return (wide and is_float) or np.can_cast(found, dtype, "safe")


def _as_numpy(value: Any) -> np.ndarray:
    """Return a number, an array, a tensor or an image as an array."""
    return np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
