"""The clipped sum of a batch, from model, batch, clipping strategy and plan.

    sum_i factor_i g_i

Each factor depends on the norm of `g_i` alone (with groups, on the norm of each group's part).

Guarantees:
    The contribution of a unit depends on that unit and on the model, never on another unit. Its
    norm is at most the strategy's bound. Padding, and units whose loss or norm is not finite, add
    zero.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.clipping import Clipper
from keras_adaclip.gradients.batch import Batch
from keras_adaclip.gradients.contributions import BatchGradients, Totals, clipped_contributions
from keras_adaclip.gradients.forms import Materialized
from keras_adaclip.gradients.forward import (
    Forward,
    forward_alone,
    regularization_loss,
    single_gradient,
)
from keras_adaclip.gradients.layerwise import GradientPlan, per_example_gradients
from keras_adaclip.gradients.random_numbers import Draws

Tensor = Any


@dataclass(frozen=True)
class ClippedSum:
    """The sums over the units of one step, before the noise. Only this package creates it.

    Args:
        gradients: The sums of clipped gradients, float32, one for each trainable variable.
        statistics: The sums of the strategy's statistics, float32 of shape `(num_statistics,)`.
        public_gradients: Gradients that do not depend on the data (weight regularization), to be
            added to the noised mean. None if there are none.
        scale: A public number by which the noised mean is multiplied.
        remainders: What float32 has lost of the statistics and of each of the gradients, in this
            order. None stands for zeros.
    """

    gradients: list[Tensor]
    statistics: Tensor
    public_gradients: list[Tensor] | None = None
    scale: float = 1.0
    remainders: list[Tensor] | None = None

    @classmethod
    def of(cls, totals: Totals) -> "ClippedSum":
        """Return the sums of statistics and gradients, in this order, of a step."""
        statistics, *gradients = totals.sums
        return cls(gradients, statistics, remainders=totals.remainders)

    @property
    def totals(self) -> Totals:
        """The sums of statistics and gradients, in this order."""
        return Totals([self.statistics, *self.gradients], self.remainders)


@dataclass(frozen=True)
class Observed(Forward):
    """Results of the forward pass and norms, for losses and metrics. Not private.

    Args:
        norms: Float32 of shape `(batch_size, num_groups)`, in the coordinates in which
            contributions are clipped. Zero where not finite.
        finite: Bool of shape `(batch_size,)`, false for padding too.
        factors: Float32 of shape `(batch_size, num_groups)`.
    """

    norms: Tensor
    finite: Tensor
    factors: Tensor


def clipped_sum(
    model: keras.Model,
    batch: Batch,
    clipping: Clipper,
    plan: GradientPlan,
    draws: Draws | None = None,
) -> tuple[ClippedSum, Observed]:
    """Return the sum of the examples' clipped gradients, and results of the forward pass.

    Args:
        model: A built model with a compiled loss.
        batch: The examples.
        clipping: The clipping strategy with the thresholds of this step.
        plan: The rule of each layer.
        draws: The random numbers of layers; None leaves them to their seed generators.
    """
    if plan.is_layerwise:
        gradients, forward = per_example_gradients(model, batch, plan, draws=draws)
        sums, norms, finite, factors = clipped_contributions(
            gradients, batch.present, clipping, ops.isfinite(forward.losses)
        )
    else:
        num_weights = sum(math.prod(variable.shape) for variable in model.trainable_variables)
        arguments, at_once = (model, batch, clipping, draws), backend.examples_at_once(num_weights)
        found = None
        if at_once > 1:
            # Callbacks to Python, and branches of a model that runs eagerly, cannot be mapped.
            found, _ = backend.attempt(_looped_contributions, *arguments, at_once)
        (sums, norms, finite, factors), forward = found or _looped_contributions(*arguments)
    observed = Observed(**vars(forward), norms=norms, finite=finite, factors=factors)
    return with_statistics(sums, clipping, norms, finite, batch.present, factors), observed


def with_statistics(
    sums: Totals, clipping: Clipper, norms: Tensor, finite: Tensor, present: Tensor, factors: Tensor
) -> ClippedSum:
    """Return a clipped sum with the sums of its units' statistics.

    Args:
        sums: The sums for each variable.
        clipping: The clipping strategy with the thresholds of this step.
        norms: As `clipped_contributions` returns them, like `finite` and `factors`.
        finite: Bool of shape `(batch_size,)`.
        present: Bool of shape `(batch_size,)`, false for padding.
        factors: Float32 of shape `(batch_size, num_groups)`.
    """
    statistics = clipping.summed_statistics(norms, finite, present, factors)
    lost = sums.remainders and [ops.zeros_like(statistics), *sums.remainders]
    return ClippedSum.of(Totals([statistics, *sums.sums], lost))


def with_regularization(model: keras.Model, total: ClippedSum) -> ClippedSum:
    """Return the sum with the gradient of the weight regularizers, which needs no noise.

    Args:
        model: The model with the regularizers.
        total: The clipped sum.
    """
    variables = model.trainable_variables
    if all(variable.regularizer is None for variable in variables):
        return total
    _, gradients = backend.gradients_of(
        lambda: (regularization_loss(model), ()), variables, model.variables
    )
    return replace(total, public_gradients=gradients)


def _looped_contributions(
    model: keras.Model, batch: Batch, clipping: Clipper, draws: Draws | None, at_once: int = 1
) -> tuple[tuple[Totals, Tensor, Tensor, Tensor], Forward]:
    """Return the clipped sums of a batch, with each example differentiated alone.

    Args:
        model: A built model with a compiled loss.
        batch: The examples.
        clipping: The clipping strategy with the thresholds of this step.
        draws: As for `clipped_sum`.
        at_once: The number of examples that are differentiated side by side.

    Returns:
        The results of `clipped_contributions`, and of a forward pass over the batch.
    """
    trainable, copies = model.trainable_variables, batch.num_copies
    changing = [*model.non_trainable_variables, *model.metrics_variables]
    size = min(at_once, batch.num_rows) if at_once > 1 else 1
    padded = batch.padded_to_multiple(size) if size > 1 else batch

    def body(index: Tensor, carry: list[Tensor]) -> list[Tensor]:
        """Add the contributions of some examples."""
        start = index * size
        chunk, values = padded.rows(start, size), [start + ops.arange(size, dtype="int32")]

        def by_example(value: Tensor) -> Tensor:
            """Note a tensor of rows with an axis of examples before the one of their copies."""
            values.append(ops.reshape(value, (size, copies, *ops.shape(value)[1:])))
            return value

        chunk.map_rows(by_example, None)

        def of_example(values: list[Tensor]) -> list[Tensor]:
            """Return the loss and the gradients of one example."""
            place, *rows = values
            remaining = iter(rows)
            alone = chunk.map_rows(lambda _: next(remaining), None, copies)
            of_row = None if draws is None else draws.at(place)
            gradients, loss = single_gradient(model, alone, draws=of_row)
            return [loss, *gradients]

        if size > 1:
            losses, *gradients = backend.map_units(of_example, values)
        else:
            found = of_example([value[0] for value in values])
            losses, *gradients = [ops.expand_dims(value, 0) for value in found]
        parts: list[Any] = [Materialized(value) for value in gradients]
        sums, norms, finite, _ = clipped_contributions(
            BatchGradients(trainable, parts, size), chunk.present, clipping, ops.isfinite(losses)
        )
        observed = ops.concatenate([norms, ops.cast(finite, "float32")[:, None]], axis=1)
        rows = ops.slice_update(carry[-1], [start, 0], observed)
        return [*Totals.of_flat(carry[:-1]).plus(sums).flat, rows]

    carry = Totals.zeros([variable.shape for variable in trainable]).flat
    carry.append(ops.zeros((padded.num_rows, clipping.num_groups + 1), "float32"))
    forward = forward_alone(model, batch, training=True, draws=draws)
    num_chunks = padded.num_rows // size
    *sums, rows = backend.loop_over_chunks(body, carry, num_chunks, changing, trainable)
    rows = rows[: batch.num_rows]
    norms, finite = rows[:, :-1], rows[:, -1] > 0.0
    return (Totals.of_flat(sums), norms, finite, clipping.factors(norms, finite)), forward
