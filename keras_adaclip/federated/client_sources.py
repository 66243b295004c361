"""What `ClientData` reads: ids, columns of frames, HDF5 files, and the arrays of a client.

Two ids of one person would let that person contribute twice, so ids that look alike are refused.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import h5py
import keras
import numpy as np
from numpy.random import Generator

from keras_adaclip.gradients import mapped
from keras_adaclip.sampling import as_array

_GROUP = "examples"
Examples = tuple[Any, Any]


def numbered(client_ids: Any, population: Sequence[Any] | None) -> tuple[list[Any], np.ndarray]:
    """Return the different ids, and for each example the number of its id.

    Args:
        client_ids: An id for each example, as an array, a column of a frame, or a list.
        population: All ids; None takes those that occur.

    Returns:
        The ids, sorted if they can be, otherwise as they come first; integers of shape
        `(num_examples,)`.

    Raises:
        TypeError: If an id is missing, a float, or cannot be hashed.
        ValueError: If two ids look alike, such as 1 and "1", or one is not in the population.

    Example:

    >>> ids, numbers = numbered(["b", "a", "b"], None)
    >>> ids, numbers.tolist()
    (['a', 'b'], [1, 0, 1])
    """
    # One array of NumPy would make strings of integers that stand beside strings.
    if not isinstance(client_ids, (list, tuple)):
        client_ids = np.asarray(client_ids)
        if client_ids.dtype.kind in "mM":
            client_ids = np.where(np.isnat(client_ids), None, client_ids.astype(object))
    rule = (
        "Argument `client_ids` must be one integer or string for each example, or another hashable "
        "object. Give examples without a client an id of their own, or leave them out. Received: "
    )
    try:
        entries = [each.item() if isinstance(each, np.generic) else each for each in client_ids]
        found = list(dict.fromkeys(entries))
    except TypeError as error:
        raise TypeError(f"{rule}{error}") from error
    wrong = [each for each in found if _is_missing(each) or isinstance(each, (float, complex))]
    if wrong:
        missing = sum(map(_is_missing, entries))
        raise TypeError(f"{rule}{wrong[0]!r}, with {missing:,} of {len(entries):,} ids missing")
    if len({type(each) for each in found}) > 1:
        _refuse_twins(found)
    if population is None:
        try:
            population = sorted(found)
        except TypeError:
            population = found
    numbers = {client_id: number for number, client_id in enumerate(population)}
    if unknown := [each for each in found if each not in numbers]:
        raise ValueError(
            "Every id of `client_ids` must be in `population`. Received examples of "
            f"{len(unknown)} other clients, such as {unknown[0]!r}"
        )
    return list(population), np.array([numbers[each] for each in entries], np.int64)


def _refuse_twins(found: Sequence[Any]) -> None:
    """Raise a `ValueError` if two ids look alike."""
    texts: dict[str, Any] = {}
    for each in found:
        text = each.decode(errors="replace") if isinstance(each, bytes) else str(each)
        if text in texts:
            raise ValueError(
                f"The ids {texts[text]!r} and {each!r} look alike: one client under both would "
                "contribute twice to a round. Give all ids one type, for example with "
                "`.astype(str)`."
            )
        texts[text] = each


def _is_missing(value: Any) -> bool:
    """Return whether an entry of a column is none."""
    # A missing value of pandas has no truth value.
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(value != value)


def distinct(client_ids: Iterable[Any]) -> list[Any]:
    """Return the ids of clients, each of which may take part once in a round.

    Raises:
        ValueError: If an id occurs twice, or there is none.
    """
    client_ids = list(client_ids)
    num_different = len(set(client_ids))
    if num_different < max(len(client_ids), 1):
        raise ValueError(
            "Argument `client_ids` must hold at least one id, and each only once: with two entries "
            "a client would contribute twice to a round. "
            f"Received: {len(client_ids):,} entries of {num_different:,} clients"
        )
    return client_ids


def generator_of(client_id: Any, seed: int, purpose: int) -> Generator:
    """Return a random generator that depends on the client alone.

    Args:
        client_id: The id of the client.
        seed: A seed.
        purpose: Sets apart what the numbers are for.
    """
    plain = client_id.item() if isinstance(client_id, np.generic) else client_id
    return np.random.default_rng([seed, purpose, *repr(plain).encode()])


def columns_of(frame: Any, client: str, label: Any, features: Any) -> tuple[Any, Any, Any]:
    """Return inputs, targets and clients of a frame; see `ClientData.from_dataframe`."""
    if not hasattr(frame, "columns"):
        raise TypeError(
            "Argument `frame` must be a frame of pandas or polars, or a table of Arrow. "
            f"Received: frame of type {type(frame).__name__}"
        )
    known = list(getattr(frame, "column_names", None) or frame.columns)
    labels = [] if label is None else keras.tree.flatten(label)
    if features is None:
        features = [name for name in known if name not in {client, *labels}]
        if not features:
            raise ValueError("The frame has no column beside those of clients and labels.")
    missing = {client, *labels, *keras.tree.flatten(features)}.difference(known)
    if missing:
        raise ValueError(f"The frame has no column {missing.pop()!r}. It has: {known}")

    def matrix(names: Any) -> Any:
        """Return a column, or a frame of several."""
        if isinstance(names, str):
            return frame[names]
        return frame.select(names) if hasattr(frame, "select") else frame[list(names)]

    is_dict = isinstance(features, dict)
    x = {key: matrix(each) for key, each in features.items()} if is_dict else matrix(features)
    y = None if label is None else keras.tree.map_structure(lambda name: frame[name], label)
    return x, y, frame[client]


def hdf5_client_ids(path: Any) -> list[str]:
    """Return the ids of the clients in an HDF5 file."""
    with h5py.File(path, "r") as file:
        return list(file[_GROUP])


def hdf5_client(path: Any, x: Any, y: Any, client_id: str) -> Examples:
    """Return the arrays `(x, y)` of a client in an HDF5 file; see `ClientData.from_hdf5`."""
    with h5py.File(path, "r") as file:
        examples: Examples = mapped(lambda name: file[_GROUP][client_id][name][()], (x, y))
        return examples


def num_rows(examples: Examples) -> int:
    """Return the number of examples of a client."""
    return len(keras.tree.flatten(examples[0])[0])


def rows_of(examples: Examples, rows: Any) -> Examples:
    """Return the given rows of each array."""
    found: Examples = mapped(lambda array: array[rows], examples)
    return found


def joined(parts: Iterable[Examples]) -> Examples:
    """Return the examples of several clients in one."""

    def concatenated(*arrays: Any) -> np.ndarray | None:
        """Return arrays as one, None if they are None."""
        return None if arrays[0] is None else np.concatenate(arrays)

    found: Examples = keras.tree.map_structure(concatenated, *map(copied, parts))
    return found


def copied(examples: Examples) -> Examples:
    """Return copies as arrays, since the user's code may fill the same ones for the next client.

    Strings stay as they are for `preprocess`, on every backend.
    """

    def copy(value: Any) -> np.ndarray:
        """Return a copy as an array."""
        is_text = isinstance(value, np.ndarray) and value.dtype == object
        return np.array(value if is_text else as_array(value))

    found: Examples = mapped(copy, keras.tree.lists_to_tuples(examples))
    return found
