"""The arguments of `ClippingHyperModel`, checked, and made anew for each model."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import keras_tuner

from keras_adaclip.accounting import check_real
from keras_adaclip.models import privatize
from keras_adaclip.models.private_training import PrivateTraining
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


def check_goal(
    target_epsilon: float | None, delta: float | None, noise_multiplier: float | None
) -> None:
    """Says where it is not known how much noise is wanted."""
    if (target_epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            "Exactly one of the arguments `target_epsilon` and `noise_multiplier` must be "
            f"given. Received: target_epsilon={target_epsilon}, "
            f"noise_multiplier={noise_multiplier}"
        )
    if target_epsilon is not None and delta is None:
        raise ValueError(
            "Argument `delta` must be given with `target_epsilon`. Received: delta=None"
        )


def fresh_metric(metric: Any) -> Any:
    """A metric like the given one for another model; names and functions stay what they are."""
    if isinstance(metric, keras.metrics.Metric):
        return type(metric).from_config(metric.get_config())
    return metric


def private_model(model: Any) -> Any:
    """What `build_model` returned, made private where it is not.

    Raises:
        FatalTypeError: where it cannot be made private.
        FatalValueError: where it does not know its input shape.
    """
    if not isinstance(model, PrivateTraining):
        try:
            model = privatize(model)
        except TypeError as error:
            raise keras_tuner.errors.FatalTypeError(
                f"What `build_model` returned cannot be made private: {error}"
            ) from error
    if not model.built:
        raise keras_tuner.errors.FatalValueError(
            "Argument `build_model` must return a model that knows its input shape: begin it "
            f"with `keras.Input`, or call its `build`. Received: the model {model.name!r}"
        )
    return model
