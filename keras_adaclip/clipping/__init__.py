"""Clipping strategies: the bound on a contribution, and how it is chosen."""

import numbers
from typing import Any

import keras

from keras_adaclip.clipping.adaclip import AdaClip
from keras_adaclip.clipping.automatic import PSAC, AutomaticClipping
from keras_adaclip.clipping.clipper import Clipper
from keras_adaclip.clipping.expected_error import ExpectedErrorClipping
from keras_adaclip.clipping.fixed import FixedClipping
from keras_adaclip.clipping.groups import ParameterGroups
from keras_adaclip.clipping.mean_norm import MeanNormClipping
from keras_adaclip.clipping.quantile import QuantileClipping
from keras_adaclip.clipping.scheduled import ScheduledClipping
from keras_adaclip.clipping.slaclip import SlaClip
from keras_adaclip.clipping.strategy import ClippingStrategy, Release
from keras_adaclip.schedules import Schedule

__all__ = [
    "PSAC",
    "AdaClip",
    "AutomaticClipping",
    "ClippingStrategy",
    "ExpectedErrorClipping",
    "FixedClipping",
    "MeanNormClipping",
    "ParameterGroups",
    "QuantileClipping",
    "Release",
    "ScheduledClipping",
    "SlaClip",
    "get",
]

_NAMED = {"quantile": QuantileClipping, "automatic": AutomaticClipping}


def get(identifier: Any) -> ClippingStrategy:
    """Return the clipping strategy for a `clipping` argument.

    Args:
        identifier: A strategy, a number (a fixed norm), a schedule of norms, `"quantile"`,
            `"automatic"`, or the config of a strategy or schedule.

    Raises:
        TypeError: If `identifier` is none of these.
        ValueError: If the name is unknown or the number is out of range.
    """
    if isinstance(identifier, dict):
        identifier = keras.saving.deserialize_keras_object(identifier)
    if isinstance(identifier, ClippingStrategy):
        return identifier
    if isinstance(identifier, (Schedule, keras.optimizers.schedules.LearningRateSchedule)):
        return ScheduledClipping(identifier)
    if isinstance(identifier, numbers.Real) and not isinstance(identifier, bool):
        return FixedClipping(float(identifier))
    if isinstance(identifier, str) and identifier in _NAMED:
        return _NAMED[identifier]()
    kind = ValueError if isinstance(identifier, str) else TypeError
    raise kind(
        "Argument `clipping` must be a clipping strategy from `keras_adaclip.clipping`, a "
        "schedule, a positive number, 'quantile' or 'automatic'. "
        f"Received: clipping={identifier!r}"
    )
