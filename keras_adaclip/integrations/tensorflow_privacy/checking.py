"""Which queries can aggregate a round, and what their results are."""

from typing import Any

import keras

from keras_adaclip.integrations.tensorflow_privacy.library import is_instance, library_class


def refuse_other_backends() -> None:
    """Raises where Keras does not run on TensorFlow.

    Raises:
        RuntimeError: with what to do about it.
    """
    backend = keras.backend.backend()
    if backend != "tensorflow":
        raise RuntimeError(
            "The queries of TensorFlow Privacy run on TensorFlow: set the environment variable "
            "KERAS_BACKEND=tensorflow before Keras is imported, or use "
            "`keras_adaclip.optimizers.DPOptimizer`, which runs on each backend. "
            f"Received: backend={backend!r}"
        )


def checked_query(given: Any) -> Any:
    """The query that a user has given, or that the function they gave makes.

    Raises:
        TypeError: where it is none.
        ValueError: where its results cannot be used as those of a round.
    """
    base = library_class("DPQuery")
    query = given if isinstance(given, base) or not callable(given) else given()
    if not isinstance(query, base):
        raise TypeError(
            "Argument `query` must be a `DPQuery` of TensorFlow Privacy, or a function without "
            f"arguments that returns one. Received: query={query!r}"
        )
    if is_instance(query, "TreeCumulativeSumQuery"):
        raise ValueError(
            "A `TreeCumulativeSumQuery` returns the sum of all rounds so far, and an optimizer "
            "takes that of one. Use a `TreeResidualSumQuery`, whose rounds add up to it."
        )
    return query


def is_mean(query: Any) -> bool:
    """Whether the results of `query` are divided by a number of clients already.

    Raises:
        ValueError: where those of one part are, and those of another are not.
    """
    if is_instance(query, "NormalizedQuery", "NoPrivacyAverageQuery"):
        return True
    if is_instance(query, "RestartQuery"):
        return is_mean(query._inner_query)
    if not is_instance(query, "NestedQuery"):
        return False
    found = {is_mean(part) for part in keras.tree.flatten(query._queries)}
    if len(found) > 1:
        raise ValueError(
            "The parts of a `NestedQuery` must all be means (`NormalizedQuery`) or all be sums, "
            "which are then divided by the expected number of clients."
        )
    return found.pop()
