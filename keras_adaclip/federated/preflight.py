"""What would break the guarantee of a federated model, found before training starts."""

import functools
import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
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
    batch_normalization_fix,
    compile_issues,
    layers_outside_loops,
    refuse,
    refuse_other_weights,
    refuse_unsupported,
)

PADDING_COUNTS = (
    "Its output for one row depends on other rows of the batch, so the rows that pad the batches "
    "of a client would count."
)


def refuse_unsound_rounds(model: keras.Model, rows: Batch, row_counts: list[int]) -> Finding:
    """Raises where training `model` over clients would not be private, or not what it seems.

    Examples of one client may meet each other: what must stay apart is clients, and each of them
    trains on its own.

    Args:
        model: a compiled and built federated model.
        rows: a few examples to run the model on.
        row_counts: the numbers of rows that local batches have.

    Returns:
        What was found of the state of a model without issues.

    Raises:
        ValueError: with every issue, one a line.
    """
    refuse_unsupported(model)
    refuse_other_weights(model)
    finding = Probe(model, rows).examined_state()
    refuse(
        model,
        [
            *(PrivacyIssue(*issue) for issue in finding.issues),
            *_batch_normalization_issues(model, finding.dependent),
            *_padding_issues(model, rows),
            *_loss_issues(model, rows, row_counts),
            *compile_issues(model),
        ],
    )
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


def _batch_normalization_issues(
    model: keras.Model, assigned: list[keras.Variable]
) -> list[PrivacyIssue]:
    """Issues with the batch normalizations of which a variable is in `assigned`."""
    numbers = {id(variable) for variable in assigned}
    return [
        PrivacyIssue(
            layer.name,
            "BatchNormalization keeps moving averages of the clients' data, which are no part of "
            "the clipped and noised contribution.",
            batch_normalization_fix(model, layer, "federate"),
        )
        for layer in keras_private.flatten_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and any(id(variable) in numbers for variable in layer.variables)
    ]


def _padding_issues(model: keras.Model, rows: Batch) -> list[PrivacyIssue]:
    """The first layer whose output for an example depends on the rows that pad its batch.

    How many of these there are depends on the other clients of a round where `client_batch_size` is
    None. Layers behind one that draws random numbers in training are looked at in inference.
    """
    rows = finite_rows(Batch(rows.x))
    seeds = keras_private.seed_generator_states(model)
    for training in (True, False) if seeds else (True,):
        outputs = functools.partial(_layer_outputs, model, rows.x, training)
        first, again, zeros = outputs(2), outputs(2), outputs(2, changed=ops.zeros_like)
        if (layer := _first_other(first, again)) is not None:
            return [
                PrivacyIssue(
                    layer.name,
                    "Two calls on the same rows, with the same weights and seeds, gave different "
                    "outputs: it keeps state or draws random numbers that Keras does not know of, "
                    "and would pass on from one client to the next what it keeps.",
                    "Keep state in `self.add_weight(trainable=False)`, and draw from "
                    "`keras.random` with a `keras.random.SeedGenerator` of the layer.",
                )
            ]
        layer = _first_other(first, zeros)
        if layer is None:
            # Rows of another number are another draw of random numbers.
            drawing = (each for each, _ in first if keras_private.seed_generator_states(each))
            end = next(drawing, None)
            if not training and _first_other(first, outputs(2, moved_by=1)) is None:
                end = None  # It draws in training alone.
            layer = _first_other(first, outputs(3), end)
        # Batch normalization that mixes rows has an issue of its own.
        if layer is not None and not isinstance(layer, keras.layers.BatchNormalization):
            return [
                PrivacyIssue(
                    layer.name,
                    PADDING_COUNTS,
                    "Replace it with a layer that treats each row alone (for normalization: "
                    "LayerNormalization or GroupNormalization).",
                )
            ]
    return []


# A layer, and what it returned for the rows that are no padding.
_Outputs = list[tuple[keras.layers.Layer, Any]]


