"""The seam: model, batch and clipping strategy in, a `ClippedSum` out.

    sum_i factor_i g_i,  factor_i from the norm of g_i alone (with groups, each group's part)

Guarantees:
    The contribution of a unit depends on that unit and on the model, never on another unit. Its
    norm is at most the strategy's bound. Padding, and units whose loss or norm is not finite, add
    zero.
"""

from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.clipping import CurrentClipping
from keras_adaclip.gradients import losses, one_by_one
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.batch_gradients import BatchGradients
from keras_adaclip.gradients.per_example import per_example_gradients
from keras_adaclip.gradients.plan import GradientPlan

Tensor = Any


@dataclass(frozen=True)
class ClippedSum:
    """What one step adds up over its units, before the noise. Only this package makes it.

    Args:
        gradients: the sums of clipped gradients, float32, one for each trainable variable.
        statistics: the sums of the strategy's statistics, float32 of shape `(num_statistics,)`.
        public_gradients: gradients that do not touch the data (weight regularization), to be
            added to the noised mean; None where there are none.
        scale: a public number that the noised mean is multiplied by.
    """

    gradients: list[Tensor]
    statistics: Tensor
    public_gradients: list[Tensor] | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Observed:
    """What the forward pass showed, for losses and metrics. Not private.

    Args:
        y_pred: predictions of shape `(batch_size, ...)`.
        losses: float32 of shape `(batch_size,)`.
        loss_increments: what each example adds to the trackers of single outputs' losses.
        norms: float32 of shape `(batch_size, num_groups)`, in the coordinates in which the
            contributions are clipped; zero where not finite.
        finite: bool of shape `(batch_size,)`, false for padding too.
        factors: float32 of shape `(batch_size, num_groups)`.
    """

    y_pred: Any
    losses: Tensor
    loss_increments: list[Tensor]
    norms: Tensor
    finite: Tensor
    factors: Tensor


def clipped_sum(
    model: keras.Model, batch: Batch, clipping: CurrentClipping, plan: GradientPlan
) -> tuple[ClippedSum, Observed]:
    """Clips the gradient of each example and adds them up.

    Args:
        model: a built model with a compiled loss.
        batch: the examples.
        clipping: the clipping strategy with the thresholds of this step.
        plan: which way each layer takes.

    Returns:
        The sum, and what the forward pass showed.
    """
    coordinates, groups = clipping.coordinates, clipping.groups
    if not plan.is_one_by_one:
        gradients, forward = per_example_gradients(model, batch, plan)
        if coordinates is not None:
            gradients = gradients.in_coordinates(coordinates)
        sums, norms, finite, factors = clipped_contributions(
            gradients, batch.present, clipping, ops.isfinite(forward.losses)
        )
    else:

        def factors_of(squared_norms: Tensor, alone: Batch) -> tuple[Tensor, Tensor]:
            norms, finite = _norms(squared_norms, alone.present)
            return clipping.factors(norms, finite), finite

        sums, squared_norms, forward = one_by_one.weighted_sums(
            model, batch, groups, factors_of, coordinates
        )
        norms, finite = _norms(squared_norms, batch.present)
        factors = clipping.factors(norms, finite)
    total = ClippedSum(sums, clipping.summed_statistics(norms, finite, batch.present))
    observed = Observed(
        forward.y_pred, forward.losses, forward.loss_increments, norms, finite, factors
    )
    return total, observed


def clipped_contributions(
    contributions: BatchGradients,
    present: Tensor,
    clipping: CurrentClipping,
    is_sound: Tensor | None = None,
    weights: Tensor | None = None,
) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Clips what each unit contributes, and adds it up.

    Args:
        contributions: of each unit to each variable, in the clipping strategy's coordinates.
        present: bool of shape `(batch_size,)`, false for padding.
        clipping: the clipping strategy with the thresholds of this step.
        is_sound: bool of shape `(batch_size,)`, false for units that are to add nothing, as if
            they were not finite; None where all may.
        weights: float32 of shape `(batch_size,)`, what each clipped contribution is multiplied by;
            more than one counts as one. None for one.

    Returns:
        The sums, one a variable; norms and factors of shape `(batch_size, num_groups)`; whether
        each unit is present and finite, of shape `(batch_size,)`.
    """
    squared_norms = contributions.squared_norms(clipping.groups)
    if is_sound is not None:
        squared_norms = ops.where(is_sound[:, None], squared_norms, float("nan"))
    norms, finite = _norms(squared_norms, present)
    factors = clipping.factors(norms, finite)
    if weights is not None:
        # Whatever was given, no contribution exceeds its bound.
        factors = factors * ops.clip(weights, 0.0, 1.0)[:, None]
    sums = contributions.weighted_sums(factors, finite, clipping.groups)
    return sums, norms, finite, factors


def with_regularization(model: keras.Model, total: ClippedSum) -> ClippedSum:
    """Adds the gradient of the weight regularizers, which needs no noise.

    Args:
        model: the model whose regularizers act.
        total: the clipped and noised sum.
    """
    variables = model.trainable_variables
    if all(variable.regularizer is None for variable in variables):
        return total
    _, gradients = backend.gradients_of(
        lambda: (losses.regularization_loss(model), ()), variables, model.variables
    )
    return ClippedSum(total.gradients, total.statistics, gradients)


def _norms(squared_norms: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Norms by group, zero where one is not finite, and which rows hold a finite unit."""
    norms = ops.sqrt(squared_norms)
    finite = ops.logical_and(ops.all(ops.isfinite(norms), axis=1), present)
    return ops.where(finite[:, None], norms, 0.0), finite
