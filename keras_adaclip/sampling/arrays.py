"""Conversion and checks of arrays whose first axis counts units."""

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

# Classes with fewer different rows tell nothing of copies.
_LEAST_DISTINCT = 10
# Larger arrays are not looked through for NaN before training.
_MOST_NUMBERS = 1 << 28
# Entries of frames that are numbers, and the names of the types of missing ones.
_NUMERIC, _MISSING = (bool, int, float, np.number, np.bool_), {"NAType", "NoneType"}
# Entries of lists that are data, rather than the inputs of a model with several.
_NUMBERS = (bool, int, float, str, bytes, np.generic)


class SparseRows:
    """A matrix of SciPy's sparse formats, whose rows are written out when they are taken.

    Args:
        matrix: A matrix of shape `(num_rows, num_columns)`.
    """

    def __init__(self, matrix: Any) -> None:
        is_wide = matrix.dtype == np.float64
        self.matrix = matrix.tocsr().astype(keras.config.floatx() if is_wide else matrix.dtype)
        self.shape, self.dtype, self.ndim = self.matrix.shape, self.matrix.dtype, 2

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> Any:
        taken = self.matrix[rows]
        return SparseRows(taken) if isinstance(rows, slice) else taken.toarray()

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.matrix.toarray(), dtype)

    def extremes(self) -> np.ndarray:
        """Return rows in which each column has the range that it has in all rows."""
        ranges = (self.matrix.nanmin(axis=0), self.matrix.nanmax(axis=0))
        return np.concatenate([each.toarray().reshape(1, -1) for each in ranges])

    def are_finite(self) -> np.ndarray:
        """Return whether all numbers of each row are finite."""
        wrong = ~np.isfinite(self.matrix.data)
        return np.bincount(self.matrix.tocoo().row, wrong, len(self)) == 0


def written_out(parts: Any) -> Any:
    """Return a structure of data with arrays in the place of sparse matrices."""
    return keras.tree.map_structure(
        lambda part: np.asarray(part) if isinstance(part, SparseRows) else part, parts
    )


def common_length(parts: dict[str, Any]) -> int:
    """Return the number of rows that all arrays share.

    Args:
        parts: Structures of arrays, and None for absent ones, by name.

    Raises:
        ValueError: If there is no row, or two arrays differ.
    """
    lengths = {
        name: sorted({len(array) for array in keras.tree.flatten(part) if array is not None})
        for name, part in parts.items()
    }
    distinct = set(itertools.chain(*lengths.values()))
    if len(distinct) != 1 or 0 in distinct:
        received = ", ".join(f"{name}: {found}" for name, found in lengths.items())
        raise ValueError(
            "All arrays must have the same number of rows (examples), at least one example. "
            f"Received numbers of rows: {received}"
        )
    return int(distinct.pop())


def num_rows_not_finite(parts: Any) -> int:
    """Return the number of rows with NaN or infinity; arrays of more than 2**28 numbers count 0.

    Args:
        parts: A structure of arrays with the same number of rows, and None.
    """
    wrong = np.zeros(1, bool)
    for part in keras.tree.flatten(parts):
        if isinstance(part, SparseRows):
            wrong = wrong | ~part.are_finite()
            continue
        array = None if part is None else as_array(part)
        if array is not None and array.dtype.kind == "f" and array.size <= _MOST_NUMBERS:
            wrong = wrong | ~np.isfinite(array).reshape(len(array), -1).all(axis=1)
    return int(wrong.sum())


def most_copies(x: Any, y: Any) -> tuple[int, int, bool]:
    """Return how often the most frequent row stands, how many rows differ, and if one class has it.

    The last is whether nearly all rows of a class stand more than once and nearly none of another
    class do, each with enough rows that differ. Coincidences are found in all classes.

    Returns 0, 0 and False where copies surprise nobody (rows of whole numbers, most of which are
    copies), for sparse rows, and for more than 2**28 numbers.

    Args:
        x: A structure of arrays with the same number of rows, and None.
        y: Targets, likewise; classes are known if they are one array.
    """
    given = [part for part in keras.tree.flatten((y, x)) if part is not None]
    if any(isinstance(part, SparseRows) for part in given):
        return 0, 0, False
    arrays = list(map(as_array, given))
    if sum(array.size for array in arrays) > _MOST_NUMBERS:
        return 0, 0, False
    texts = [array.astype("U") if array.dtype.kind == "O" else array for array in arrays]
    has_classes = int(hasattr(y, "shape"))
    hashes = np.array(
        [
            (hash(whole := tuple(part.tobytes() for part in row)), hash(whole[:has_classes]))
            for row in zip(*texts, strict=True)
        ]
    )
    _, numbers, times = np.unique(hashes[:, 0], return_inverse=True, return_counts=True)
    heads = [np.nan_to_num(array[:100]) for array in arrays if array.dtype.kind == "f"]
    is_fine = 2 * len(times) > len(hashes) or any((head != np.floor(head)).any() for head in heads)
    if not is_fine:
        return 0, 0, False
    copies, classes = times[numbers], np.unique(hashes[:, 1], return_inverse=True)[1]
    shares = np.bincount(classes, copies > 1) / np.bincount(classes)
    shares = shares[np.bincount(classes, 1 / copies) >= _LEAST_DISTINCT]
    is_of_class = bool((shares > 0.9).any() and (shares < 0.05).any())
    return int(times.max()), len(times), is_of_class


