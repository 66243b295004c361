"""Checks of the arguments of `DPOptimizer`."""

import math
import numbers
from typing import Any

import keras
import numpy as np
from keras.optimizers.schedules import LearningRateSchedule

from keras_adaclip import schedules
from keras_adaclip.clipping import ClippingStrategy

_LARGEST_NOISE_MULTIPLIER = 1e15
GRADIENT_METHODS = ("auto", "layerwise")
_FORBIDDEN = {
    "clipnorm": "would clip the noised mean a second time, variable by variable",
    "clipvalue": "would clip the noised mean a second time, coordinate by coordinate",
    "global_clipnorm": "would clip the noised mean a second time",
    "gradient_accumulation_steps": "would apply several noised means as one; use "
    "`microbatch_size` for memory, or larger batches (cohorts)",
    "loss_scale_factor": "would scale the noised mean down; norms, sums and noise are float32",
}


def checked_inner_optimizer(optimizer: Any) -> keras.optimizers.Optimizer:
    """The inner optimizer as an instance.

    Args:
        optimizer: a Keras optimizer, its name or its config.

    Raises:
        ValueError: where it has an option that breaks clipping or noise.
    """
    # Keras writes into a config that it is given.
    inner = keras.optimizers.get({**optimizer} if isinstance(optimizer, dict) else optimizer)
    if isinstance(inner, keras.optimizers.LossScaleOptimizer) or hasattr(inner, "noise_multiplier"):
        raise ValueError(
            "Argument `optimizer` must be a plain Keras optimizer, neither a loss-scaling nor a "
            f"private one. Received: optimizer={inner}"
        )
    for option, consequence in _FORBIDDEN.items():
        value = getattr(inner, option, None)
        if value is not None:
            raise ValueError(
                f"The inner optimizer must not have `{option}`: it {consequence}. Remove it; "
                f"`DPOptimizer` bounds gradients by itself. Received: {option}={value}"
            )
    return inner


def checked_noise_multiplier(value: Any) -> Any:
    """Returns a noise multiplier as a float >= 0, a schedule of them as it is.

    Args:
        value: a number, a schedule or the config of one.

    Raises:
        TypeError: where it is neither a number nor a schedule.
        ValueError: where it is negative, not finite or too large.
    """
    if isinstance(value, (dict, schedules.Schedule, LearningRateSchedule)):
        return schedules.get(value)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(
            "Argument `noise_multiplier` must be a number or a schedule from "
            f"`keras_adaclip.schedules`. Received: noise_multiplier={value!r}"
        )
    number = float(value)
    if not (math.isfinite(number) and 0.0 <= number <= _LARGEST_NOISE_MULTIPLIER):
        raise ValueError(
            "Argument `noise_multiplier` must be finite and at least 0 (and at most "
            f"{_LARGEST_NOISE_MULTIPLIER:g}: steps are float32). "
            f"Received: noise_multiplier={value!r}"
        )
    return number


def checked_microbatch_size(value: Any) -> int | str | None:
    """Returns the microbatch size as a positive int, `"auto"`, or None.

    Args:
        value: what the user gave.
    """
    if value is None or value == "auto":
        return value if value is None else str(value)
    return _positive_integer("microbatch_size", value, 'an integer, "auto" or None')


def checked_memory_limit(value: Any, microbatch_size: int | str | None) -> int | None:
    """Returns the memory limit as a positive int, or None."""
    if value is None:
        return None
    if microbatch_size != "auto":
        raise ValueError(
            'Argument `memory_limit` belongs to microbatch_size="auto". '
            f"Received: memory_limit={value!r}, microbatch_size={microbatch_size!r}"
        )
    return _positive_integer("memory_limit", value, "an integer (bytes) or None")


def _positive_integer(name: str, value: Any, expected: str) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"Argument `{name}` must be {expected}. Received: {name}={value!r}")
    if value < 1:
        raise ValueError(f"Argument `{name}` must be positive. Received: {name}={value}")
    return int(value)


def checked_gradient_method(value: Any) -> str:
    """Returns the name of a way to take per-example gradients."""
    if value not in GRADIENT_METHODS:
        raise ValueError(
            f"Argument `gradient_method` must be one of {', '.join(map(repr, GRADIENT_METHODS))}. "
            f"Received: gradient_method={value!r}"
        )
    return str(value)


def checked_seed(value: Any) -> int | None:
    """Returns the seed as a non-negative int, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"Argument `seed` must be an integer or None. Received: seed={value!r}")
    if value < 0:
        raise ValueError(f"Argument `seed` must not be negative. Received: seed={value}")
    return int(value)


def check_split(
    clipping: ClippingStrategy, total: float, split: tuple[float, float], num_groups: int
) -> None:
    """Raises where a strategy's `noise_split` leaves something that is released without noise.

    Args:
        clipping: the strategy.
        total: the total noise multiplier.
        split: what it makes of it: the sum's noise multiplier, the statistics' noise.
        num_groups: number of groups.

    Raises:
        ValueError: where the sum has less noise than the total, or statistics have none.
    """
    of_sum, of_statistics = split
    num_statistics = clipping.num_statistics(num_groups)
    is_paid = num_statistics == 0 or (of_statistics > 0.0 and of_sum > total)
    if total > 0.0 and not (of_sum >= total and is_paid and math.isfinite(of_sum)):
        raise ValueError(
            f"`{type(clipping).__name__}.noise_split` does not pay for what the strategy releases: "
            f"with {num_statistics} statistics a unit, the sum must have more noise than the total "
            "and the statistics must have some. Override `noise_split` as `QuantileClipping` does. "
            f"Received: noise_multiplier={total}, noise_split -> {split}"
        )
