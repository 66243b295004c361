"""One private training step: contribute, clip, noise, apply, account.

The same code runs on all three backends, compiled or eager. `backend.train_step` gives it the form
that each of Keras's trainers expects.
"""

from typing import Any

import keras
from keras import ops

from keras_adaclip import backend, examination, gradients, training
from keras_adaclip.backend import keras_losses
from keras_adaclip.clipping import Clipper
from keras_adaclip.gradients import Batch, ClippedSum, Draws, Observed

Tensor = Any


def private_step(model: keras.Model, data: Any) -> dict[str, Tensor]:
    """Train `model` on one batch.

    Args:
        model: A private model that `fit` or `train_on_batch` has prepared.
        data: The batch that Keras passes to `train_step`.

    Returns:
        The metrics so far, by name.

    Raises:
        ValueError: If layers of `model` mix examples.
    """
    # A callback may have thawed a layer since `fit` looked; compiled code looks when it is traced.
    examination.refuse(model, examination.layer_issues(model))
    examination.refuse_other_weights(model)
    batch = Batch.from_data(data, model._private_state.is_drawn)
    with examination.refusing_batch_statistics(model):
        total, logs = _accumulate(model, batch)
    total = gradients.with_regularization(model, training.sum_of_replicas(total))
    if (canaries := model._private_state.canaries) is None:
        model.optimizer.apply(total, model.trainable_variables)
    else:
        canaries.apply(model.optimizer, total, model.trainable_variables)
    training.assign_state(model)
    return logs


def _accumulate(model: keras.Model, batch: Batch) -> tuple[ClippedSum, dict[str, Tensor]]:
    """Return the clipped sum over the batch, chunk by chunk if a chunk size is set, and metrics."""
    optimizer, state = model.optimizer, model._private_state
    clipping = optimizer.current_clipping
    # Read here: inside the loop over chunks JAX knows the model's variables only.
    draws = Draws(optimizer.seed_of_layers).at(backend.number_of_replica())
    if state.chunk_size is None:
        return _part(model, batch, clipping, draws.at(0))

    def add_chunk(index: Tensor, chunk: Batch) -> ClippedSum:
        """Return the clipped sum of a chunk, and update the metrics."""
        part, logs = _part(model, chunk, clipping, draws.at(index))
        training.refuse_lost_metrics(model, logs, "`microbatch_size` or large batches")
        return part

    is_ragged = not backend.needs_fixed_shapes(model)
    total = training.sum_over_chunks(model, batch, state.chunk_size, is_ragged, add_chunk)
    return total, model.get_metrics_result()


def _part(
    model: keras.Model, batch: Batch, clipping: Clipper, draws: Draws
) -> tuple[ClippedSum, dict[str, Tensor]]:
    """Return the clipped sum over the examples, of augmented copies if there are any; metrics."""
    state, drawn = model._private_state, batch
    batch = drawn.without_missing_targets(state.handles_missing)
    examples = batch
    if state.augmentation is not None:
        examples = state.augmentation.applied(batch, draws.at(0))
    total, observed = gradients.clipped_sum(model, examples, clipping, state.plan, draws.at(1))
    return total, _observe(model, batch, observed, drawn, clipping)


def _observe(
    model: keras.Model, batch: Batch, observed: Observed, drawn: Batch, clipping: Clipper
) -> dict[str, Tensor]:
    """Update loss and metrics with the examples that were drawn; none of this is private."""
    left_out = ops.logical_and(drawn.present, ops.logical_not(observed.finite))
    counted = ops.logical_and(batch.present, ops.isfinite(observed.losses))
    losses = ops.where(counted, observed.losses, 0.0)
    regularization = gradients.regularization_loss(model)
    if regularization is not None:
        losses = losses + regularization
    clip_norms = clipping.state["clip_norm"]
    with training.keeping_metrics_only(model):
        tracker = keras_losses.loss_tracker(model)
        tracker.update_state(losses, ops.cast(counted, "float32"))
        tracker.count_left_out(left_out)
        gradients.update_loss_trackers(model, observed.loss_increments, counted)
        training.observe_norms(model, batch.present, observed.norms, observed.finite, clip_norms)
        # Without padding, Keras's metrics get what they get from Keras.
        shown = drawn if drawn.mask is None else batch
        return training.update_metrics(model, shown, observed.y_pred)
