"""One round: sample, contribute, clip, noise, apply, account, with clients as the units.

Everything but the contribution is the code of the example-level step.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_adaclip import gradients, training
from keras_adaclip.backend import keras_losses, keras_private
from keras_adaclip.gradients import Batch, BatchGradients, ClippedSum, Materialized, Totals

Tensor = Any


def federated_step(model: keras.Model, data: dict[str, Any]) -> dict[str, Tensor]:
    """Train `model` for one round, and return the metrics so far by name.

    Args:
        model: A federated model that `fit` has prepared.
        data: A batch of `CohortBatches`.
    """
    observe = training.keeping_metrics_only(model)(functools.partial(_observe, model))
    train = functools.partial(model.local_training.train, data, observe)
    model.optimizer.apply(_clipped_sum(model, train), model.trainable_variables)
    training.assign_state(model)
    return dict(model.get_metrics_result())


def contribution_step(model: keras.Model, data: Any) -> dict[str, Tensor]:
    """Return statistics and clipped sum of some clients as logs; nothing is noised or applied.

    Args:
        model: A federated model that `prepare_node` has prepared.
        data: A batch of `CohortBatches`, as Keras hands on what `train_on_batch` was given.
    """
    batch = data[0] if isinstance(data, (list, tuple)) else data
    train = functools.partial(model.local_training.train, batch, lambda *_: None)
    total = _clipped_sum(model, train)
    return {str(n): each for n, each in enumerate((total.statistics, *total.gradients))}


def _clipped_sum(model: keras.Model, train: Callable[..., list[Tensor]]) -> ClippedSum:
    """Return the sum of the clients' clipped contributions."""
    clipping = model.optimizer.current_clipping

    def merged(
        totals: list[Tensor], contributions: list[Tensor], weights: Tensor, present: Tensor
    ) -> list[Tensor]:
        """Add clipped contributions and statistics."""
        of_clients = BatchGradients(
            model.trainable_variables,
            [Materialized(each) for each in contributions],
            ops.shape(present)[0],
        )
        sums, norms, finite, factors = gradients.clipped_contributions(
            of_clients, present, clipping, weights=weights
        )
        training.observe_norms(model, present, norms, finite, clipping.state["clip_norm"])
        left_out = ops.logical_and(present, ops.logical_not(finite))
        keras_losses.loss_tracker(model).count_left_out(left_out)
        part = gradients.with_statistics(sums, clipping, norms, finite, present, factors)
        return Totals.of_flat(totals).plus(part.totals).flat

    shapes = [(clipping.num_statistics,), *(each.shape for each in model.trainable_variables)]
    found = Totals.of_flat(train(Totals.zeros(shapes).flat, merged))
    scale = model.federated_settings.weighting.scale
    return dataclasses.replace(training.sum_of_replicas(ClippedSum.of(found)), scale=scale)


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
        batch: The batches, as `local_batches` returns them.
        losses: The mean loss of each batch, float32 of shape `(num_lanes,)`.
        increments: The increments of the trackers of single outputs' losses.
        y_pred: Predictions of shape `(num_lanes, batch_size, ...)`.
        masks: Keras's masks of the predictions, false for padding.
    """
    present = batch["present"]
    counts = ops.sum(ops.cast(present, "float32"), axis=1)
    # A lane without a client may hold any weights.
    finite = ops.logical_and(ops.isfinite(losses), counts > 0.0)
    keras_losses.loss_tracker(model).update_state(
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
    names = ("x", "y", "sample_weight")
    examples = {name: batch[name] for name in names if name in batch}
    examples = keras.tree.map_structure(rows_of, examples)
    counted = rows_of(ops.logical_and(present, finite[:, None]))
    rows = Batch(examples["x"], examples.get("y"), examples.get("sample_weight"), counted)
    training.refuse_lost_metrics(model, training.update_metrics(model, rows, y_pred), "clients")
