"""A value that falls to its half, the faster the earlier, and stays there.

    C_t = C / min(2, 1 + t / T)

Source: Yu et al. 2018, "Improve the gradient perturbation approach for differentially private
optimization".
"""

from typing import Any, Self

import keras

from keras_adaclip.accounting import check_integer
from keras_adaclip.schedules.arithmetic import Arithmetic, Number
from keras_adaclip.schedules.schedule import Schedule, check_value


@keras.saving.register_keras_serializable(package="keras_adaclip")
class LinearDecay(Schedule):
    """Divides the initial value by what grows linearly from one to two.

    At step `t` the value is `initial_value / min(2, 1 + t / total_steps)`.

    Args:
        initial_value: positive float, the value of step 0.
        total_steps: int from 1, the step from which on the value is half the initial one.

    Raises:
        TypeError: where an argument is not a number of its kind.
        ValueError: where an argument is out of range.

    Example:

    >>> schedule = LinearDecay(1.0, total_steps=100)
    >>> [schedule.value_at(step) for step in (0, 25, 100, 1000)]
    [1.0, 0.8, 0.5, 0.5]

    Reference:
        Yu et al. 2018, "Improve the gradient perturbation approach for differentially private
        optimization".
    """

    def __init__(self, initial_value: float, total_steps: int) -> None:
        self.initial_value = check_value(initial_value, "initial_value")
        self.total_steps = check_integer(total_steps, "total_steps", minimum=1)

    def scaled(self, factor: float) -> Self:
        """The schedule with every value multiplied by a positive `factor`."""
        initial_value = self.initial_value * check_value(factor, "factor")
        return self.from_config({**self.get_config(), "initial_value": initial_value})

    def get_config(self) -> dict[str, Any]:
        """Every constructor argument under its own name."""
        return {"initial_value": self.initial_value, "total_steps": self.total_steps}

    def _formula(self, time: Number, arithmetic: Arithmetic) -> Number:
        share = arithmetic.real(time) / float(self.total_steps)
        return self.initial_value / arithmetic.functions.minimum(2.0, 1.0 + share)
