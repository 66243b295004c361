"""Schedules: a positive value for each step, the same in a compiled step and on the host.

A formula is written once, in functions that NumPy and `keras.ops` share (`array_namespace`). On the
host it gives float64, in a compiled step float32 tensors.

    linear       C / min(2, 1 + t / T)    Yu et al. 2018
    exponential  C rate^(-t / T)          Du et al. 2021
    power        C / e^a, e = 1, 2, ...   Lin et al. 2022, equation 11; e is the epoch

`PiecewiseConstant.save` writes JSON: `{"format": "keras_adaclip.PiecewiseConstant", "version": 1,
"values": [1.0, 0.5], "steps_per_epoch": null}`, with one positive number for each epoch and an
integer or null.
"""

import abc
import functools
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import keras
import numpy as np
from keras import ops
from keras.optimizers.schedules import LearningRateSchedule

from keras_adaclip._checks import check_between, check_integer, optional
from keras_adaclip._configurable import Configurable

Number = Any  # a number of the host or a tensor

# Well inside of the range of float32, so that a value that decays forever never reaches zero.
_SMALLEST_VALUE, _LARGEST_VALUE = 1e-30, 1e30
_check_count = functools.partial(check_integer, minimum=1)
_FORMAT, _VERSION = "keras_adaclip.PiecewiseConstant", 1


class Schedule(Configurable, abc.ABC):
    """Base class of schedules: a positive value for every step, counted from 0.

    A subclass implements `_formula`, and `scaled` unless its values are proportional to one of its
    arguments. Its constructor arguments are attributes of the same names.

    Guarantees:
        Every value is finite and positive. A value outside of the range from 1e-30 to 1e30 is
        replaced by the nearer end of the range, and NaN by the lower end.
    """

    # The argument that the values are proportional to.
    _factor_argument = "initial_value"

    def __call__(self, step: Any, steps_per_epoch: Any = None) -> Number:
        """Return the value at a step, inside a compiled step.

        Args:
            step: The optimizer step from 0, an integer or an integer scalar tensor.
            steps_per_epoch: Number of steps in an epoch, an integer or a tensor; needed by
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
            step: The optimizer step from 0.
            steps_per_epoch: Number of steps in an epoch; needed by schedules that count in epochs
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
        return getattr(self, "steps_per_epoch", 1) is None

    def scaled(self, factor: float) -> Self:
        """Return a schedule of the same class with every value multiplied by `factor`.

        Args:
            factor: Positive float.
        """
        config = self.get_config()
        config[self._factor_argument] *= _check_value("factor", factor)
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
        value = array_namespace.where(value > _SMALLEST_VALUE, value, _SMALLEST_VALUE)
        return array_namespace.minimum(value, _LARGEST_VALUE)


class EpochSchedule(Schedule):
    """Base class of schedules whose value changes once an epoch.

    Args:
        steps_per_epoch: Number of steps in an epoch, at least 1; with None, each call must pass it,
            as `fit` does.
    """

    def __init__(self, steps_per_epoch: int | None = None) -> None:
        self.steps_per_epoch = optional(_check_count, "steps_per_epoch", steps_per_epoch)

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


@keras.saving.register_keras_serializable(package="keras_adaclip")
class LinearDecay(Schedule):
    """The initial value over a divisor that grows linearly from one to two.

    At step `t` the value is `initial_value / min(2, 1 + t / total_steps)`.

    Args:
        initial_value: Positive float, the value of step 0.
        total_steps: Int, at least 1, the step at which the value has fallen to its half.

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
        self.initial_value = _check_value("initial_value", initial_value)
        self.total_steps = _check_count("total_steps", total_steps)

    def _formula(self, time: Number, array_namespace: Any) -> Number:
        """Return the value at a step."""
        share = _as_float(time, array_namespace) / float(self.total_steps)
        return self.initial_value / array_namespace.minimum(2.0, 1.0 + share)


