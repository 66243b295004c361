"""Looks for losses that compare the examples of a batch with each other.

A private step evaluates the loss on each example alone. Where the loss of a batch is a mean (in
any weighting) or a sum of the losses of its examples, that is the same training; where it is not,
as with contrastive losses, the model would learn something else than its author meant.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Batch, call_model, compute_loss, finite_rows, repeated

Tensor = Any
_NUM_ROWS = 3
_TOLERANCE = 1e-3


def probe_loss(model: keras.Model, rows: Batch) -> list[tuple[str, str, str]]:
    """Whether the loss of a few rows can be had from the losses of the single rows.

    Keras's own losses are not examined: all of them have a value for one example alone.

    Args:
        model: a compiled and built model.
        rows: at least one example, with targets.

    Returns:
        `(loss name, reason, fix)`, or nothing.
    """
    name = own_loss_name(model)
    if name is None:
        return []
    batch = repeated(finite_rows(Batch(rows.x, rows.y)), _NUM_ROWS)
    losses = backend.evaluate(
        lambda: _losses(model, batch), [*model.variables, *model.metrics_variables]
    )
    if _is_separable(*losses):
        return []
    return [
        (
            name,
            "The loss of a batch is neither a mean nor a sum of the losses of its examples, so it "
            "compares examples with each other; private training evaluates it on each example "
            "alone.",
            "Use a loss that is defined for one example, such as those of `keras.losses`.",
        )
    ]


def own_loss_name(model: keras.Model) -> str | None:
    """`compute_loss`, or the names of loss functions, that are the user's; None where none is.

    Args:
        model: a compiled and built model.
    """
    if keras_private.is_own(model, "compute_loss"):
        return "compute_loss"
    losses = keras_private.compiled_losses(model)
    return ", ".join(loss.name for loss in losses if not _is_of_keras(loss)) or None


def _losses(model: keras.Model, batch: Batch) -> list[Tensor]:
    """The loss of the batch, twice, and the losses of its rows, of shape `(rows,)`."""
    y_pred = call_model(model, batch.x, training=False)
    # Operations drop Keras's masks, so that no mask rescales anything.
    y_pred = keras.tree.map_structure(lambda value: value + 0, y_pred)
    whole = Batch({"x": batch.x, "y_pred": y_pred}, batch.y)

    def loss(part: Batch) -> Tensor:
        named = {} if part.y is None else {"y": part.y}
        return ops.cast(compute_loss(model, **part.x, **named), "float32")

    singles = [loss(whole.rows(row, 1)) for row in range(_NUM_ROWS)]
    return [loss(whole), loss(whole), ops.stack(singles)]


def _is_separable(value: np.ndarray, again: np.ndarray, singles: np.ndarray) -> bool:
    """Whether `value` may be a weighted mean or a sum of `singles`, or nothing can be told."""
    if not np.isfinite(value) or not np.isclose(value, again, rtol=1e-5):
        return True
    if not np.isfinite(singles).all():
        return False
    slack = _TOLERANCE * max(float(np.abs(singles).max()), 1e-2)
    is_mean = singles.min() - slack <= value <= singles.max() + slack
    return bool(is_mean or abs(value - singles.sum()) <= _NUM_ROWS * slack)


def _is_of_keras(loss: Any) -> bool:
    # The class of a function's wrapper is Keras's, and so is the function of a user's subclass.
    origins = (type(loss), getattr(loss, "fn", type(loss)))
    return all(getattr(each, "__module__", "").startswith("keras.") for each in origins)
