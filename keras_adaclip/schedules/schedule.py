"""What every schedule offers: its value in a compiled step, and the same value on the host."""

import abc
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_adaclip.accounting import check_integer, check_real
from keras_adaclip.schedules.arithmetic import HOST, TENSORS, Arithmetic, Number

# Well inside of what float32 holds, so that a formula that decays for ever never reaches zero.
SMALLEST_VALUE, LARGEST_VALUE = 1e-30, 1e30


class Schedule(abc.ABC):
    """Base class of the schedules: a positive value for every step, the first of which is 0.

    A subclass gives the formula, once for tensors and for the host, in the functions that
    `Arithmetic` has.

    Guarantees:
        Every value is finite and positive: a formula that leaves the range from 1e-30 to 1e30, or
        gives NaN, is held at its nearer end (NaN at the lower one).
    """

    def __call__(self, step: Any, steps_per_epoch: Any = None) -> Number:
        """The value in a compiled step.

        Args:
            step: the optimizer step from 0, an integer or an integer scalar tensor.
            steps_per_epoch: steps of one epoch, likewise; for schedules that count in epochs and
                were not told.

        Returns:
            A scalar float32 tensor.

        Raises:
            ValueError: where `steps_per_epoch` is needed and missing.
        """
        return ops.cast(self._value(step, steps_per_epoch, TENSORS), "float32")

    def value_at(self, step: int, steps_per_epoch: int | None = None) -> float:
        """The value on the host, for accounting and for plots.

        Args:
            step: the optimizer step from 0.
            steps_per_epoch: steps of one epoch; for schedules that count in epochs and were not
                told.

        Returns:
            What a call returns for this step, before it is rounded to float32.

        Raises:
            ValueError: where a number is out of range, or `steps_per_epoch` is needed and missing.
        """
        with np.errstate(all="ignore"):  # what is out of range is held at the end of the range
            return float(self._value(step, steps_per_epoch, HOST))

    @property
    def needs_steps_per_epoch(self) -> bool:
        """Whether a call must say how many steps an epoch has."""
        return False

    @abc.abstractmethod
    def scaled(self, factor: float) -> Self:
        """The schedule of the same kind with every value multiplied by a positive `factor`.

        Args:
            factor: what every value is multiplied by.
        """

    @abc.abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Every constructor argument under its own name."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The schedule that `get_config` describes.

        Args:
            config: what `get_config` returned.
        """
        return cls(**config)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({arguments})"

    @abc.abstractmethod
    def _formula(self, time: Number, arithmetic: Arithmetic) -> Number:
        """The value at a time that is counted from 0 in whole steps, or in epochs."""

    def _time(self, step: Any, steps_per_epoch: Any, arithmetic: Arithmetic) -> Number:
        return arithmetic.whole(_checked_count(step, "step", minimum=0))

    def _value(self, step: Any, steps_per_epoch: Any, arithmetic: Arithmetic) -> Number:
        value = self._formula(self._time(step, steps_per_epoch, arithmetic), arithmetic)
        functions = arithmetic.functions
        value = functions.where(value > SMALLEST_VALUE, value, SMALLEST_VALUE)
        return functions.minimum(value, LARGEST_VALUE)


class EpochSchedule(Schedule):
    """Base class of the schedules that change once an epoch.

    Args:
        steps_per_epoch: steps of one epoch, from 1; None leaves it to each call, which `fit`
            makes with the number of steps that it runs.
    """

    def __init__(self, steps_per_epoch: int | None = None) -> None:
        self.steps_per_epoch = (
            None
            if steps_per_epoch is None
            else check_integer(steps_per_epoch, "steps_per_epoch", minimum=1)
        )

    @property
    def needs_steps_per_epoch(self) -> bool:
        """Whether a call must say how many steps an epoch has."""
        return self.steps_per_epoch is None

    def _time(self, step: Any, steps_per_epoch: Any, arithmetic: Arithmetic) -> Number:
        if self.steps_per_epoch is not None:
            steps_per_epoch = self.steps_per_epoch
        if steps_per_epoch is None:
            raise ValueError(
                f"`{type(self).__name__}` counts in epochs and must know how many steps an epoch "
                "has. Build it with `steps_per_epoch=...`, or pass `steps_per_epoch` with the "
                "step. Received: steps_per_epoch=None"
            )
        steps_per_epoch = _checked_count(steps_per_epoch, "steps_per_epoch", minimum=1)
        # Whole numbers, so that the epoch changes at its first step and never a step away from it.
        return super()._time(step, steps_per_epoch, arithmetic) // arithmetic.whole(steps_per_epoch)


def check_value(value: object, name: str) -> float:
    """Returns `value` as a float, or raises where no schedule may start from it."""
    number = check_real(value, name)
    if not SMALLEST_VALUE <= number <= LARGEST_VALUE:
        raise ValueError(
            f"Argument `{name}` must be positive, between {SMALLEST_VALUE:g} and "
            f"{LARGEST_VALUE:g}. Received: {name}={value!r}"
        )
    return number


def _checked_count(value: Any, name: str, minimum: int) -> Any:
    """`value`, checked where it is no tensor: what a tensor holds is not known here."""
    if isinstance(value, keras.Variable) or ops.is_tensor(value):
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    return check_integer(value, name, minimum=minimum)
