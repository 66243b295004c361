"""The base classes of schedules: one value in a compiled step, and the same value on the host.

A formula is written once, in functions that NumPy and `keras.ops` share (`array_namespace`). On the
host it gives float64, in a compiled step float32 tensors.
"""

import abc
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_adaclip._checks import check_between, check_integer, optional
from keras_adaclip._configurable import Configurable

Number = Any  # a number of the host or a tensor

# Well inside of the range of float32, so that a value that decays forever never reaches zero.
SMALLEST_VALUE, LARGEST_VALUE = 1e-30, 1e30


class Schedule(Configurable, abc.ABC):
    """Base class of schedules: a positive value for every step, counted from 0.

    A subclass implements `_formula`, and `scaled` unless its values are proportional to an argument
    `initial_value`. Its constructor arguments are attributes of the same names.

    Guarantees:
        Every value is finite and positive. A value outside of the range from 1e-30 to 1e30 is
        replaced by the nearer end of the range, and NaN by the lower end.
    """

    def __call__(self, step: Any, steps_per_epoch: Any = None) -> Number:
        """Return the value at a step, inside a compiled step.

        Args:
            step: the optimizer step from 0, an integer or an integer scalar tensor.
            steps_per_epoch: number of steps in an epoch, an integer or a tensor; needed by
                schedules that count in epochs and were built without it.

        Returns:
            A scalar float32 tensor.

        Raises:
            ValueError: If `steps_per_epoch` is needed and missing.
        """
        return ops.cast(self._value(step, steps_per_epoch, ops), "float32")

    def value_at(self, step: int, steps_per_epoch: int | None = None) -> float:
        """Return the value at a step on the host, for accounting and figures.

        Args:
            step: the optimizer step from 0.
            steps_per_epoch: number of steps in an epoch; needed by schedules that count in epochs
                and were built without it.

        Returns:
            The value that a compiled step gets, before it is rounded to float32.

        Raises:
            ValueError: If a number is out of range, or `steps_per_epoch` is needed and missing.
        """
        with np.errstate(all="ignore"):  # values out of range are clipped
            return float(self._value(step, steps_per_epoch, np))

    @property
    def needs_steps_per_epoch(self) -> bool:
        """Whether a call must pass the number of steps in an epoch."""
        return False

    def scaled(self, factor: float) -> Self:
        """Return a schedule of the same class with every value multiplied by `factor`.

        Args:
            factor: positive float.
        """
        config = self.get_config()
        config["initial_value"] *= check_value("factor", factor)
        return self.from_config(config)

    @abc.abstractmethod
    def _formula(self, time: Number, array_namespace: Any) -> Number:
        """Return the value at a time, an integer counted in steps or epochs from 0."""

    def _time(self, step: Any, steps_per_epoch: Any, array_namespace: Any) -> Number:
        """Return the argument of the formula: a step, or an epoch."""
        return _as_integer("step", step, 0, array_namespace)

    def _value(self, step: Any, steps_per_epoch: Any, array_namespace: Any) -> Number:
        """Return the value of the formula, clipped to the range of values."""
        time = self._time(step, steps_per_epoch, array_namespace)
        value = self._formula(time, array_namespace)
        value = array_namespace.where(value > SMALLEST_VALUE, value, SMALLEST_VALUE)
        return array_namespace.minimum(value, LARGEST_VALUE)


class EpochSchedule(Schedule):
    """Base class of schedules whose value changes once an epoch.

    Args:
        steps_per_epoch: number of steps in an epoch, at least 1; with None, each call must pass it,
            as `fit` does.
    """

    def __init__(self, steps_per_epoch: int | None = None) -> None:
        self.steps_per_epoch = optional(_check_count, "steps_per_epoch", steps_per_epoch)

    @property
    def needs_steps_per_epoch(self) -> bool:
        """Whether a call must pass the number of steps in an epoch."""
        return self.steps_per_epoch is None

    def _time(self, step: Any, steps_per_epoch: Any, array_namespace: Any) -> Number:
        """Return the argument of the formula: a step, or an epoch."""
        length = steps_per_epoch if self.steps_per_epoch is None else self.steps_per_epoch
        if length is None:
            raise ValueError(
                f"`{type(self).__name__}` counts in epochs and needs the number of steps in an "
                "epoch. Build it with `steps_per_epoch=...`, or pass `steps_per_epoch` to `fit` or "
                "with the step. Received: steps_per_epoch=None"
            )
        # Integer division: the epoch changes exactly at its first step.
        length = _as_integer("steps_per_epoch", length, 1, array_namespace)
        return _as_integer("step", step, 0, array_namespace) // length


def check_value(name: str, value: object) -> float:
    """Return `value` as a float that a schedule may take."""
    return check_between(name, value, SMALLEST_VALUE, LARGEST_VALUE)


def as_float(value: Any, array_namespace: Any) -> Number:
    """Return a number or a sequence as float64 on the host, as float32 in a compiled step."""
    if array_namespace is ops:
        return ops.cast(value, "float32")
    return np.float64(ops.convert_to_numpy(value) if ops.is_tensor(value) else value)


def _check_count(name: str, value: Any) -> int:
    """Return a positive integer."""
    return check_integer(name, value, minimum=1)


def _as_integer(name: str, value: Any, minimum: int, array_namespace: Any) -> Number:
    """Return a count as an `int` on the host, as int32 in a compiled step; checked if known."""
    if not (isinstance(value, keras.Variable) or ops.is_tensor(value)):
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        value = check_integer(name, value, minimum=minimum)
    return ops.cast(value, "int32") if array_namespace is ops else int(value)
