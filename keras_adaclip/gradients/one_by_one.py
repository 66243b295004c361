"""The last resort: the whole model differentiated on one example after another.

Exact for every model, with memory of one example; each example draws its own dropout mask. Seen
faster on CPU than a `vmap` of the whole model, whose batched convolutions have no fast kernel.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.clipping import ParameterGroups
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.forward import Forward, call_model, forward_alone, sliced
from keras_adaclip.gradients.losses import compute_loss

Tensor = Any


def weighted_sums(
    model: keras.Model,
    batch: Batch,
    groups: ParameterGroups,
    factors_of: Callable[[Tensor, Batch], tuple[Tensor, Tensor]],
    coordinates: Sequence[tuple[Tensor, Tensor]] | None = None,
    training: bool = True,
) -> tuple[list[Tensor], Tensor, Forward]:
    """Sums of weighted gradients, each example differentiated alone.

    Args:
        model: a built model with a compiled loss.
        batch: the examples.
        groups: the groups of the trainable variables.
        factors_of: takes squared norms of shape `(1, num_groups)` and a batch of one; returns
            the factors, of the same shape, and whether the example is finite, of shape `(1,)`.
        coordinates: centre and scale of each variable, where the gradients are to be taken as
            `(g - centre) / scale`.
        training: the mode of the forward pass.

    Returns:
        One sum for each trainable variable, the squared norms of shape `(batch_size, num_groups)`
        (NaN where the loss is not finite), and what a forward pass over the batch showed.
    """
    trainable = model.trainable_variables
    changing = [*model.non_trainable_variables, *model.metrics_variables]
    forward = forward_alone(model, batch, training)

    def body(index: Tensor, carry: list[Tensor]) -> list[Tensor]:
        *sums, squared_norms = carry
        alone = batch.rows(index, 1)
        gradients, loss = single_gradient(model, alone, training)
        if coordinates is not None:
            gradients = [
                (gradient - centre) / scale
                for gradient, (centre, scale) in zip(gradients, coordinates, strict=True)
            ]
        squared = ops.where(ops.isfinite(loss), _squared_norms(gradients, groups), float("nan"))
        factors, finite = factors_of(squared, alone)
        sums = [
            total + ops.where(finite[0], factors[0, number] * gradient, 0.0)
            for total, gradient, number in zip(sums, gradients, groups.assignment, strict=True)
        ]
        return [*sums, ops.slice_update(squared_norms, [index, 0], squared)]

    zeros = [ops.zeros(variable.shape, "float32") for variable in trainable]
    carry = [*zeros, ops.zeros((batch.num_rows, groups.num_groups), "float32")]
    *sums, squared_norms = backend.loop_over_chunks(
        body, carry, batch.num_rows, changing, trainable
    )
    return sums, squared_norms, forward


def _squared_norms(gradients: Sequence[Tensor], groups: ParameterGroups) -> Tensor:
    """Squared norms of each group's part, of shape `(1, num_groups)`."""
    norms = [ops.zeros((), "float32") for _ in groups.names]
    for gradient, number in zip(gradients, groups.assignment, strict=True):
        norms[number] = norms[number] + ops.sum(ops.square(gradient))
    return ops.expand_dims(ops.stack(norms), 0)


def single_gradient(
    model: keras.Model, alone: Batch, training: bool = True
) -> tuple[list[Tensor], Tensor]:
    """The gradient of the loss of one example, float32, one tensor a trainable variable; the loss.

    Args:
        model: a built model with a compiled loss.
        alone: a batch of one; the mean loss counts where it has several copies.
        training: the mode of the forward pass.
    """

    def loss() -> tuple[Tensor, Any]:
        arguments = {"x": alone.x, "y": alone.y, "sample_weight": alone.sample_weight}
        y_pred = call_model(model, alone.x, training)
        if alone.num_copies > 1:
            arguments["y_pred"] = y_pred
            copies = [
                compute_loss(model, **sliced(arguments, slice(row, row + 1)))
                for row in range(alone.num_copies)
            ]
            value = ops.mean(ops.stack(copies))
        else:
            value = compute_loss(model, y_pred, **arguments)
        return value, value

    # The loss updates the trackers of single outputs' losses; only random generators may move on.
    seeds = keras_private.seed_generator_states(model)
    variables = [*model.variables, *model.metrics_variables]
    with keras.StatelessScope([(variable, variable.value) for variable in variables]) as scope:
        loss_value, gradients = backend.gradients_of(loss, model.trainable_variables, variables)
        updated = [scope.get_current_value(state) for state in seeds]
    for variable, new_value in zip(seeds, updated, strict=True):
        variable.assign(new_value)
    return [ops.cast(gradient, "float32") for gradient in gradients], loss_value
