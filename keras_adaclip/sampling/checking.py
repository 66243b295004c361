"""What the data and numbers given to a sampler must be."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np


def common_length(parts: dict[str, Any]) -> int:
    """The number of rows that all arrays have.

    Args:
        parts: structures of arrays by name.

    Raises:
        ValueError: where there is no row, or two arrays differ.
    """
    lengths = {
        name: {len(array) for array in keras.tree.flatten(part)} for name, part in parts.items()
    }
    distinct = set().union(*lengths.values())
    if len(distinct) != 1:
        told = ", ".join(f"{name}: {sorted(found)}" for name, found in lengths.items())
        raise ValueError(
            "All arrays must have the same number of rows (examples). "
            f"Received numbers of rows: {told}"
        )
    (length,) = distinct
    if length == 0:
        raise ValueError("The data must hold at least one example. Received: 0 rows")
    return int(length)


def checked_batch_size(batch_size: Any, num_examples: int) -> int:
    """Returns the expected batch size as an int.

    Args:
        batch_size: what was given.
        num_examples: number of examples in the data.

    Raises:
        TypeError: where it is not an integer.
        ValueError: where it does not lie between 1 and `num_examples`.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)):
        raise TypeError(
            f"The (expected) batch size must be an integer. Received: batch_size={batch_size!r}"
        )
    if not 1 <= batch_size <= num_examples:
        raise ValueError(
            f"The (expected) batch size must lie between 1 and the number of examples, "
            f"{num_examples}. Received: batch_size={batch_size}"
        )
    return int(batch_size)


def checked_seed(seed: Any) -> int | None:
    """Returns a seed that is a natural number or None, or says what is wrong with it.

    Args:
        seed: what was given.

    Raises:
        TypeError: where it is neither an integer nor None.
        ValueError: where it is negative.
    """
    if seed is None:
        return None
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"Argument `seed` must be an integer or None. Received: seed={seed!r}")
    if seed < 0:
        raise ValueError(f"Argument `seed` must not be negative. Received: seed={seed}")
    return int(seed)


def checked_present(present: Any, num_rows: int) -> np.ndarray:
    """Returns one truth value a row, or says what is wrong with them."""
    given = np.array(present)
    if given.dtype != np.bool_:
        raise TypeError(
            f"Argument `present` must be an array of truth values. Received: dtype {given.dtype}"
        )
    if given.shape != (num_rows,):
        raise ValueError(
            f"Argument `present` must have one truth value for each of the {num_rows} rows. "
            f"Received: shape {given.shape}"
        )
    return given


def holds_strings(array: np.ndarray) -> bool:
    """Whether every entry is a string, of text or of bytes.

    Args:
        array: of any shape.
    """
    if array.dtype.kind in "SUT":
        return True
    return array.dtype == object and all(isinstance(each, (str, bytes)) for each in array.flat)


def padding(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Entries that stand for none: zeros, or empty strings.

    Args:
        shape: of the array.
        dtype: of `as_array`'s arrays.
    """
    return np.full(shape, "" if dtype.kind == "O" else 0, dtype)


def as_array(value: Any) -> np.ndarray:
    """Data as `PoissonDataset` holds them: NumPy, real numbers of Keras's default type.

    Args:
        value: an array or a tensor.

    Returns:
        The array; strings as objects.

    Raises:
        TypeError: where it is neither, or where the backend feeds no strings to a model.
    """
    array = np.asarray(value) if not hasattr(value, "detach") else value.detach().cpu().numpy()
    if array.ndim > 0 and holds_strings(array):
        if keras.backend.backend() != "tensorflow":
            raise TypeError(
                "Strings can be fed to a model on the TensorFlow backend alone. Look them up "
                "before training, such as with `ids = np.asarray(lookup(x))` of a "
                "`keras.layers.StringLookup` or `TextVectorization`, and let the model begin with "
                f"the integers. Received: strings on the {keras.backend.backend()} backend"
            )
        return array.astype(object)
    if array.ndim == 0 or array.dtype == object:
        raise TypeError(
            "Data must be arrays of numbers (on TensorFlow, or of strings) whose first axis counts "
            "the examples. Received: an object of type "
            f"{type(value).__name__} with dtype {array.dtype} and shape {array.shape}"
        )
    return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array
