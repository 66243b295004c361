"""Data sets and generators that `fit` was given: the first batch, and how much they hold."""

from collections.abc import Iterator
from typing import Any

import keras


def refuse_plain_numbers(x: Any) -> None:
    """Raises where `x` is a Python list, tuple or dict of numbers, in which rows cannot be told.

    Clients are refused too.
    """
    if hasattr(x, "client_ids"):
        raise TypeError(
            "A `PrivateModel` trains on single examples, and these are clients. To protect "
            "clients, train a `keras_adaclip.FederatedModel` (`keras_adaclip.federate(model)`); to "
            "protect single examples, give `x, y = clients.all_examples()`. "
            f"Received: x of type {type(x).__name__}"
        )
    if isinstance(x, (list, tuple, dict, str)):
        raise TypeError(
            "Training data must be arrays, and plain Python numbers are none: convert them with "
            f"`np.asarray`. Received: x of type {type(x).__name__}"
        )


def peek(data: Any) -> tuple[Any, Any]:
    """The first batch, and the data with that batch still in it.

    Raises:
        TypeError: where `data` is neither a data set nor a generator.
        ValueError: where there is no batch.
    """
    try:
        if isinstance(data, keras.utils.PyDataset):
            return data[0], data
        if hasattr(data, "__next__"):
            first = next(data)
            return first, _with_first(first, data)
        return next(iter(data)), data
    except StopIteration:
        raise ValueError("The training data hold no batch.") from None
    except TypeError:
        raise TypeError(
            "Training data must be arrays, a `tf.data.Dataset`, a `keras.utils.PyDataset`, a "
            "`torch.utils.data.DataLoader` or a generator of batches. "
            f"Received: x of type {type(data).__name__}"
        ) from None


def _with_first(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def known_length(data: Any) -> int | None:
    """Number of batches in a pass, None where it is unknown or infinite."""
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
    """Number of examples, where the data set tells."""
    if hasattr(data, "num_examples"):
        return int(data.num_examples)
    inner = getattr(data, "dataset", None)
    if inner is not None and hasattr(inner, "__len__"):
        return len(inner)
    return None if num_batches is None else num_batches * batch_size
