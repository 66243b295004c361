"""Decay to half of the initial value.

    C_t = C / min(2, 1 + t / T)

Source: Yu et al. 2018, "Improve the gradient perturbation approach for differentially private
optimization".
"""

from typing import Any

import keras

from keras_adaclip._checks import check_integer
from keras_adaclip.schedules.schedule import Number, Schedule, as_float, check_value


@keras.saving.register_keras_serializable(package="keras_adaclip")
class LinearDecay(Schedule):
    """The initial value over a divisor that grows linearly from one to two.

    At step `t` the value is `initial_value / min(2, 1 + t / total_steps)`.

    Args:
        initial_value: positive float, the value of step 0.
        total_steps: int, at least 1, the step at which the value has fallen to its half.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.

    Example:

    >>> schedule = LinearDecay(1.0, total_steps=100)
    >>> [schedule.value_at(step) for step in (0, 25, 100, 1000)]
    [1.0, 0.8, 0.5, 0.5]

    Reference:
        Yu et al. 2018, "Improve the gradient perturbation approach for differentially private
        optimization".
    """

    def __init__(self, initial_value: float, total_steps: int) -> None:
        self.initial_value = check_value("initial_value", initial_value)
        self.total_steps = check_integer("total_steps", total_steps, minimum=1)

    def _formula(self, time: Number, array_namespace: Any) -> Number:
        """Return the value at a step."""
        share = as_float(time, array_namespace) / float(self.total_steps)
        return self.initial_value / array_namespace.minimum(2.0, 1.0 + share)
