"""What would break the guarantee of a federated model, found before training starts."""

import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.federated.local_step import with_rows_masked
from keras_adaclip.federated.settings import FederatedSettings
from keras_adaclip.gradients import Batch, call_model, finite_rows
from keras_adaclip.models.preflight import (
    PrivacyIssue,
    compile_issues,
    metric_issues,
    refuse,
    refuse_other_weights,
    refuse_unsupported,
)
from keras_adaclip.optimizers.accounted_optimizer import AccountedOptimizer


def refuse_unsound_rounds(model: keras.Model, rows: Batch) -> None:
    """Raises where training `model` over clients would not be private, or not what it seems.

    Examples of one client may meet each other: what must stay apart is clients, and each of them
    trains on its own.

    Args:
        model: a compiled and built federated model.
        rows: a few examples to run the model on.

    Raises:
        ValueError: with every issue, one a line.
    """
    refuse_unsupported(model)
    refuse_other_weights(model)
    refuse(
        model,
        [
            *_layer_issues(model),
            *_loss_issues(model, rows),
            *compile_issues(model),
            *metric_issues(model),
        ],
    )


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


def _layer_issues(model: keras.Model) -> list[PrivacyIssue]:
    return [
        PrivacyIssue(
            layer.name,
            "BatchNormalization keeps moving averages of the clients' data, which are no part of "
            "the clipped and noised contribution.",
            "Use `GroupNormalization`, as `privatize(model, replace_batch_normalization=True)` "
            "does, or freeze it with `layer.trainable = False`.",
        )
        for layer in keras_private.flatten_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]


def _loss_issues(model: keras.Model, rows: Batch) -> list[PrivacyIssue]:
    """Losses that layers add, and losses that count the rows of padding."""
    rows = finite_rows(rows)
    variables = [*model.variables, *model.metrics_variables]
    has_added: list[bool] = []

    def losses() -> list[Any]:
        mapping = [(variable, variable.value) for variable in variables]
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            call_model(model, rows.x, training=True)
            has_added.append(bool(scope.losses))
        of_zeros = [_loss_with_padding(model, rows, missing, ops.zeros_like) for missing in (2, 3)]
        of_copies = [_loss_with_padding(model, rows, missing) for missing in (0, 2, 3)]
        return [*of_copies, *of_zeros]

    alone, *padded = (float(value) for value in backend.evaluate(losses, variables))
    # An example of zeros alone may be none at all, as where zeros are masked words.
    padded = [*padded[:2], *filter(math.isfinite, padded[2:])]
    issues = []
    if any(has_added):
        issues.append(
            PrivacyIssue(
                model.name,
                "A layer adds a loss of its own (`add_loss`, `activity_regularizer`), which the "
                "clients' training would leave out.",
                "Make it part of the loss given to `compile`; weight regularizers are fine.",
            )
        )
    is_heeded = all(math.isclose(each, alone, rel_tol=1e-3, abs_tol=1e-5) for each in padded)
    if math.isfinite(alone) and not is_heeded:
        issues.append(
            PrivacyIssue(
                "loss",
                "It counts the rows that pad the last batch of a client: it does not heed Keras's "
                "mask of the predictions.",
                "Give `compile` a Keras loss, or a function of `(y_true, y_pred)` that returns one "
                "value for each entry of all axes but the last.",
            )
        )
    return issues


def _loss_with_padding(
    model: keras.Model,
    rows: Batch,
    missing: int,
    changed: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """The loss of some rows beside `missing` copies of the first, `changed` and masked."""

    def padded(value: Any) -> Any:
        filler = changed(ops.repeat(value[:1], missing, axis=0))
        return ops.concatenate([value, filler], axis=0)

    x, y = (
        None if part is None else keras.tree.map_structure(padded, part)
        for part in (rows.x, rows.y)
    )
    num_rows = keras.tree.flatten(x)[0].shape[0]
    present = ops.arange(num_rows) < num_rows - missing
    y_pred = keras.tree.map_structure(
        lambda value: with_rows_masked(value, present), call_model(model, x, training=False)
    )
    with keras_private.without_regularizers(model):
        return ops.sum(model.compute_loss(x=x, y=y, y_pred=y_pred, training=True))
