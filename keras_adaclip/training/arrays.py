"""Arrays, data sets and generators given to `fit`: their rows, weights, lengths and splits."""

import itertools
import math
from typing import Any

import keras
import numpy as np

from keras_adaclip.gradients import Batch
from keras_adaclip.sampling import as_array, common_length, holds_strings


def is_array_data(x: Any) -> bool:
    """Return whether `x` is an array or a structure of arrays, not a data set."""
    leaves = keras.tree.flatten(x)
    return bool(leaves) and all(
        hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not hasattr(leaf, "element_spec")
        for leaf in leaves
    )


def number_of_rows(x: Any, y: Any, sample_weight: Any) -> int:
    """Return the number of rows of inputs, targets and weights.

    Raises:
        TypeError: If one of them is not a dense array with a first axis.
        ValueError: If their numbers of rows differ or are zero.
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
    """Return sample weights of shape `(num_examples,)` from class weights, as Keras does.

    Args:
        y: Class numbers of shape `(num_examples,)` or `(num_examples, 1)`, or one-hot rows.
        class_weight: Weight of each class number; other classes weigh 1.
        sample_weight: Must be None.

    Raises:
        ValueError: If both kinds of weights are given, or `y` is not one array.
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
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return a training part and a validation part, which holds the last rows, as in Keras.

    Args:
        x: Inputs, arrays of shape `(num_examples, ...)`.
        y: Targets or None.
        sample_weight: Weights or None.
        fraction: Share of the rows for validation, between 0 and 1.

    Returns:
        Two tuples `(x, y, sample_weight)`.
    """
    length = number_of_rows(x, y, sample_weight)
    start = math.floor(length * (1.0 - fraction))
    if not 0 < start < length:
        raise ValueError(
            "Argument `validation_split` must leave at least one example on each side of "
            f"{length}. Received: validation_split={fraction}"
        )

    def cut(rows: slice) -> tuple[Any, ...]:
        return tuple(_mapped(lambda v: v[rows], part) for part in (x, y, sample_weight))

    return cut(slice(0, start)), cut(slice(start, None))


def strings_as_tensors(parts: Any) -> Any:
    """Return the same structure with arrays of strings as tensors; Keras takes few kinds."""

    def convert(value: Any) -> Any:
        if getattr(getattr(value, "dtype", None), "kind", "") not in ("O", "S", "T", "U"):
            return value
        return keras.ops.convert_to_tensor(as_array(value))

    return keras.tree.map_structure(convert, parts)


def first_rows(x: Any, y: Any, sample_weight: Any) -> Batch:
    """Return the first three rows of each part as NumPy arrays, strings as objects."""

    def first(value: Any) -> np.ndarray:
        head = _head(value)
        return as_array(head) if holds_strings(head) else head

    return Batch(*(_mapped(first, part) for part in (x, y, sample_weight)))


def refuse_other_data(x: Any) -> None:
    """Raise if `x` is a Python structure of numbers, whose rows cannot be told, or clients."""
    if hasattr(x, "client_ids"):
        raise TypeError(
            "A `PrivateModel` trains on single examples, and these are clients. To protect "
            "clients, train a `keras_adaclip.FederatedModel` (`keras_adaclip.federate(model)`); to "
            "protect single examples, give `x, y = clients.all_examples()`. "
            f"Received: x of type {type(x).__name__}"
        )
    if isinstance(x, (list, tuple, dict, str)):
        raise TypeError(
            "Training data must be arrays, not plain Python numbers: convert them with "
            f"`np.asarray`. Received: x of type {type(x).__name__}"
        )


def peek(data: Any) -> tuple[Any, Any]:
    """Return the first batch of a data set or generator, and the data with that batch in it.

    Raises:
        TypeError: If `data` is neither a data set nor a generator.
        ValueError: If there is no batch.
    """
    try:
        if isinstance(data, keras.utils.PyDataset):
            return data[0], data
        if hasattr(data, "__next__"):
            first = next(data)
            return first, (batch for batch in itertools.chain([first], data))
        return next(iter(data)), data
    except StopIteration:
        raise ValueError("The training data hold no batch.") from None
    except TypeError:
        raise TypeError(
            "Training data must be arrays, a `tf.data.Dataset`, a `keras.utils.PyDataset`, a "
            "`torch.utils.data.DataLoader` or a generator of batches. "
            f"Received: x of type {type(data).__name__}"
        ) from None


def known_length(data: Any) -> int | None:
    """Return the number of batches in a pass, None if it is unknown or infinite."""
    if isinstance(data, keras.utils.PyDataset):
        return None if data.num_batches is None else int(data.num_batches)
    if hasattr(data, "cardinality"):
        length = int(data.cardinality())
        return length if length >= 0 else None
    try:
        return len(data)
    except TypeError:
        return None


def known_num_examples(data: Any, num_batches: int | None, batch_size: int) -> int | None:
    """Return the number of examples, None if the data set does not tell."""
    if hasattr(data, "num_examples"):
        return int(data.num_examples)
    inner = getattr(data, "dataset", None)
    if inner is not None and hasattr(inner, "__len__"):
        return len(inner)
    return None if num_batches is None else num_batches * batch_size


def _mapped(function: Any, part: Any) -> Any:
    return None if part is None else keras.tree.map_structure(function, part)


def _head(value: Any) -> np.ndarray:
    head = value[:3]
    return np.asarray(head.detach().cpu() if hasattr(head, "detach") else head)


def _is_dense(value: Any) -> bool:
    """Return whether `value` has rows that NumPy can hold; sparse and ragged arrays have none."""
    try:
        head = _head(value)
    # Every framework has its own error for this.
    except Exception:
        return False
    is_known = head.dtype != object or holds_strings(head)
    return head.ndim > 0 and is_known and hasattr(value, "__len__")
