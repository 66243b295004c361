"""Reads examples of a source and stacks them."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_adaclip.sampling.arrays import as_array, holds_strings, is_list_of_numbers, padding

Parts = dict[str, Any]
PARTS = ("x", "y", "sample_weight")
_DICT, _TUPLE = "dict", "tuple"
# Half the number of examples whose memory is compared before several threads read.
_NUM_COMPARED = 4


class SourceReader:
    """Reads examples of a source by their numbers, and stacks them.

    Args:
        source: An object with `len(source)` and `source[i]`.
        function: Makes an example of an entry of the source; None if the entries are examples.
        num_threads: The number of threads that read. They take turns where the user's code fills
            the same arrays in each call.

    Attributes:
        source: The source.
    """

    def __init__(
        self, source: Any, function: Callable[[Any], Any] | None, num_threads: int = 1
    ) -> None:
        self.source, self._function, self._num_threads = source, function, num_threads
        self._is_array = type(source) in (np.ndarray, np.memmap)
        self._forms = forms_of(self._example(0))
        takes_turns = num_threads > 1 and self._fills_the_same_arrays()
        self._turns: Any = threading.Lock() if takes_turns else contextlib.nullcontext()

    def __call__(self, numbers: Sequence[int], size: int) -> Parts:
        """Return the examples with these numbers as structures of arrays `(size, ...)`.

        Args:
            numbers: The numbers of the examples.
            size: The number of rows, with padding behind the examples.

        Raises:
            RuntimeError: If an example cannot be read.
            TypeError: If the source's `__getitems__` returns something else than a list of entries.
            ValueError: If an example has another form than the first.
        """
        stacked = ExampleStack(self._forms, size)
        with self._turns:
            entries = self._read_together(numbers)
            for place, number in enumerate(numbers):
                stacked.put(place, self._example(number, place, entries), number)
        return stacked.parts

    def _fills_the_same_arrays(self) -> bool:
        """Return whether some examples that are read one after another have the same memory."""
        length = min(len(self.source), 2 * _NUM_COMPARED)
        numbers = np.linspace(0, len(self.source) - 1, length, dtype=int).tolist()
        halves = map(self._read_together, (numbers[::2], numbers[1::2]))
        together = [entry for entries in halves for entry in entries or ()]
        examples = list(map(self._example, numbers))
        return _share_memory(together, surely=True) or _share_memory(examples, surely=True)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self._function, self._num_threads)

    def _read_together(self, numbers: Sequence[int]) -> list[Any] | None:
        """Return the entries in the order of the numbers, None if they are read one by one."""
        # Looked up in the class: an object that wraps another source may number its entries anew.
        many = getattr(type(self.source), "__getitems__", None)
        if not numbers:
            return None
        try:
            if self._is_array:
                return list(self.source[np.array(numbers)])
            if many is None:
                return None
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
        # Where the source fills the same arrays for each entry, all of the list are the last one.
        return None if _share_memory(found) else found

    def _example(self, number: int, place: int = 0, entries: list[Any] | None = None) -> Parts:
        """Return the parts of an example by name.

        Args:
            number: The number of the example.
            place: Its place in `entries`.
            entries: Entries of the source, if they have been read.
        """
        try:
            example = self.source[number] if entries is None else entries[place]
            if self._function is not None:
                example = self._function(example)
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
    if len(given) == 2 and given[0] is not None and given[1] is not None:
        return {"x": given[0], "y": given[1]}
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


class ExampleStack:
    """Arrays into which examples are copied one by one.

    An example is copied before the next one is read, since the user's code may fill the same arrays
    for each.

    Args:
        forms: The form of each part of an example, as `forms_of` returns it.
        size: The number of rows; those without an example are padding.

    Attributes:
        parts: Structures of arrays of shape `(size, ...)` by name.
    """

    def __init__(self, forms: Parts, size: int) -> None:
        self.parts = {name: _empty(form, size) for name, form in forms.items()}
        self._forms = forms

    def put(self, place: int, example: Parts, number: int) -> None:
        """Copy an example into a row.

        Args:
            place: The row.
            example: The parts of the example.
            number: The number of the example, for messages.

        Raises:
            ValueError: If the example has another form.
        """
        if example.keys() != self._forms.keys():
            raise ValueError(
                f"Example {number} of the source has the parts {list(example)}, and the first one "
                f"has {list(self._forms)}. All examples must have the same."
            )
        for name, value in example.items():
            _copy_row(self.parts[name], place, value, self._forms[name], name, number)


def forms_of(parts: Parts) -> Parts:
    """Return the form of each part of an example: its structure, shapes and dtypes."""
    return {name: _form_of(part, name) for name, part in parts.items()}


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


def _empty(form: Any, size: int) -> Any:
    """Return a structure of arrays of padding for examples of this form."""
    kind, of_kind = form
    if kind == _DICT:
        return {key: _empty(of_key, size) for key, of_key in of_kind.items()}
    if kind == _TUPLE:
        return tuple(_empty(each, size) for each in of_kind)
    return padding((size, *kind), of_kind)


def _copy_row(rows: Any, place: int, value: Any, form: Any, name: str, number: int) -> None:
    """Copy a part of an example into a row of a structure of arrays, if it has this form."""
    kind, of_kind = form
    if _is_row(value, kind, of_kind):
        rows[place] = value
    elif kind == _DICT:
        _check_form(isinstance(value, dict) and value.keys() == of_kind.keys(), number, name)
        for key, of_key in of_kind.items():
            _copy_row(rows[key], place, value[key], of_key, f"{name}[{key!r}]", number)
    elif kind == _TUPLE:
        is_same = isinstance(value, (list, tuple)) and len(value) == len(of_kind)
        _check_form(is_same, number, name)
        for key, of_key in enumerate(of_kind):
            _copy_row(rows[key], place, value[key], of_key, f"{name}[{key}]", number)
    else:
        row = _as_row(value)
        if row.shape != kind or not _fits(row.dtype, of_kind):
            raise ValueError(
                f"Example {number} of the source has the shape {row.shape} and dtype "
                f"{row.dtype} in `{name}`, and the first example has {kind} and {of_kind}. All "
                "must have the shape of the first, and a dtype that its dtype can hold; a function "
                "`map=` of the entry can pad, crop or convert."
            )
        rows[place] = row[()]


def _is_row(value: Any, shape: Any, dtype: Any) -> bool:
    """Return whether a value is an array or a number that can be copied as it is."""
    if type(value) is np.ndarray:
        return value.shape == shape and value.dtype == dtype
    return type(value) is int and shape == () and dtype == np.int64


def _share_memory(entries: list[Any], surely: bool = False) -> bool:
    """Return whether two of the entries hold the same memory.

    Args:
        entries: The entries.
        surely: Whether objects of unknown kinds count as apart; otherwise they may share memory.
    """
    memory = [address for entry in entries for address in _memory_of(entry)]
    memory = [address for address in memory if address or not surely]
    return len(set(memory)) < len(memory)


def _memory_of(entry: Any) -> set[int]:
    """Return the addresses of the arrays, tensors, lists and dicts of an entry.

    0 stands for an object of another kind, such as an image, of which this cannot be told.
    """
    if isinstance(entry, np.ndarray):
        return {entry.__array_interface__["data"][0]}
    if isinstance(entry, tuple):
        return set().union(*map(_memory_of, entry))
    if isinstance(entry, (dict, list)):
        parts = entry.values() if isinstance(entry, dict) else entry
        return {id(entry)}.union(*map(_memory_of, parts))
    if entry is None or isinstance(entry, (bool, int, float, str, bytes, np.generic)):
        return set()
    return {entry.data_ptr() if hasattr(entry, "data_ptr") else 0}


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
