"""The parts of a step that examples and clients share: state, replicas and metrics."""

import dataclasses
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Batch, ClippedSum, call_model

Tensor = Any


def assign_state(model: keras.Model) -> None:
    """Assigns the state that the forward pass assigns whatever the rows are.

    It comes from a row of zeros, so that nothing of the data is in it.

    Args:
        model: a private or federated model.
    """
    state = model._private_state
    if not state.assigned_by_forward:
        return
    with keras.StatelessScope([(each, each.value) for each in model.variables]) as scope:
        call_model(model, state.row_of_zeros, training=True)
        values = [scope.get_current_value(each) for each in state.assigned_by_forward]
    for variable, value in zip(state.assigned_by_forward, values, strict=True):
        variable.assign(value)


def sum_of_replicas(total: ClippedSum) -> ClippedSum:
    """The clipped sum over the units of all replicas.

    Args:
        total: that of one replica's units.
    """
    sums = backend.sums_of_replicas([total.statistics, *total.gradients])
    return dataclasses.replace(total, statistics=sums[0], gradients=sums[1:])


def update_metrics(model: keras.Model, batch: Batch, y_pred: Any) -> dict[str, Tensor]:
    """Updates the metrics with the rows of a batch that its mask keeps.

    Args:
        model: a compiled model whose metrics are built.
        batch: inputs, targets and weights.
        y_pred: predictions of shape `(batch_size, ...)`.

    Returns:
        The metrics so far, by name, or what the model's own `compute_metrics` returns.
    """
    if batch.mask is None:
        return dict(model.compute_metrics(batch.x, batch.y, y_pred, batch.sample_weight))
    if not keras_private.is_own(model, "compute_metrics"):
        keras_private.update_masked_metrics(model, batch.y, y_pred, batch.sample_weight, batch.mask)
        return dict(model.get_metrics_result())
    weights = ops.cast(batch.mask, "float32")
    if batch.sample_weight is not None:
        weights = keras.tree.map_structure(
            lambda value: keras_private.masked_weight(value, weights), batch.sample_weight
        )
    return dict(model.compute_metrics(batch.x, batch.y, y_pred, weights))


def refuse_lost_metrics(model: keras.Model, logs: dict[str, Tensor], because_of: str) -> None:
    """Raises where an own `compute_metrics` returns what does not leave a loop in the step.

    Args:
        model: a compiled model.
        logs: what `update_metrics` returned.
        because_of: where the loop comes from.

    Raises:
        ValueError: with the names.
    """
    if not keras_private.is_own(model, "compute_metrics"):
        return
    lost = sorted(set(logs) - set(model.get_metrics_result()))
    if lost:
        raise ValueError(
            f"`compute_metrics` of model {model.name!r} returns {', '.join(map(repr, lost))}, "
            f"which is no metric of the model and would be lost: with {because_of} a step "
            "loops over parts of its batch. Update a `keras.metrics.Metric` that is an attribute "
            "of the model, such as a `Mean`, and return its result."
        )
