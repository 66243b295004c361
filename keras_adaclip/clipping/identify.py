"""From what a user writes for `clipping=` to a strategy."""

import numbers
from typing import Any

import keras

from keras_adaclip.clipping.fixed import FixedClipping
from keras_adaclip.clipping.quantile import QuantileClipping
from keras_adaclip.clipping.strategy import ClippingStrategy


def get(identifier: Any) -> ClippingStrategy:
    """The clipping strategy that a user means.

    Args:
        identifier: a strategy, a number (a fixed norm), `"quantile"`, or a serialized strategy.

    Raises:
        TypeError: where `identifier` is none of these.
        ValueError: where the name is unknown or the number is out of range.
    """
    if isinstance(identifier, ClippingStrategy):
        return identifier
    if isinstance(identifier, dict):
        strategy = keras.saving.deserialize_keras_object(identifier)
        if isinstance(strategy, ClippingStrategy):
            return strategy
    if isinstance(identifier, str):
        if identifier == "quantile":
            return QuantileClipping()
        raise ValueError(
            "Argument `clipping` must name a known strategy ('quantile'). "
            f"Received: clipping={identifier!r}"
        )
    if isinstance(identifier, numbers.Real) and not isinstance(identifier, bool):
        return FixedClipping(float(identifier))
    raise TypeError(
        "Argument `clipping` must be a clipping strategy from `keras_adaclip.clipping`, a positive "
        f"number or the name of a strategy. Received: clipping={identifier!r}"
    )
