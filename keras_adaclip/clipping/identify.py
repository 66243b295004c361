"""From what a user writes for `clipping=` to a strategy."""

import numbers
from typing import Any

import keras

from keras_adaclip.clipping.automatic import AutomaticClipping
from keras_adaclip.clipping.fixed import FixedClipping
from keras_adaclip.clipping.quantile import QuantileClipping
from keras_adaclip.clipping.scheduled import ScheduledClipping
from keras_adaclip.clipping.strategy import ClippingStrategy
from keras_adaclip.schedules import Schedule

_NAMED = {"quantile": QuantileClipping, "automatic": AutomaticClipping}


def get(identifier: Any) -> ClippingStrategy:
    """The clipping strategy that a user means.

    Args:
        identifier: a strategy, a number (a fixed norm), a schedule of norms, `"quantile"`,
            `"automatic"`, or a serialized strategy or schedule.

    Raises:
        TypeError: where `identifier` is none of these.
        ValueError: where the name is unknown or the number is out of range.
    """
    if isinstance(identifier, dict):
        identifier = keras.saving.deserialize_keras_object(identifier)
    if isinstance(identifier, ClippingStrategy):
        return identifier
    if isinstance(identifier, (Schedule, keras.optimizers.schedules.LearningRateSchedule)):
        return ScheduledClipping(identifier)
    if isinstance(identifier, str):
        if identifier in _NAMED:
            return _NAMED[identifier]()
        raise ValueError(
            f"Argument `clipping` must name a known strategy ({', '.join(map(repr, _NAMED))}). "
            f"Received: clipping={identifier!r}"
        )
    if isinstance(identifier, numbers.Real) and not isinstance(identifier, bool):
        return FixedClipping(float(identifier))
    raise TypeError(
        "Argument `clipping` must be a clipping strategy from `keras_adaclip.clipping`, a "
        "schedule, a positive number or the name of a strategy. "
        f"Received: clipping={identifier!r}"
    )
