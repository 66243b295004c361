"""Arrays that `fit` was given: whether they are arrays, their first rows, weights and splits."""

import math
from typing import Any

import keras
import numpy as np

from keras_adaclip.gradients import Batch
from keras_adaclip.sampling import as_array, common_length, holds_strings


def is_array_data(x: Any) -> bool:
    """Whether `x` is an array or a structure of arrays, and not a data set."""
    if isinstance(x, (dict, list, tuple)):
        leaves = keras.tree.flatten(x)
        return bool(leaves) and all(_is_array(leaf) for leaf in leaves)
    return _is_array(x)


def number_of_rows(x: Any, y: Any, sample_weight: Any) -> int:
    """The number of rows that inputs, targets and weights have.

    Raises:
        TypeError: where one of them is not a dense array with a first axis.
        ValueError: where they differ, or there is no row.
    """
    given = {"x": x, "y": y, "sample_weight": sample_weight}
    given = {name: part for name, part in given.items() if part is not None}
    for name, part in given.items():
        for leaf in keras.tree.flatten(part):
            if not _is_dense(leaf):
                raise TypeError(
                    f"Argument `{name}` must be a dense array of numbers (on TensorFlow, or of "
                    "strings) whose first axis counts the examples, or a dict or list of such "
                    "arrays. Convert it first, such as with `np.asarray`, `.toarray()` or by "
                    f"padding. Received: an object of type {type(leaf).__name__}"
                )
    return common_length(given)


def weights_of_classes(y: Any, class_weight: dict[int, float], sample_weight: Any) -> np.ndarray:
    """Sample weights of shape `(num_examples,)` from class weights, as Keras makes them.

    Args:
        y: class numbers of shape `(num_examples,)` or `(num_examples, 1)`, or one-hot rows.
        class_weight: weight by class number; classes that are left out weigh 1.
        sample_weight: must be None.

    Raises:
        ValueError: where both kinds of weights are given, or `y` is not one array.
    """
    if sample_weight is not None:
        raise ValueError("Arguments `class_weight` and `sample_weight` exclude each other.")
    if y is None or isinstance(y, (dict, list, tuple)):
        raise ValueError(
            "Argument `class_weight` needs one array of targets; use `sample_weight` for models "
            "with several outputs."
        )
    labels = np.asarray(y)
    if labels.ndim > 1:
        labels = labels.argmax(-1) if labels.shape[-1] != 1 else labels[..., 0]
    labels = np.round(labels).astype(np.int64)
    weights = np.ones(labels.shape, np.float32)
    for number, weight in class_weight.items():
        weights[labels == int(number)] = weight
    return weights


def split_off_validation(
    x: Any, y: Any, sample_weight: Any, fraction: float
) -> tuple[tuple[Any, Any, Any], tuple[Any, ...]]:
    """Splits off the last rows for validation, as Keras does.

    Args:
        x: inputs; arrays of shape `(num_examples, ...)`.
        y: targets or None.
        sample_weight: weights or None.
        fraction: share of the rows for validation, between 0 and 1.

    Returns:
        The training part `(x, y, sample_weight)` and the validation part.
    """
    length = number_of_rows(x, y, sample_weight)
    start = math.floor(length * (1.0 - fraction))
    if not 0 < start < length:
        raise ValueError(
            "Argument `validation_split` must leave at least one example on each side of "
            f"{length}. Received: validation_split={fraction}"
        )

    def cut(part: Any, rows: slice) -> Any:
        return None if part is None else keras.tree.map_structure(lambda v: v[rows], part)

    head = tuple(cut(part, slice(0, start)) for part in (x, y, sample_weight))
    tail = tuple(cut(part, slice(start, None)) for part in (x, y, sample_weight))
    return (head[0], head[1], head[2]), tail


def strings_as_tensors(parts: Any) -> Any:
    """The same structure with tensors for arrays of strings, of which Keras takes few kinds."""

    def convert(value: Any) -> Any:
        if getattr(getattr(value, "dtype", None), "kind", "") not in ("O", "S", "T", "U"):
            return value
        return keras.ops.convert_to_tensor(as_array(value))

    return keras.tree.map_structure(convert, parts)


def as_tensors(parts: Any) -> Any:
    """The same structure with tensors for arrays; None stays None."""
    convert = keras.ops.convert_to_tensor
    return keras.tree.map_structure(lambda v: None if v is None else convert(v), parts)


def first_rows(x: Any, y: Any, sample_weight: Any) -> Batch:
    """The first three rows of each part, as NumPy arrays; strings as objects."""

    def first(value: Any) -> np.ndarray:
        head = _head(value)
        return as_array(head) if holds_strings(head) else head

    def take(part: Any) -> Any:
        return None if part is None else keras.tree.map_structure(first, part)

    return Batch(take(x), take(y), take(sample_weight))


def _head(value: Any) -> np.ndarray:
    head = value[:3]
    return np.asarray(head.detach().cpu() if hasattr(head, "detach") else head)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and not _is_dataset(value)


def _is_dataset(value: Any) -> bool:
    return hasattr(value, "element_spec")


def _is_dense(value: Any) -> bool:
    """Whether `value` has rows that NumPy can hold; sparse and ragged arrays have none."""
    try:
        head = _head(value)
    # Every framework has its own error for this.
    except Exception:
        return False
    is_known = head.dtype != object or holds_strings(head)
    return head.ndim > 0 and is_known and hasattr(value, "__len__")
