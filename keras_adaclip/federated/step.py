"""One round: sample, contribute, clip, noise, apply, account, with clients as the units.

All but the contribution is the code of the example-level step.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.federated.client_batch import ClientBatch, units_from_data
from keras_adaclip.federated.local_step import LocalStep
from keras_adaclip.gradients import (
    Batch,
    BatchGradients,
    ClippedSum,
    Materialized,
    add_to_output_loss_trackers,
    clipped_contributions,
)
from keras_adaclip.training import (
    assign_state,
    merge_over_chunks,
    refuse_lost_metrics,
    sum_of_replicas,
    sum_over_chunks,
    update_metrics,
)

Tensor = Any
# The contributions of the clients of a chunk, by its number and the clients.
Deltas = Callable[[Tensor, ClientBatch], list[Tensor]]


def federated_step(model: keras.Model, data: Any) -> dict[str, Tensor]:
    """Trains `model` for one round.

    Args:
        model: a federated model that `fit` has prepared.
        data: a batch of `CohortBatches`.

    Returns:
        The metrics so far, by name.
    """
    units = units_from_data(data)
    optimizer, training = model.optimizer, model.local_training
    draws = bool(keras_private.seed_generator_states(model))
    # Read here: inside the loop over chunks JAX knows the model's variables only.
    seed = optimizer.augmentation_seed if draws else None

    def deltas_of(index: Tensor, clients: ClientBatch) -> list[Tensor]:
        of_chunk = None
        if seed is not None:
            moved = 32_452_843 * ops.cast(index, "int32")
            of_replica = 49_979_687 * ops.cast(backend.number_of_replica(), "int32")
            of_chunk = seed + ops.stack([moved + of_replica, ops.zeros((), "int32")])
        deltas: list[Tensor] = training.contributions(
            clients, of_chunk, lambda step: _observe(model, step)
        )
        return deltas

    combined = _clipped_sum if optimizer.aggregation is None else _aggregated
    optimizer.apply(combined(model, units, deltas_of), model.trainable_variables)
    assign_state(model)
    return dict(model.get_metrics_result())


def _clipped_sum(model: keras.Model, units: Batch, deltas_of: Deltas) -> ClippedSum:
    """The sum of the clients' clipped contributions."""
    weighting = model.federated_settings.client_weighting
    clipping = model.optimizer.current_clipping

    def sum_of_chunk(index: Tensor, chunk: Batch) -> ClippedSum:
        clients = ClientBatch.from_units(chunk)
        deltas = deltas_of(index, clients)
        contributions = BatchGradients(
            model.trainable_variables,
            [Materialized(delta) for delta in deltas],
            clients.num_clients,
        )
        if clipping.coordinates is not None:
            contributions = contributions.in_coordinates(clipping.coordinates)
        sums, norms, finite, _ = clipped_contributions(
            contributions,
            chunk.present,
            clipping,
            weights=None if weighting is None else clients.weight,
        )
        _observe_norms(model, chunk, norms, finite, clipping.state["clip_norm"])
        return ClippedSum(sums, clipping.summed_statistics(norms, finite, chunk.present))

    total = sum_over_chunks(model, units, model._private_state.chunk_size, False, sum_of_chunk)
    total = sum_of_replicas(total)
    if weighting is not None:
        total = dataclasses.replace(total, scale=weighting.scale)
    return total


def _aggregated(model: keras.Model, units: Batch, deltas_of: Deltas) -> Any:
    """The clients' contributions as the optimizer's own aggregation takes them."""
    aggregation = model.optimizer.aggregation

    def sample_of_chunk(index: Tensor, chunk: Batch) -> list[Tensor]:
        deltas = deltas_of(index, ClientBatch.from_units(chunk))
        sample, norms, finite = aggregation.accumulated(deltas, chunk.present)
        _observe_norms(model, chunk, norms, finite, None)
        return list(sample)

    return aggregation.sample(
        merge_over_chunks(
            model,
            units,
            model._private_state.chunk_size,
            False,
            sample_of_chunk,
            aggregation.start(),
            aggregation.merged,
        )
    )


def _observe(model: keras.Model, step: LocalStep) -> None:
    """Updates loss and metrics with a local step; none of this is private."""
    present, losses = step.batch.present, step.losses
    finite = ops.isfinite(losses)
    counts = ops.sum(ops.cast(present, "float32"), axis=1)
    keras_private.loss_tracker(model).update_state(
        ops.where(finite, losses, 0.0), ops.where(finite, counts, 0.0)
    )
    # Keras weighs them by all rows, those of padding too.
    share = counts / ops.cast(ops.shape(present)[1], "float32")
    shares = [ops.where(finite, share * each, 0.0) for each in step.increments]
    add_to_output_loss_trackers(model, shares, finite)
    counted = ops.logical_and(present, finite[:, None])

    def in_one(value: Tensor) -> Tensor:
        return ops.reshape(value, (-1, *value.shape[2:]))

    def prediction(value: Tensor, mask: Tensor) -> Tensor:
        trailing = (1,) * (len(value.shape) - 1)
        sound = ops.where(ops.reshape(finite, (-1, *trailing)), value, ops.zeros_like(value))
        # A mask of rows alone is `counted` already.
        return keras_private.attach_mask(
            in_one(sound), None if len(mask.shape) == 2 else in_one(mask)
        )

    flat = [
        prediction(value, mask)
        for value, mask in zip(keras.tree.flatten(step.y_pred), step.masks, strict=True)
    ]
    x, y = (
        None if part is None else keras.tree.map_structure(in_one, part)
        for part in (step.batch.x, step.batch.y)
    )
    rows = Batch(x, y, None, in_one(counted))
    logs = update_metrics(model, rows, keras.tree.pack_sequence_as(step.y_pred, flat))
    refuse_lost_metrics(model, logs, "clients")


def _observe_norms(
    model: keras.Model, chunk: Batch, norms: Tensor, finite: Tensor, clip_norms: Tensor | None
) -> None:
    """Raw norms and the true share of clipped clients, where the user asked for them.

    Args:
        model: a federated model.
        chunk: the clients.
        norms: of their contributions, of shape `(num_clients, num_groups)`.
        finite: bool of shape `(num_clients,)`.
        clip_norms: of shape `(num_groups,)`; None where only an aggregation knows what it clips.
    """
    metrics = model._private_state.diagnostics
    if metrics is None:
        return
    present = ops.cast(chunk.present, "float32")
    metrics["gradient_norm"].update_state(ops.sqrt(ops.sum(ops.square(norms), axis=1)), present)
    if clip_norms is None:
        return
    is_clipped = ops.logical_or(ops.any(norms > clip_norms, axis=1), ops.logical_not(finite))
    metrics["clipped_fraction"].update_state(ops.cast(is_clipped, "float32"), present)
