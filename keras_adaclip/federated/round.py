"""One round: sample, contribute, clip, noise, apply, account, with clients as the units.

Everything but the contribution is the code of the example-level step.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend, gradients, training
from keras_adaclip.backend import keras_private
from keras_adaclip.gradients import Batch, BatchGradients, ClippedSum, Materialized

Tensor = Any
# Returns the contributions of a chunk of clients.
Contributions = Callable[[dict[str, Any]], list[Tensor]]


def federated_step(model: keras.Model, data: dict[str, Any]) -> dict[str, Tensor]:
    """Train `model` for one round, and return the metrics so far by name.

    Args:
        model: A federated model that `fit` has prepared.
        data: A batch of `CohortBatches`.
    """
    clients = {name: value for name, value in data.items() if name != "mask"}
    units = Batch(clients, mask=ops.cast(data["mask"], "bool"))
    observe = functools.partial(_observe, model)
    contributions_of = functools.partial(model.local_training.contributions, observe=observe)
    combined = _clipped_sum if model.optimizer.aggregation is None else _aggregated
    model.optimizer.apply(combined(model, units, contributions_of), model.trainable_variables)
    training.assign_state(model)
    return dict(model.get_metrics_result())


def _clipped_sum(model: keras.Model, units: Batch, contributions_of: Contributions) -> ClippedSum:
    """Return the sum of the clients' clipped contributions."""
    weighting = model.federated_settings.client_weighting
    clipping = model.optimizer.current_clipping

    def sum_of_chunk(index: Tensor, chunk: Batch) -> ClippedSum:
        """Return the sum over a chunk of clients."""
        contributions = BatchGradients(
            model.trainable_variables,
            [Materialized(each) for each in contributions_of(chunk.x)],
            ops.shape(chunk.x["num_steps"])[0],
        )
        sums, norms, finite, _ = gradients.clipped_contributions(
            contributions, chunk.present, clipping, weights=chunk.x["weight"]
        )
        training.observe_norms(model, chunk.present, norms, finite, clipping.state["clip_norm"])
        return ClippedSum(sums, clipping.summed_statistics(norms, finite, chunk.present))

    size, is_ragged = model._private_state.chunk_size, _is_ragged(model)
    total = training.sum_over_chunks(model, units, size, is_ragged, sum_of_chunk)
    scale = 1.0 if weighting is None else weighting.scale
    return dataclasses.replace(training.sum_of_replicas(total), scale=scale)


def _aggregated(model: keras.Model, units: Batch, contributions_of: Contributions) -> Any:
    """Return the clients' contributions as the optimizer's own aggregation takes them."""
    aggregation = model.optimizer.aggregation

    def sample_of_chunk(index: Tensor, chunk: Batch) -> list[Tensor]:
        """Return the aggregation's state for a chunk of clients."""
        contributions = contributions_of(chunk.x)
        sample, norms, finite = aggregation.accumulated(contributions, chunk.present)
        training.observe_norms(model, chunk.present, norms, finite, None)
        return list(sample)

    size, start = model._private_state.chunk_size, aggregation.start()
    return aggregation.sample(
        training.merge_over_chunks(
            model, units, size, _is_ragged(model), sample_of_chunk, start, aggregation.merged
        )
    )


def _is_ragged(model: keras.Model) -> bool:
    """Return whether the last chunk of clients may be smaller: where they train one by one."""
    return backend.loops_in_python() and not model.local_training.is_vectorized


def _observe(
    model: keras.Model,
    batch: dict[str, Any],
    losses: Tensor,
    increments: list[Tensor],
    y_pred: Any,
    masks: list[Tensor],
) -> None:
    """Update loss and metrics with a local step; none of this is private.

    Args:
        model: A federated model.
        batch: The batches, as `local_batch` returns them.
        losses: The mean loss of each batch, float32 of shape `(num_clients,)`.
        increments: The increments of the trackers of single outputs' losses.
        y_pred: Predictions of shape `(num_clients, batch_size, ...)`.
        masks: Keras's masks of the predictions, false for padding.
    """
    present = batch["present"]
    finite = ops.isfinite(losses)
    counts = ops.sum(ops.cast(present, "float32"), axis=1)
    keras_private.loss_tracker(model).update_state(
        ops.where(finite, losses, 0.0), ops.where(finite, counts, 0.0)
    )
    # Keras weights the increments by all rows, including padding.
    share = counts / ops.cast(ops.shape(present)[1], "float32")
    shares = [ops.where(finite, share * each, 0.0) for each in increments]
    gradients.update_loss_trackers(model, shares, finite)

    def rows_of(value: Tensor) -> Tensor:
        """Return the rows of all clients along one axis."""
        return ops.reshape(value, (-1, *value.shape[2:]))

    def prediction(value: Tensor, mask: Tensor) -> Tensor:
        """Return the rows of a prediction with Keras's mask, zeros where it is not finite."""
        trailing = (1,) * (len(value.shape) - 1)
        sound = ops.where(ops.reshape(finite, (-1, *trailing)), value, ops.zeros_like(value))
        # A mask of rows alone is in `counted` already.
        mask = None if len(mask.shape) == 2 else rows_of(mask)
        return keras_private.attach_mask(rows_of(sound), mask)

    flat = map(prediction, keras.tree.flatten(y_pred), masks)
    y_pred = keras.tree.pack_sequence_as(y_pred, list(flat))
    examples = {name: batch[name] for name in ("x", "y") if name in batch}
    examples = keras.tree.map_structure(rows_of, examples)
    counted = rows_of(ops.logical_and(present, finite[:, None]))
    rows = Batch(examples["x"], examples.get("y"), None, counted)
    training.refuse_lost_metrics(model, training.update_metrics(model, rows, y_pred), "clients")
