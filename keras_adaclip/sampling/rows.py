"""The rows of a data set: arrays in memory, or examples read one by one from a source."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_adaclip.sampling.arrays import (
    as_array,
    as_arrays,
    common_length,
    holds_strings,
    is_list_of_numbers,
)

Parts = dict[str, Any]
PARTS = ("x", "y", "sample_weight")
_DICT, _TUPLE = "dict", "tuple"


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
        self._parts = {name: as_arrays(part) for name, part in given if part is not None}
        self.num_rows = common_length(self._parts)

    def reading(self, numbers: np.ndarray) -> Callable[[], Parts]:
        """Return a function that returns the rows with these numbers."""
        return lambda: self.take(numbers)

    def take(self, numbers: np.ndarray) -> Parts:
        """Return the rows with these numbers."""
        return {
            name: keras.tree.map_structure(lambda array: array[numbers], part)
            for name, part in self._parts.items()
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
        self._source = source
        self.num_rows = _length_of(source)
        self._reader = SourceReader(source, function, None)
        self._reader.forms = forms_of(self._reader.parts(0))
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
        found = _length_of(self._source)
        if found != self.num_rows:
            raise ValueError(
                "The source has changed its length, which sampling and accounting rely on. Make "
                f"a new `PoissonDataset`. Received: {found:,} examples, {self.num_rows:,} before"
            )

    def reading(self, numbers: np.ndarray) -> Callable[[], Parts]:
        """Begin to read the rows with these numbers; return a function that waits for them."""
        if not self._num_workers:
            return lambda: self.take(numbers)
        if self._workers is None or self._workers[0] != os.getpid():
            # A forked process has no threads of its parent.
            self._workers = os.getpid(), ThreadPoolExecutor(self._num_workers)
        return self._workers[1].submit(self.take, numbers).result

    def take(self, numbers: np.ndarray) -> Parts:
        """Return the rows with these numbers."""
        return self._reader(np.asarray(numbers).tolist())

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_workers": None}


@dataclass
class SourceReader:
    """Reads examples of a source and stacks them.

    Args:
        source: An object with `len(source)` and `source[i]`.
        function: Makes an example of what the source holds; None if it holds examples.
        forms: The form of each part of an example, None until it is known.
    """

    source: Any
    function: Callable[[Any], Any] | None
    forms: Parts | None

    def __call__(self, numbers: Sequence[int]) -> Parts:
        """Return the examples with these numbers as structures of arrays `(num_examples, ...)`.

        Raises:
            RuntimeError: If an example cannot be read.
            ValueError: If an example has another form than the first.
        """
        forms = self.forms or {}
        if not numbers:
            return stacked_parts([], forms, [])
        found = self._read_together(numbers)
        examples = [
            self.parts(number, None if found is None else (found[place],))
            for place, number in enumerate(numbers)
        ]
        return stacked_parts(examples, forms, numbers)

    def _read_together(self, numbers: Sequence[int]) -> Sequence[Any] | None:
        """Return what the source holds at the numbers, None if it is asked for one by one."""
        # Looked up at the class: an object that stands before another may number its entries anew.
        many = getattr(type(self.source), "__getitems__", None)
        if many is None:
            return None
        try:
            found = many(self.source, list(numbers))
        except Exception as error:
            raise RuntimeError(
                f"One of the examples {list(numbers)} of the source could not be read: "
                f"{type(error).__name__}: {error}"
            ) from error
        if not isinstance(found, list) or len(found) != len(numbers):
            raise TypeError(
                "`source.__getitems__(numbers)` must return a list with one entry for each number, "
                f"in their order. Received: {type(found).__name__} for {len(numbers)} numbers"
            )
        return found

    def parts(self, number: int, read: tuple[Any] | None = None) -> Parts:
        """Return the parts of one example by name.

        Args:
            number: The number of the example.
            read: What the source holds there, if it was read already.
        """
        try:
            example = self.source[number] if read is None else read[0]
            if self.function is not None:
                example = self.function(example)
        except Exception as error:
            raise RuntimeError(
                f"Example {number} of the source could not be read: {type(error).__name__}: {error}"
            ) from error
        return parts_of(example, number)


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


def stacked_parts(examples: Sequence[Parts], forms: Parts, numbers: Sequence[int]) -> Parts:
    """Return examples as structures of arrays of shape `(num_examples, ...)`.

    Args:
        examples: The parts of each example.
        forms: The form that they must have, by the name of the part.
        numbers: The number of each example.

    Raises:
        ValueError: If an example has another form.
    """
    for number, example in zip(numbers, examples, strict=True):
        if example.keys() != forms.keys():
            raise ValueError(
                f"Example {number} of the source has the parts {list(example)}, and the first one "
                f"has {list(forms)}. All examples must have the same."
            )
    return {
        name: _stacked([example[name] for example in examples], form, name, numbers)
        for name, form in forms.items()
    }


def forms_of(parts: Parts) -> Parts:
    """Return the form of each part of an example: its structure, shapes and dtypes."""
    return {name: _form_of(part, name) for name, part in parts.items()}


def _length_of(source: Any) -> int:
    """Return the number of examples of a source that can be read by number."""
    kind = type(source)
    if not (hasattr(kind, "__len__") and hasattr(kind, "__getitem__")):
        raise TypeError(
            "A source needs `len(source)` and `source[i]`, so that a step can read the examples "
            "that were drawn. What can only be read in its order, such as a generator or a "
            "`tf.data.Dataset`, is written once to a file: "
            "`keras_adaclip.sampling.write_source(examples, path)`. "
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
    if len(source) == 0:
        raise ValueError("The source must hold at least one example. Received: 0 examples")
    return len(source)


def _form_of(part: Any, name: str) -> Any:
    """Return the structure of a part of an example, with shape and dtype of each array."""
    if isinstance(part, dict):
        return _DICT, {key: _form_of(value, f"{name}[{key!r}]") for key, value in part.items()}
    if isinstance(part, (list, tuple)) and not is_list_of_numbers(part):
        return _TUPLE, [_form_of(value, f"{name}[{k}]") for k, value in enumerate(part)]
    row = _as_row(part)
    if row.dtype.kind not in "biufSUTO" or (row.dtype.kind == "O" and not holds_strings(row)):
        raise TypeError(
            f"Part `{name}` of the first example is of type {type(part).__name__}, not of numbers. "
            "A function `map=` of the entry can turn it into numbers."
        )
    array = as_array(row[None])
    return array.shape[1:], array.dtype


def _stacked(values: list[Any], form: Any, name: str, numbers: Sequence[int]) -> Any:
    """Return parts of examples as a structure of arrays, if they have this form."""
    kind, of_kind = form
    if kind == _DICT:
        for number, value in zip(numbers, values, strict=True):
            _check_form(isinstance(value, dict) and value.keys() == of_kind.keys(), number, name)
        return {
            key: _stacked([value[key] for value in values], of_key, f"{name}[{key!r}]", numbers)
            for key, of_key in of_kind.items()
        }
    if kind == _TUPLE:
        for number, value in zip(numbers, values, strict=True):
            is_same = isinstance(value, (list, tuple)) and len(value) == len(of_kind)
            _check_form(is_same, number, name)
        return tuple(
            _stacked([value[place] for value in values], of_place, f"{name}[{place}]", numbers)
            for place, of_place in enumerate(of_kind)
        )
    stacked = np.empty((len(values), *kind), of_kind)
    for place, value in enumerate(values):
        row = _as_row(value)
        if row.shape != kind or not _fits(row.dtype, of_kind):
            raise ValueError(
                f"Example {numbers[place]} of the source has the shape {row.shape} and dtype "
                f"{row.dtype} in `{name}`, and the first example has {kind} and {of_kind}. All "
                "must have the shape of the first, and a dtype that its dtype can hold; a function "
                "`map=` of the entry can pad, crop or convert."
            )
        stacked[place] = row
    return stacked


def _check_form(is_same: bool, number: int, name: str) -> None:
    """Raise a `ValueError` if an example has another structure than the first."""
    if not is_same:
        raise ValueError(
            f"Example {number} of the source has another structure in `{name}` than the first one."
        )


def _fits(found: np.dtype, dtype: np.dtype) -> bool:
    """Return whether numbers are stored without loss, but for integers and `float64` as floats."""
    if dtype.kind == "O":
        return found.kind in "SUTO"
    if found == np.float64 or found.kind in "biu":
        is_float = dtype == np.dtype(keras.config.floatx())
        return is_float or np.can_cast(found, dtype, "safe")
    return np.can_cast(found, dtype, "safe")


def _as_row(value: Any) -> np.ndarray:
    """Return a number, an array, a tensor or an image as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    return np.asarray(value)