@keras.saving.register_keras_serializable(package="keras_adaclip")
class ExponentialDecay(Schedule):
    """Exponential decay: the value is divided by `decay_rate` over `total_steps` steps.

    At step `t` the value is `initial_value * decay_rate ** (-t / total_steps)`. With a rate above
    one the value falls, as the clipping norm of Du et al.; with a rate below one it grows. The
    decay continues after `total_steps`.

    Args:
        initial_value: Positive float, the value of step 0.
        decay_rate: Positive float, the ratio of the values at step 0 and at step `total_steps`.
        total_steps: Int, at least 1.

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
        self.initial_value = _check_value("initial_value", initial_value)
        self.decay_rate = _check_value("decay_rate", decay_rate)
        self.total_steps = _check_count("total_steps", total_steps)

    def _formula(self, time: Number, array_namespace: Any) -> Number:
        """Return the value at a step."""
        share = _as_float(time, array_namespace) / float(self.total_steps)
        return self.initial_value * array_namespace.exp(-math.log(self.decay_rate) * share)


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PowerDecay(EpochSchedule):
    """The initial value over a power of the epoch, counted from one.

    All steps of an epoch have the same value.

    Args:
        initial_value: Positive float, the value of the first epoch.
        power: Float from 0 to 10; 0.5 divides by the square root of the epoch.
        steps_per_epoch: Int, at least 1, number of steps in an epoch; with None, `fit` sets it.

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
        self.initial_value = _check_value("initial_value", initial_value)
        self.power = check_between("power", power, 0.0, 10.0)

    def _formula(self, time: Number, array_namespace: Any) -> Number:
        """Return the value of an epoch."""
        return self.initial_value * (1.0 + _as_float(time, array_namespace)) ** -self.power


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PiecewiseConstant(EpochSchedule):
    """One given value for each epoch; the last value stays.

    `save` and `load` transfer a schedule that was found on public data, or by a search whose
    privacy cost is accounted for, to other runs.

    Args:
        values: Sequence of positive floats, the value of each epoch.
        steps_per_epoch: Int, at least 1, number of steps in an epoch; with None, `fit` sets it.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If there is no value, or a number is out of range.

    Example:

    >>> schedule = PiecewiseConstant([1.0, 0.5, 0.25], steps_per_epoch=10)
    >>> [schedule.value_at(step) for step in (0, 9, 10, 1000)]
    [1.0, 1.0, 0.5, 0.25]
    """

    def __init__(self, values: Iterable[float], steps_per_epoch: int | None = None) -> None:
        super().__init__(steps_per_epoch)
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError(
                f"Argument `values` must be a sequence of numbers. Received: values={values!r}"
            )
        self.values = [_check_value("values", value) for value in values]
        if not self.values:
            raise ValueError("Argument `values` must hold at least one value. Received: values=[]")

    def save(self, path: str | Path) -> None:
        """Write the schedule to a JSON file.

        Args:
            path: The file, replaced if it exists.
        """
        document = {"format": _FORMAT, "version": _VERSION, **self.get_config()}
        Path(path).write_text(json.dumps(document) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the schedule in a file that `save` has written.

        Args:
            path: The file.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If it holds something else, or comes from a later version.
        """
        try:
            document = dict(json.loads(Path(path).read_text(encoding="utf-8")))
            found = document.pop("format", None), document.pop("version", None)
            if found != (_FORMAT, _VERSION):
                raise ValueError(f"its format and version are {found}")
            return cls(**document)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{path} does not hold a valid schedule in format {_FORMAT!r}, version {_VERSION}: "
                f"{error}"
            ) from error

    def scaled(self, factor: float) -> Self:
        """Return a schedule with every value multiplied by `factor`, a positive float."""
        factor = _check_value("factor", factor)
        return type(self)([value * factor for value in self.values], self.steps_per_epoch)

    def _formula(self, time: Number, array_namespace: Any) -> Number:
        """Return the value of an epoch."""
        epoch = array_namespace.minimum(time, len(self.values) - 1)
        return array_namespace.take(_as_float(np.asarray(self.values), array_namespace), epoch)


@keras.saving.register_keras_serializable(package="keras_adaclip")
class KerasSchedule(Schedule):
    """The values of a `keras.optimizers.schedules.LearningRateSchedule`.

    A value of zero or below becomes 1e-30.

    Args:
        schedule: A `LearningRateSchedule`, such as `CosineDecay`, or its config.
        factor: Positive float that every value is multiplied by.

    Raises:
        TypeError: If `schedule` is something else.
        ValueError: If `factor` is out of range.

    Example:

    >>> cosine = keras.optimizers.schedules.CosineDecay(1.0, decay_steps=100)
    >>> schedule = KerasSchedule(cosine, factor=2.0)
    >>> [round(schedule.value_at(step), 4) for step in (0, 50)]
    [2.0, 1.0]
    """

    _factor_argument = "factor"

    def __init__(self, schedule: LearningRateSchedule, factor: float = 1.0) -> None:
        if isinstance(schedule, dict):
            schedule = keras.saving.deserialize_keras_object(schedule)
        if not isinstance(schedule, LearningRateSchedule):
            raise TypeError(
                "Argument `schedule` must be a `keras.optimizers.schedules.LearningRateSchedule`. "
                f"Received: schedule={schedule!r}"
            )
        self.schedule = schedule
        self.factor = _check_value("factor", factor)

    def _formula(self, time: Number, array_namespace: Any) -> Number:
        """Return the scaled value of the Keras schedule."""
        return _as_float(self.schedule(time), array_namespace) * self.factor


def get(identifier: Any) -> Schedule:
    """Return the schedule for a `schedule` argument.

    Args:
        identifier: A schedule, a learning rate schedule of Keras, or a config of either, made by
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


def _check_value(name: str, value: object) -> float:
    """Return `value` as a float that a schedule may take."""
    return check_between(name, value, _SMALLEST_VALUE, _LARGEST_VALUE)


def _as_float(value: Any, array_namespace: Any) -> Number:
    """Return a number or a sequence as float64 on the host, as float32 in a compiled step."""
    if array_namespace is ops:
        return ops.cast(value, "float32")
    return np.float64(ops.convert_to_numpy(value) if ops.is_tensor(value) else value)


def _as_integer(name: str, value: Any, minimum: int, array_namespace: Any) -> Number:
    """Return a count as an `int` on the host, as int32 in a compiled step; checked if known."""
    if not (isinstance(value, keras.Variable) or ops.is_tensor(value)):
        if isinstance(value, np.ndarray) and value.ndim == 0:
            value = value[()]
        value = check_integer(name, value, minimum=minimum)
    return ops.cast(value, "int32") if array_namespace is ops else int(value)
