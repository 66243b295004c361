"""What would break the guarantee of a federated model, found before training starts."""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.federated.local_training import with_rows_masked
from keras_adaclip.federated.settings import FederatedSettings
from keras_adaclip.gradients import Batch, call_model, finite_rows
from keras_adaclip.optimizers import AccountedOptimizer
from keras_adaclip.training import (
    Finding,
    PrivacyIssue,
    Probe,
    compile_issues,
    issues_of_clients,
    refuse,
    refuse_other_weights,
    refuse_unsupported,
)


def refuse_unsound_rounds(model: keras.Model, rows: Batch, row_counts: list[int]) -> Finding:
    """Raise if training `model` over clients would not be private, or not what it seems.

    Args:
        model: A compiled and built federated model.
        rows: A few examples to run the model on.
        row_counts: The numbers of rows that local batches have.

    Returns:
        What was found of the state of a model without issues.

    Raises:
        ValueError: With every issue, one a line.
    """
    refuse_unsupported(model)
    refuse_other_weights(model)
    finding = Probe(model, rows, counts_rows=True).examined(eagerly=True)
    found = [*issues_of_clients(finding), *_loss_issues(model, rows, row_counts)]
    refuse(model, found + compile_issues(model))
    return finding


def refuse_unsuited_settings(
    optimizer: AccountedOptimizer, settings: FederatedSettings, jit_compile: Any
) -> None:
    """Raises where `compile` was told what an optimizer with its own aggregation cannot do.

    Args:
        optimizer: an optimizer whose `aggregation` is not None.
        settings: what `compile` was told of the clients.
        jit_compile: what it was told of XLA.

    Raises:
        ValueError: with what to do about it.
    """
    name = type(optimizer).__name__
    if settings.client_weighting is not None:
        raise ValueError(
            f"A `{name}` lets all clients count alike: its query bounds what a client adds, and "
            "weights would come on top. Leave `client_weighting` out."
        )
    if settings.cohort_noise_size is not None:
        raise ValueError(
            f"`cohort_noise_size` makes the noise of a `DPOptimizer` smaller; the noise of a "
            f"`{name}` is its query's own. Give the query the noise that is to be simulated. "
            f"Received: cohort_noise_size={settings.cohort_noise_size}"
        )
    if jit_compile is True:
        raise ValueError(
            f"A `{name}` cannot be compiled with XLA, which may draw the same noise in every "
            "process. Leave `jit_compile` out. Received: jit_compile=True"
        )


def _loss_issues(model: keras.Model, rows: Batch, row_counts: list[int]) -> list[PrivacyIssue]:
    """Return the loss if the rows that pad a batch count in it, or if that cannot be told."""
    rows = finite_rows(rows)
    num_rows = keras.tree.flatten(rows.x)[0].shape[0]
    missing = [2, 3, *(count - num_rows for count in row_counts if count > num_rows + 3)]

    def losses() -> list[Any]:
        # Once for all: another call may draw other random numbers.
        y_pred = call_model(model, rows.x, training=False)
        loss = functools.partial(_loss_with_padding, model, rows, y_pred)
        zeros = (loss(each, ops.zeros_like) for each in missing)
        return [*map(loss, (0, 0, *missing)), *zeros]

    values = backend.evaluate(losses, [*model.variables, *model.metrics_variables])
    alone, again, *padded = (float(value) for value in values)
    if not math.isfinite(alone):
        return []
    # An example of zeros alone may be none at all, as where zeros are masked words.
    padded = [*padded[: len(missing)], *filter(math.isfinite, padded[len(missing) :])]
    is_close = functools.partial(math.isclose, alone, rel_tol=1e-3, abs_tol=1e-5)
    if not is_close(again):
        return [
            PrivacyIssue(
                "loss",
                "It gave two values for the same targets and predictions: it keeps state or draws "
                "random numbers, so it cannot be told whether it counts the rows that pad the last "
                "batch of a client.",
                "Make it a function of `(y_true, y_pred)` alone; random numbers belong into a "
                "layer.",
            )
        ]
    if not all(map(is_close, padded)):
        return [
            PrivacyIssue(
                "loss",
                "It counts the rows that pad the last batch of a client: it does not heed Keras's "
                "mask of the predictions.",
                "Give `compile` a Keras loss, or a function of `(y_true, y_pred)` that returns one "
                "value for each entry of all axes but the last.",
            )
        ]
    return []


def _loss_with_padding(
    model: keras.Model,
    rows: Batch,
    y_pred: Any,
    missing: int,
    changed: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """Return the loss of some rows beside `missing` copies of the first, `changed` and masked."""

    def padded(value: Any) -> Any:
        filler = changed(ops.repeat(value[:1], missing, axis=0))
        return ops.concatenate([value, filler], axis=0)

    def padded_prediction(value: Any) -> Any:
        mask = keras_private.mask_of(value)
        value = keras_private.attach_mask(padded(value), None if mask is None else padded(mask))
        return with_rows_masked(value, ops.arange(value.shape[0]) < value.shape[0] - missing)

    x, y = (
        None if part is None else keras.tree.map_structure(padded, part)
        for part in (rows.x, rows.y)
    )
    y_pred = keras.tree.map_structure(padded_prediction, y_pred)
    with keras_private.without_regularizers(model):
        return ops.sum(model.compute_loss(x=x, y=y, y_pred=y_pred, training=True))
