"""Noise that changes from epoch to epoch.

A schedule is read once an epoch, at the epoch's first step, and rounded to float32, as training
does. The run is the composition of the differing events.
"""

from collections.abc import Iterator
from typing import Any, Protocol, Self, TypeGuard

import numpy as np

from keras_adaclip.accounting import _validation


class NoiseSchedule(Protocol):
    """What accounting asks of a schedule; those of `keras_adaclip.schedules` have it."""

    def value_at(self, step: int, steps_per_epoch: int | None = None) -> float:
        """The value at a step that is counted from 0."""

    def scaled(self, factor: float) -> Self:
        """The schedule with every value multiplied by `factor`."""


def is_noise_schedule(value: Any) -> TypeGuard[NoiseSchedule]:
    """Whether `value` is a schedule rather than a number."""
    return callable(getattr(value, "value_at", None)) and callable(getattr(value, "scaled", None))


def check_noise_schedule(value: object) -> NoiseSchedule:
    """Returns `value`, or raises where it is no schedule."""
    if not is_noise_schedule(value):
        raise TypeError(
            "Argument `noise_schedule` must be a schedule from `keras_adaclip.schedules`; wrap one "
            "of Keras's with `keras_adaclip.schedules.get`. "
            f"Received: noise_schedule={value!r}"
        )
    return value


def noise_by_epoch(
    schedule: NoiseSchedule, num_steps: int, steps_per_epoch: int
) -> Iterator[tuple[float, int]]:
    """The noise multiplier of each epoch, as float32 holds it, and the steps that it lasts.

    Args:
        schedule: the schedule.
        num_steps: steps of the run; those of the last epoch may be fewer than the others'.
        steps_per_epoch: steps of one epoch.

    Yields:
        Pairs of noise multiplier and number of steps, one an epoch.
    """
    for first_step in range(0, num_steps, steps_per_epoch):
        value = _validation.check_noise_multiplier(schedule.value_at(first_step, steps_per_epoch))
        yield float(np.float32(value)), min(steps_per_epoch, num_steps - first_step)
