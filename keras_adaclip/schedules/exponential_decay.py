"""A value that falls, or grows, by the same factor every `T` steps.

    C_t = C ρ^(-t / T)

Source: Du et al. 2021, "Dynamic differential-privacy preserving SGD".
"""

import math
from typing import Any, Self

import keras

from keras_adaclip.accounting import check_integer
from keras_adaclip.schedules.arithmetic import Arithmetic, Number
from keras_adaclip.schedules.schedule import Schedule, check_value


@keras.saving.register_keras_serializable(package="keras_adaclip")
class ExponentialDecay(Schedule):
    """Divides the value by `decay_rate` every `total_steps` steps, a little at each.

    At step `t` the value is `initial_value * decay_rate ** (-t / total_steps)`. A rate above one
    makes it fall, as Du et al. have the clipping norm; a rate below one makes it grow. It goes on
    after `total_steps`.

    Args:
        initial_value: positive float, the value of step 0.
        decay_rate: positive float, what the value is divided by after `total_steps` steps.
        total_steps: int from 1, the steps in which that happens.

    Raises:
        TypeError: where an argument is not a number of its kind.
        ValueError: where an argument is out of range.

    Example:

    >>> schedule = ExponentialDecay(1.0, decay_rate=4.0, total_steps=100)
    >>> [round(schedule.value_at(step), 6) for step in (0, 50, 100, 200)]
    [1.0, 0.5, 0.25, 0.0625]

    Reference:
        Du et al. 2021, "Dynamic differential-privacy preserving SGD".
    """

    def __init__(self, initial_value: float, decay_rate: float, total_steps: int) -> None:
        self.initial_value = check_value(initial_value, "initial_value")
        self.decay_rate = check_value(decay_rate, "decay_rate")
        self.total_steps = check_integer(total_steps, "total_steps", minimum=1)

    def scaled(self, factor: float) -> Self:
        """The schedule with every value multiplied by a positive `factor`."""
        initial_value = self.initial_value * check_value(factor, "factor")
        return self.from_config({**self.get_config(), "initial_value": initial_value})

    def get_config(self) -> dict[str, Any]:
        """Every constructor argument under its own name."""
        return {
            "initial_value": self.initial_value,
            "decay_rate": self.decay_rate,
            "total_steps": self.total_steps,
        }

    def _formula(self, time: Number, arithmetic: Arithmetic) -> Number:
        share = arithmetic.real(time) / float(self.total_steps)
        return self.initial_value * arithmetic.functions.exp(-math.log(self.decay_rate) * share)
