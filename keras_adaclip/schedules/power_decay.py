"""A value that falls like a power of the epoch.

    C_t = C / t^a,  t = 1, 2, ... the epoch

Source: Lin et al. 2022, "Understanding adaptive gradient clipping in DP-SGD, empirically",
equation 11.
"""

from typing import Any, Self

import keras

from keras_adaclip.accounting import check_real
from keras_adaclip.schedules.arithmetic import Arithmetic, Number
from keras_adaclip.schedules.schedule import EpochSchedule, check_value

_LARGEST_POWER = 10.0


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PowerDecay(EpochSchedule):
    """Divides the initial value by a power of the epoch, which counts from one.

    The value is the same for all steps of an epoch.

    Args:
        initial_value: positive float, the value of the first epoch.
        power: float from 0 to 10; 0.5 divides by the square root of the epoch.
        steps_per_epoch: int from 1, the steps of one epoch; None leaves it to `fit`.

    Raises:
        TypeError: where an argument is not a number of its kind.
        ValueError: where an argument is out of range.

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
        self.initial_value = check_value(initial_value, "initial_value")
        self.power = check_real(power, "power")
        if not 0.0 <= self.power <= _LARGEST_POWER:
            raise ValueError(
                f"Argument `power` must lie between 0 and {_LARGEST_POWER:g}. "
                f"Received: power={power!r}"
            )

    def scaled(self, factor: float) -> Self:
        """The schedule with every value multiplied by a positive `factor`."""
        initial_value = self.initial_value * check_value(factor, "factor")
        return self.from_config({**self.get_config(), "initial_value": initial_value})

    def get_config(self) -> dict[str, Any]:
        """Every constructor argument under its own name."""
        return {
            "initial_value": self.initial_value,
            "power": self.power,
            "steps_per_epoch": self.steps_per_epoch,
        }

    def _formula(self, time: Number, arithmetic: Arithmetic) -> Number:
        return self.initial_value * (1.0 + arithmetic.real(time)) ** -self.power
