"""Decay with a power of the epoch.

    C_t = C / t^a,  t = 1, 2, ... the epoch

Source: Lin et al. 2022, "Understanding adaptive gradient clipping in DP-SGD, empirically",
equation 11.
"""

from typing import Any

import keras

from keras_adaclip._checks import check_between
from keras_adaclip.schedules.schedule import EpochSchedule, Number, as_float, check_value


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PowerDecay(EpochSchedule):
    """The initial value over a power of the epoch, counted from one.

    All steps of an epoch have the same value.

    Args:
        initial_value: positive float, the value of the first epoch.
        power: float from 0 to 10; 0.5 divides by the square root of the epoch.
        steps_per_epoch: int, at least 1, number of steps in an epoch; with None, `fit` sets it.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.

    Example:

    >>> schedule = PowerDecay(1.0, power=0.5, steps_per_epoch=10)
    >>> [schedule.value_at(step) for step in (0, 9, 30, 39)]
    [1.0, 1.0, 0.5, 0.5]

    Reference:
        Lin et al. 2022, "Understanding adaptive gradient clipping in DP-SGD, empirically".
    """

    def __init__(
        self, initial_value: float, power: float = 0.5, steps_per_epoch: int | None = None
    ) -> None:
        super().__init__(steps_per_epoch)
        self.initial_value = check_value("initial_value", initial_value)
        self.power = check_between("power", power, 0.0, 10.0)

    def _formula(self, time: Number, array_namespace: Any) -> Number:
        """Return the value of an epoch."""
        return self.initial_value * (1.0 + as_float(time, array_namespace)) ** -self.power
