"""What `Tuner.search` was given for `fit`, refused where a trial would not be what was planned.

keras-tuner makes a failed trial of most errors and goes on; a `FatalError` ends the search.
"""

import inspect
from collections.abc import Mapping
from typing import Any

import keras_tuner

from keras_adaclip.models.arrays import is_array_data, number_of_rows, split_off_validation

_PLANNED = {"steps_per_epoch": None, "sampling": "poisson"}


def planned_arguments(
    model: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    num_examples: int,
    epochs: int,
) -> dict[str, Any]:
    """The arguments of `fit` by name, as they were planned for.

    Args:
        model: the model of the trial.
        args: what `search` was given by position.
        kwargs: what it was given by name, and what the tuner added.
        num_examples: rows of training data that the noise was calibrated for.
        epochs: epochs that it was calibrated for; the default of `fit`'s.

    Returns:
        `epochs`, `initial_epoch` and `callbacks` (a list) among them; data for validation split
        off.

    Raises:
        FatalTypeError: where the data are no arrays, or `fit` has no such argument.
        FatalValueError: where an argument contradicts the plan.
    """
    try:
        arguments = dict(inspect.signature(model.fit).bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise keras_tuner.errors.FatalTypeError(f"`search` passes to `fit`: {error}") from error
    batch_size = arguments.pop("batch_size", None)
    if batch_size is not None:
        raise keras_tuner.errors.FatalValueError(
            "Argument `batch_size` is chosen by each trial: give the sizes to choose from to "
            f"`ClippingHyperModel(batch_sizes=...)`. Received: batch_size={batch_size!r}"
        )
    for name, planned in _PLANNED.items():
        value = arguments.pop(name, planned)
        if value != planned:
            raise keras_tuner.errors.FatalValueError(
                f"Argument `{name}` must be {planned!r}, for which the noise was calibrated. "
                f"Received: {name}={value!r}"
            )
    _check_epochs(arguments, epochs)
    _check_data(arguments, num_examples)
    arguments["callbacks"] = list(arguments.get("callbacks") or [])
    return arguments


def _check_epochs(arguments: dict[str, Any], planned: int) -> None:
    epochs = arguments.setdefault("epochs", planned)
    initial_epoch = arguments.setdefault("initial_epoch", 0)
    if not 0 <= initial_epoch < epochs <= planned:
        raise keras_tuner.errors.FatalValueError(
            f"Argument `epochs` must not exceed the {planned} epochs that the noise was calibrated "
            "for, and must be above `initial_epoch`. Give the longest run to "
            "`ClippingHyperModel(epochs=...)`; for `Hyperband` it is `max_epochs`. "
            f"Received: epochs={epochs}, initial_epoch={initial_epoch}"
        )


def _check_data(arguments: dict[str, Any], num_examples: int) -> None:
    x, y, sample_weight = (arguments.get(name) for name in ("x", "y", "sample_weight"))
    if not is_array_data(x):
        raise keras_tuner.errors.FatalTypeError(
            "Argument `x` must hold arrays, which each trial samples with its own batch size. "
            f"Received: x of type {type(x).__name__}"
        )
    fraction = arguments.pop("validation_split", 0.0)
    if fraction and arguments.get("validation_data") is None:
        (x, y, sample_weight), validation_data = split_off_validation(x, y, sample_weight, fraction)
        arguments.update(x=x, y=y, sample_weight=sample_weight, validation_data=validation_data)
    received = number_of_rows(x, y, sample_weight)
    if received != num_examples:
        raise keras_tuner.errors.FatalValueError(
            f"Argument `x` must have {num_examples} rows of training data, the `num_examples` that "
            f"the noise was calibrated for. Received: {received} rows"
            + (f", after validation_split={fraction}" if fraction else "")
        )
