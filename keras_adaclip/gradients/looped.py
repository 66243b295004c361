"""The last resort: differentiates the whole model on one example after another.

It is exact for every model, with the memory of one example. Each example draws its own dropout
mask. On CPU it was faster than a `vmap` of the whole model, whose batched convolutions have no fast
kernel.
"""

from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.clipping import CurrentClipping
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.contributions import BatchGradients, clipped_contributions
from keras_adaclip.gradients.forms import Materialized
from keras_adaclip.gradients.forward import Forward, call_model, forward_alone, sliced
from keras_adaclip.gradients.losses import compute_loss

Tensor = Any


def looped_contributions(
    model: keras.Model, batch: Batch, clipping: CurrentClipping
) -> tuple[tuple[list[Tensor], Tensor, Tensor, Tensor], Forward]:
    """Return the clipped sums of a batch, with each example differentiated alone.

    Args:
        model: A built model with a compiled loss.
        batch: The examples.
        clipping: The clipping strategy with the thresholds of this step.

    Returns:
        The results of `clipped_contributions`, and of a forward pass over the batch.
    """
    trainable = model.trainable_variables
    changing = [*model.non_trainable_variables, *model.metrics_variables]

    def body(index: Tensor, carry: list[Tensor]) -> list[Tensor]:
        """Add the contribution of one example."""
        alone = batch.rows(index, 1)
        gradients, loss = single_gradient(model, alone)
        parts: list[Any] = [Materialized(ops.expand_dims(value, 0)) for value in gradients]
        contribution = BatchGradients(trainable, parts, 1)
        if clipping.coordinates is not None:
            contribution = contribution.in_coordinates(clipping.coordinates)
        is_sound = ops.reshape(ops.isfinite(loss), (1,))
        sums, norms, finite, factors = clipped_contributions(
            contribution, alone.present, clipping, is_sound
        )
        totals = [total + part for total, part in zip(carry[:-1], sums, strict=True)]
        found = (norms, ops.cast(finite, "float32")[:, None], factors)
        rows = ops.slice_update(carry[-1], [index, 0], ops.concatenate(found, axis=1))
        return [*totals, rows]

    num_groups = clipping.groups.num_groups
    carry = [ops.zeros(variable.shape, "float32") for variable in trainable]
    carry.append(ops.zeros((batch.num_rows, 2 * num_groups + 1), "float32"))
    forward = forward_alone(model, batch, training=True)
    *sums, rows = backend.loop_over_chunks(body, carry, batch.num_rows, changing, trainable)
    norms, finite, factors = rows[:, :num_groups], rows[:, num_groups], rows[:, num_groups + 1 :]
    return (sums, norms, finite > 0.0, factors), forward


def single_gradient(
    model: keras.Model, alone: Batch, training: bool = True
) -> tuple[list[Tensor], Tensor]:
    """Return the gradient of one example's loss, float32 per trainable variable, and the loss.

    Args:
        model: A built model with a compiled loss.
        alone: A batch of one. The mean loss is used if it has several copies.
        training: The mode of the forward pass.
    """

    def loss() -> tuple[Tensor, Any]:
        """Return the mean loss over the copies, twice."""
        y_pred = call_model(model, alone.x, training)
        parts = (y_pred, alone.x, alone.y, alone.sample_weight)
        losses = [
            compute_loss(model, *(sliced(part, slice(row, row + 1)) for part in parts))
            for row in range(alone.num_copies)
        ]
        value = ops.mean(ops.stack(losses))
        return value, value

    # The loss updates the trackers of single outputs. Only random generators may keep their state.
    seeds = keras_private.seed_generator_states(model)
    variables = [*model.variables, *model.metrics_variables]
    with keras.StatelessScope([(variable, variable.value) for variable in variables]) as scope:
        loss_value, gradients = backend.gradients_of(loss, model.trainable_variables, variables)
        updated = [scope.get_current_value(state) for state in seeds]
    for variable, new_value in zip(seeds, updated, strict=True):
        variable.assign(new_value)
    return [ops.cast(gradient, "float32") for gradient in gradients], loss_value