def _layer_outputs(
    model: keras.Model,
    x: Any,
    training: bool,
    missing: int,
    changed: Callable[[Any], Any] = lambda value: value,
    moved_by: int = 0,
) -> _Outputs:
    """What the layers return for some rows beside `missing` copies of the first, `changed`.

    Args:
        model: a built model.
        x: the inputs of the rows.
        training: the mode of the forward pass.
        missing: number of rows of padding.
        changed: what is done to them.
        moved_by: what is added to the states of the seed generators.
    """
    called: list[keras.layers.Layer] = []
    num_rows = keras.tree.flatten(x)[0].shape[0]

    def watched(layer: keras.layers.Layer) -> Callable[..., Any]:
        original = layer.call

        def call(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            for value in keras.tree.flatten(result):
                if ops.is_tensor(value) and value.shape and value.shape[0] == num_rows + missing:
                    called.append(layer)
                    outputs.append(ops.cast(value[:num_rows], "float32"))
            return result

        return call

    outputs: list[Any] = []
    seeds = keras_private.seed_generator_states(model)

    def values() -> list[Any]:
        called.clear()
        outputs.clear()
        padded = keras.tree.map_structure(lambda value: _padded(value, missing, changed), x)
        calls = {layer: watched(layer) for layer in layers_outside_loops(model)}
        moved = [(state, ops.add(state, ops.cast(moved_by, state.dtype))) for state in seeds]
        with keras.StatelessScope(moved), keras_private.replaced_calls(calls):
            call_model(model, padded, training=training)
        return list(outputs)

    found = backend.evaluate(values, [*model.variables, *model.metrics_variables])
    return list(zip(called, found, strict=True))


def _first_other(
    one: _Outputs, other: _Outputs, end: keras.layers.Layer | None = None
) -> keras.layers.Layer | None:
    """The first layer that returned something else, None where none did before `end`."""
    for (layer, value), (_, changed) in zip(one, other, strict=False):
        if layer is end:
            return None
        if value.shape != changed.shape:
            continue
        if not np.allclose(value, changed, rtol=1e-4, atol=1e-5, equal_nan=True):
            return layer
    return None


def _loss_issues(model: keras.Model, rows: Batch, row_counts: list[int]) -> list[PrivacyIssue]:
    """Losses that layers add, and losses that count the rows of padding."""
    rows = finite_rows(rows)
    variables = [*model.variables, *model.metrics_variables]
    has_added: list[bool] = []
    num_rows = keras.tree.flatten(rows.x)[0].shape[0]
    missing = [2, 3, *(count - num_rows for count in row_counts if count > num_rows + 3)]

    def losses() -> list[Any]:
        mapping = [(variable, variable.value) for variable in variables]
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            call_model(model, rows.x, training=True)
            has_added.append(bool(scope.losses))
        # Once for all: another call may draw other random numbers.
        y_pred = call_model(model, rows.x, training=False)
        of_loss = functools.partial(_loss_with_padding, model, rows, y_pred)
        return [
            *map(of_loss, (0, 0, *missing)),
            *(of_loss(each, ops.zeros_like) for each in missing),
        ]

    alone, again, *padded = (float(value) for value in backend.evaluate(losses, variables))
    # An example of zeros alone may be none at all, as where zeros are masked words.
    padded = [*padded[: len(missing)], *filter(math.isfinite, padded[len(missing) :])]
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
    if not math.isfinite(alone):
        return issues
    is_repeated, *is_heeded = (
        math.isclose(each, alone, rel_tol=1e-3, abs_tol=1e-5) for each in (again, *padded)
    )
    if not is_repeated:
        issues.append(
            PrivacyIssue(
                "loss",
                "It gave two values for the same targets and predictions: it keeps state or draws "
                "random numbers, so it cannot be told whether it counts the rows that pad the last "
                "batch of a client.",
                "Make it a function of `(y_true, y_pred)` alone; what is random belongs into a "
                "layer.",
            )
        )
    elif not all(is_heeded):
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
    y_pred: Any,
    missing: int,
    changed: Callable[[Any], Any] = lambda value: value,
) -> Any:
    """The loss of some rows beside `missing` copies of the first, `changed` and masked."""

    def padded(value: Any) -> Any:
        return _padded(value, missing, changed)

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


def _padded(value: Any, missing: int, changed: Callable[[Any], Any]) -> Any:
    """The rows beside `missing` copies of the first, `changed`."""
    filler = changed(ops.repeat(value[:1], missing, axis=0))
    return ops.concatenate([value, filler], axis=0)
