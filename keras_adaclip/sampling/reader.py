"""Reads examples of a source and stacks them."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_adaclip.sampling.arrays import as_array, holds_strings, is_list_of_numbers, padding
from keras_adaclip.sampling.mapped import MappedPages, rows_in_file

Parts = dict[str, Any]
PARTS = ("x", "y", "sample_weight")
_DICT, _TUPLE = "dict", "tuple"


class SourceReader:
    """Reads examples of a source by their numbers, and stacks them.

    Args:
        source: An object with `len(source)` and `source[i]`.
        function: Makes an example of an entry of the source; None if the entries are examples.

    Attributes:
        source: The source.
    """

    def __init__(self, source: Any, function: Callable[[Any], Any] | None) -> None:
        self.source, self._function = source, function
        is_array = type(source) in (np.ndarray, np.memmap)
        self._rows = rows_in_file(source) if is_array else None
        self._pages = MappedPages(source, function)
        self._forms = forms_of(self._examples([0])[0])

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
        examples = self._examples(numbers, self._read_together(numbers))
        stacked = stacked_parts(examples, self._forms, numbers, size)
        self._pages.give_back()
        return stacked

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self._function)

    def _read_together(self, numbers: Sequence[int]) -> list[Any] | None:
        """Return the entries in the order of the numbers, None if they are read one by one."""
        # Looked up in the class: an object that wraps another source may number its entries anew.
        many = getattr(type(self.source), "__getitems__", None)
        if not numbers:
            return None
        try:
            if self._rows is not None:
                return list(self._rows[np.array(numbers)])
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
        return found

    def _examples(self, numbers: Sequence[int], found: list[Any] | None = None) -> list[Parts]:
        """Return the parts of examples by name.

        Args:
            numbers: The numbers of the examples.
            found: The entries of the source, if they have been read.
        """
        examples = []
        for place, number in enumerate(numbers):
            try:
                example = self.source[number] if found is None else found[place]
                if self._function is not None:
                    example = self._function(example)
            except Exception as error:
                raise RuntimeError(
                    f"Example {number} of the source could not be read: {type(error).__name__}: "
                    f"{error}"
                ) from error
            examples.append(parts_of(example, number))
        return examples


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


def stacked_parts(
    examples: Sequence[Parts], forms: Parts, numbers: Sequence[int], size: int
) -> Parts:
    """Return examples as structures of arrays of shape `(size, ...)`.

    Args:
        examples: The parts of each example.
        forms: The form that they must have, by the name of the part.
        numbers: The number of each example.
        size: The number of rows, with padding behind the examples.

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
        name: _stacked([example[name] for example in examples], form, name, numbers, size)
        for name, form in forms.items()
    }


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


def _stacked(values: list[Any], form: Any, name: str, numbers: Sequence[int], size: int) -> Any:
    """Return parts of examples as a structure of arrays, if they have this form."""
    kind, of_kind = form
    if kind == _DICT:
        for number, value in zip(numbers, values, strict=True):
            _check_form(isinstance(value, dict) and value.keys() == of_kind.keys(), number, name)
        return {
            key: _stacked(
                [value[key] for value in values], of_key, f"{name}[{key!r}]", numbers, size
            )
            for key, of_key in of_kind.items()
        }
    if kind == _TUPLE:
        for number, value in zip(numbers, values, strict=True):
            is_same = isinstance(value, (list, tuple)) and len(value) == len(of_kind)
            _check_form(is_same, number, name)
        return tuple(
            _stacked(
                [value[place] for value in values], of_place, f"{name}[{place}]", numbers, size
            )
            for place, of_place in enumerate(of_kind)
        )
    stacked = padding((size, *kind), of_kind)
    if _are_rows(values, kind, of_kind):
        np.stack(values, out=stacked[: len(values)])
        return stacked
    for place, value in enumerate(values):
        row = _as_row(value)
        if row.shape != kind or not _fits(row.dtype, of_kind):
            raise ValueError(
                f"Example {numbers[place]} of the source has the shape {row.shape} and dtype "
                f"{row.dtype} in `{name}`, and the first example has {kind} and {of_kind}. All "
                "must have the shape of the first, and a dtype that its dtype can hold; a function "
                "`map=` of the entry can pad, crop or convert."
            )
        stacked[place] = row[()]
    return stacked


def _are_rows(values: list[Any], shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Return whether values are arrays or numbers that can be stacked as they are."""
    if shape == () and set(map(type, values)) == {int}:
        return dtype == np.int64
    are_arrays = all(
        type(each) is np.ndarray and each.dtype == dtype and each.shape == shape for each in values
    )
    return are_arrays and len(values) > 0


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
