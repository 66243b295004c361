"""Exponential decay or growth, by the same factor every `T` steps.

    C_t = C ρ^(-t / T)

Source: Du et al. 2021, "Dynamic differential-privacy preserving SGD".
"""

import math
from typing import Any

import keras

from keras_adaclip._checks import check_integer
from keras_adaclip.schedules.schedule import Number, Schedule, as_float, check_value


@keras.saving.register_keras_serializable(package="keras_adaclip")
class ExponentialDecay(Schedule):
    """Exponential decay: the value is divided by `decay_rate` over `total_steps` steps.

    At step `t` the value is `initial_value * decay_rate ** (-t / total_steps)`. With a rate above
    one the value falls, as the clipping norm of Du et al.; with a rate below one it grows. The
    decay continues after `total_steps`.

    Args:
        initial_value: positive float, the value of step 0.
        decay_rate: positive float, the ratio of the values at step 0 and at step `total_steps`.
        total_steps: int, at least 1.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.

    Example:

    >>> schedule = ExponentialDecay(1.0, decay_rate=4.0, total_steps=100)
    >>> [round(schedule.value_at(step), 6) for step in (0, 50, 100, 200)]
    [1.0, 0.5, 0.25, 0.0625]

    Reference:
        Du et al. 2021, "Dynamic differential-privacy preserving SGD".
    """

    def __init__(self, initial_value: float, decay_rate: float, total_steps: int) -> None:
        self.initial_value = check_value("initial_value", initial_value)
        self.decay_rate = check_value("decay_rate", decay_rate)
        self.total_steps = check_integer("total_steps", total_steps, minimum=1)

    def _formula(self, time: Number, array_namespace: Any) -> Number:
        """Return the value at a step."""
        share = as_float(time, array_namespace) / float(self.total_steps)
        return self.initial_value * array_namespace.exp(-math.log(self.decay_rate) * share)
