"""Checks of the arguments of `ClippingHyperModel`."""

from collections.abc import Callable, Iterable
from typing import Any

from keras_adaclip.accounting import check_real
from keras_adaclip.tuners.choices.planned_noise import NOISE_SCHEDULES


def checked_choices(values: Any, name: str, check: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The values of a sequence, each checked, and none there twice."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"Argument `{name}` must be a sequence. Received: {name}={values!r}")
    checked = tuple(check(value) for value in values)
    if not checked or len(set(checked)) < len(checked):
        raise ValueError(
            f"Argument `{name}` must hold one value or more, each once. Received: {name}={checked}"
        )
    return checked


def checked_learning_rate(value: Any) -> float:
    """A positive number."""
    number = check_real(value, "learning_rates")
    if number <= 0.0:
        raise ValueError(
            f"Argument `learning_rates` must hold positive numbers. Received: {number}"
        )
    return number


def checked_noise_schedule(value: Any) -> str:
    """The name of a shape of the noise."""
    if value not in NOISE_SCHEDULES:
        raise ValueError(
            f"Argument `noise_schedules` must hold some of {', '.join(map(repr, NOISE_SCHEDULES))}."
            f" Received: {value!r}"
        )
    return str(value)
