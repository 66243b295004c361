"""Learning rate schedules of Keras as schedules, and `get` for a `schedule` argument."""

from typing import Any, Self

import keras
from keras.optimizers.schedules import LearningRateSchedule

from keras_adaclip.schedules.schedule import Number, Schedule, as_float, check_value


@keras.saving.register_keras_serializable(package="keras_adaclip")
class KerasSchedule(Schedule):
    """The values of a `keras.optimizers.schedules.LearningRateSchedule`.

    A value of zero or below becomes 1e-30.

    Args:
        schedule: a `LearningRateSchedule`, such as `CosineDecay`, or its config.
        factor: positive float that every value is multiplied by.

    Raises:
        TypeError: If `schedule` is something else.
        ValueError: If `factor` is out of range.

    Example:

    >>> cosine = keras.optimizers.schedules.CosineDecay(1.0, decay_steps=100)
    >>> schedule = KerasSchedule(cosine, factor=2.0)
    >>> [round(schedule.value_at(step), 4) for step in (0, 50)]
    [2.0, 1.0]
    """

    def __init__(self, schedule: LearningRateSchedule, factor: float = 1.0) -> None:
        if isinstance(schedule, dict):
            schedule = keras.saving.deserialize_keras_object(schedule)
        if not isinstance(schedule, LearningRateSchedule):
            raise TypeError(
                "Argument `schedule` must be a `keras.optimizers.schedules.LearningRateSchedule`. "
                f"Received: schedule={schedule!r}"
            )
        self.schedule = schedule
        self.factor = check_value("factor", factor)

    def scaled(self, factor: float) -> Self:
        """Return a schedule with every value multiplied by `factor`, a positive float."""
        return type(self)(self.schedule, self.factor * check_value("factor", factor))

    def _formula(self, time: Number, array_namespace: Any) -> Number:
        """Return the scaled value of the Keras schedule."""
        return as_float(self.schedule(time), array_namespace) * self.factor


def get(identifier: Any) -> Schedule:
    """Return the schedule for a `schedule` argument.

    Args:
        identifier: a schedule, a learning rate schedule of Keras, or a config of either, made by
            `keras.saving.serialize_keras_object`.

    Returns:
        The schedule; a learning rate schedule of Keras becomes a `KerasSchedule`.

    Raises:
        TypeError: If `identifier` is none of these.

    Example:

    >>> get(keras.optimizers.schedules.ExponentialDecay(0.5, 100, 0.9)).value_at(0)
    0.5
    """
    found = identifier
    if isinstance(identifier, dict):
        found = keras.saving.deserialize_keras_object(identifier)
    if isinstance(found, LearningRateSchedule):
        return KerasSchedule(found)
    if isinstance(found, Schedule):
        return found
    raise TypeError(
        "Argument `schedule` must be a schedule from `keras_adaclip.schedules` or "
        f"`keras.optimizers.schedules`. Received: schedule={identifier!r}"
    )