def holds_strings(array: np.ndarray) -> bool:
    """Return whether every entry is a string of text or bytes."""
    if array.dtype.kind in "SUT":
        return True
    return array.dtype == object and all(isinstance(each, (str, bytes)) for each in array.flat)


def padding(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return an array of zeros, or of empty strings where the dtype is `object`."""
    return np.full(shape, "" if dtype.kind == "O" else 0, dtype)


def filled(parts: Any, num_rows: int) -> Any:
    """Return a structure with an array without columns for each None, as batches hold no None."""
    return keras.tree.map_structure(
        lambda part: np.zeros((num_rows, 0), "float32") if part is None else part, parts
    )


def from_frames(parts: Any) -> Any:
    """Return the same structure with frames, series and lists of numbers as NumPy arrays.

    Args:
        parts: A structure of arrays, tensors, pandas or polars frames and series, PyArrow tables
            and columns, sparse matrices of SciPy, or a data set. Arrays, tensors and data sets are
            returned unchanged, and sparse matrices as `SparseRows`.
    """
    return keras.tree.traverse(_from_frame, parts)


def _from_frame(part: Any) -> Any:
    """Return a frame, a column or a list of numbers as an array, None for anything else."""
    kind = type(part)
    if hasattr(kind, "tocsr") and len(part.shape) == 2:
        return SparseRows(part)
    if isinstance(part, list):
        is_array = is_list_of_numbers(part)
    else:
        is_array = hasattr(kind, "__array__") and not hasattr(kind, "device")
    if not is_array or isinstance(part, (np.ndarray, SparseRows)):
        return None
    try:
        array = np.asarray(part)
    except ValueError as error:
        if not isinstance(part, list):
            raise
        raise ValueError(
            "The rows of a list of numbers must all have the same shape. Pad or cut them first, "
            f"such as with `keras.utils.pad_sequences`. Received: a list of {len(part)} rows"
        ) from error
    # Columns of several types, such as bool and float, give objects.
    if array.dtype == object and not (array.size and holds_strings(array)):
        with contextlib.suppress(TypeError, ValueError):
            return array.astype(keras.config.floatx())
        _refuse_columns(part, array)
    return array


def _refuse_columns(frame: Any, array: np.ndarray) -> None:
    """Raise a `TypeError` that names the columns of a frame that do not hold numbers.

    Args:
        frame: The frame, or a column.
        array: Its entries, as objects.
    """
    names = getattr(frame, "column_names", getattr(frame, "columns", None))
    names = [getattr(frame, "name", None)] if names is None else list(names)
    columns = dict(zip(names, array.reshape(len(array), -1).T, strict=False))
    wrong = []
    for name, column in columns.items():
        others = {type(each).__name__ for each in column if not isinstance(each, _NUMERIC)}
        if others:
            wrong.append(f"{name!r}{' (missing values)' * bool(others & _MISSING)}")
    if wrong:
        raise TypeError(
            "The columns of a frame must hold numbers. Turn strings, categories and dates into "
            "numbers first, for example with `pandas.get_dummies` and a list of categories that "
            "does not come from the data; fill missing values; and convert nullable numbers with "
            f"`.astype('float32')`. Received: {len(wrong)} of {len(columns)} columns without "
            f"numbers, the first of them {', '.join(wrong[:5])}"
        )


def is_list_of_numbers(part: Any) -> bool:
    """Return whether a list holds data, rather than the inputs of a model with several."""
    return isinstance(part, list) and all(
        isinstance(each, _NUMBERS) for each in keras.tree.flatten(part)
    )


def as_arrays(parts: Any, kept: tuple[type, ...] = ()) -> Any:
    """Return a structure of data, also of frames, as tuples and dicts of arrays, None unchanged.

    Args:
        parts: The structure.
        kept: Types of data that stay as they are, such as `SparseRows`.
    """
    arrays = keras.tree.map_structure(
        lambda part: part if part is None or isinstance(part, kept) else as_array(part),
        from_frames(parts),
    )
    return keras.tree.lists_to_tuples(arrays)


def as_array(value: Any) -> np.ndarray:
    """Return data as a NumPy array: float64 as Keras's default type, strings as objects.

    Args:
        value: An array or a tensor.

    Raises:
        TypeError: If the value is neither, or holds strings on a backend other than TensorFlow.
    """
    array = np.asarray(value) if not hasattr(value, "detach") else value.detach().cpu().numpy()
    if array.ndim > 0 and holds_strings(array):
        if keras.backend.backend() != "tensorflow":
            raise TypeError(
                "Only the TensorFlow backend feeds strings to a model. Look them up before "
                "training, for example `ids = np.asarray(lookup(x))` with a "
                "`keras.layers.StringLookup` or `TextVectorization`, and let the model begin with "
                f"the integers. Received: strings on the {keras.backend.backend()} backend"
            )
        return array.astype(object)
    if array.ndim == 0 or array.dtype == object:
        raise TypeError(
            "Data must be arrays of numbers (on TensorFlow, or of strings) whose first axis counts "
            f"the examples. Received: an object of type {type(value).__name__} with dtype "
            f"{array.dtype} and shape {array.shape}"
        )
    return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array
