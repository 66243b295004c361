"""Keras's own learning rate schedules, as schedules of a clipping norm or of noise."""

from typing import Any, Self

import keras

from keras_adaclip.schedules.arithmetic import Arithmetic, Number
from keras_adaclip.schedules.schedule import Schedule, check_value


@keras.saving.register_keras_serializable(package="keras_adaclip")
class KerasSchedule(Schedule):
    """Takes its values from a `keras.optimizers.schedules.LearningRateSchedule`.

    A value that is not positive, which a learning rate may be, becomes 1e-30.

    Args:
        schedule: a `LearningRateSchedule`, such as `CosineDecay`.
        factor: positive float that every value is multiplied by.

    Raises:
        TypeError: where `schedule` is something else.
        ValueError: where `factor` is out of range.

    Example:

    >>> cosine = keras.optimizers.schedules.CosineDecay(1.0, decay_steps=100)
    >>> schedule = KerasSchedule(cosine, factor=2.0)
    >>> [round(schedule.value_at(step), 4) for step in (0, 50)]
    [2.0, 1.0]
    """

    def __init__(
        self, schedule: keras.optimizers.schedules.LearningRateSchedule, factor: float = 1.0
    ) -> None:
        if not isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
            raise TypeError(
                "Argument `schedule` must be a `keras.optimizers.schedules.LearningRateSchedule`. "
                f"Received: schedule={schedule!r}"
            )
        self.schedule = schedule
        self.factor = check_value(factor, "factor")

    def scaled(self, factor: float) -> Self:
        """The schedule with every value multiplied by a positive `factor`."""
        return type(self)(self.schedule, self.factor * check_value(factor, "factor"))

    def get_config(self) -> dict[str, Any]:
        """Every constructor argument under its own name, the Keras schedule serialized."""
        return {
            "schedule": keras.saving.serialize_keras_object(self.schedule),
            "factor": self.factor,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The schedule that `get_config` describes."""
        schedule = keras.saving.deserialize_keras_object(config["schedule"])
        return cls(**{**config, "schedule": schedule})

    def _formula(self, time: Number, arithmetic: Arithmetic) -> Number:
        return arithmetic.real(self.schedule(time)) * self.factor
