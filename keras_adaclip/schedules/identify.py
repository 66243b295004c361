"""From what a user writes for a schedule to a schedule."""

from typing import Any

import keras

from keras_adaclip.schedules.keras_schedule import KerasSchedule
from keras_adaclip.schedules.schedule import Schedule


def get(identifier: Any) -> Schedule:
    """The schedule that a user means.

    Args:
        identifier: a schedule, one of Keras's learning rate schedules, or either serialized by
            `keras.saving.serialize_keras_object`.

    Returns:
        The schedule; one of Keras's comes as a `KerasSchedule`.

    Raises:
        TypeError: where `identifier` is none of these.

    Example:

    >>> get(keras.optimizers.schedules.ExponentialDecay(0.5, 100, 0.9)).value_at(0)
    0.5
    """
    found = identifier
    if isinstance(identifier, dict):
        found = keras.saving.deserialize_keras_object(identifier)
    if isinstance(found, keras.optimizers.schedules.LearningRateSchedule):
        return KerasSchedule(found)
    if isinstance(found, Schedule):
        return found
    raise TypeError(
        "Argument `schedule` must be a schedule from `keras_adaclip.schedules` or "
        f"`keras.optimizers.schedules`. Received: schedule={identifier!r}"
    )
