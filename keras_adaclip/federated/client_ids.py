"""The ids of clients: which examples belong to one client, and random numbers of its own.

Two ids of one person would let that person contribute twice, so ids that look alike are refused.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.random import Generator

_KINDS = (int, str, bytes)


def numbered(client_ids: Any) -> tuple[list[Any], np.ndarray]:
    """Return the different ids, and for each example the number of its id.

    Args:
        client_ids: An id for each example, as an array, a column of a frame, or a list.

    Returns:
        The ids, sorted if they are integers or strings, otherwise as they come first; integers of
        shape `(num_examples,)`.

    Raises:
        TypeError: If an id is missing, or is neither integer, string nor another hashable object.
        ValueError: If two ids look alike, such as 1 and "1".

    Example:

    >>> ids, numbers = numbered(["b", "a", "b"])
    >>> ids, numbers.tolist()
    (['a', 'b'], [1, 0, 1])
    """
    if isinstance(client_ids, (list, tuple)):
        # One array of NumPy would make strings of integers that stand beside strings.
        ids = np.empty(len(client_ids), object)
        for place, each in enumerate(client_ids):
            ids[place] = each
    else:
        ids = np.asarray(client_ids)
    missing = 0
    if ids.ndim == 1 and ids.dtype == object:  # As a column of a frame holds them.
        entries = [each.item() if isinstance(each, np.generic) else each for each in ids]
        missing = sum(map(_is_missing, entries))
        if entries and not missing and not any(isinstance(each, float) for each in entries):
            return _numbered_objects(entries)
    elif ids.dtype.kind in "mM":
        missing = int(np.isnat(ids).sum())
    if ids.ndim != 1 or ids.dtype.kind in "Ofc" or len(ids) == 0 or missing:
        raise TypeError(
            "Argument `client_ids` must be one integer or string for each example. Give examples "
            "without a client an id of their own, or leave them out. "
            f"Received: an array of shape {ids.shape} and dtype {ids.dtype}"
            + (f", {missing:,} of its ids missing" if missing else "")
        )
    distinct, places = np.unique(ids, return_inverse=True)
    return distinct.tolist(), places


def generator_of(client_id: Any, seed: int, purpose: int) -> Generator:
    """Return a random generator that depends on the client alone.

    Args:
        client_id: The id of the client.
        seed: A seed.
        purpose: Sets apart what the numbers are for.

    Raises:
        TypeError: If the id prints as an address in memory, which another process would not repeat.
    """
    if type(client_id).__repr__ is object.__repr__:  # type: ignore[comparison-overlap]
        raise TypeError(
            "Clients are divided by their ids, which must print as something that stays. "
            f"Received: an id of type {type(client_id).__name__} without a `__repr__`"
        )
    plain = client_id.item() if isinstance(client_id, np.generic) else client_id
    return np.random.default_rng([seed, purpose, *repr(plain).encode()])


def _numbered_objects(entries: Sequence[Any]) -> tuple[list[Any], np.ndarray]:
    """Return the different entries, and the number of each entry."""
    numbers: dict[Any, int] = {}
    try:
        found = [numbers.setdefault(each, len(numbers)) for each in entries]
    except TypeError as error:
        raise TypeError(
            "Argument `client_ids` must be one integer or string for each example, or another "
            f"hashable object. Received: {error}"
        ) from error
    distinct = list(numbers)
    if len({type(each) for each in distinct}) > 1:
        _refuse_twins(distinct)
    if not any(all(isinstance(each, kind) for each in distinct) for kind in _KINDS):
        return distinct, np.array(found)
    order = sorted(range(len(distinct)), key=lambda number: distinct[number])
    places = np.empty(len(order), int)
    places[order] = np.arange(len(order))
    return [distinct[number] for number in order], places[found]


def _refuse_twins(distinct: Sequence[Any]) -> None:
    """Raise a `ValueError` if two ids look alike."""
    texts: dict[str, Any] = {}
    for each in distinct:
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
