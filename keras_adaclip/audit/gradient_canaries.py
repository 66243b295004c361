"""Gradient canaries: rows whose gradient the auditor chooses, in the steps of a real run.

    gradient of canary j:   10 C u_j,  with u_j of norm 1 and orthogonal to all others
    what a step tells:      y_j = (noised sum - sum of the rows) . u_j / C
    score:                  sum over steps of  log(1 - q + q exp((2 y_j - 1) / (2 s^2)))

C is the clipping norm, q the sampling probability, s the standard deviation of the noise over C.
The score is the log likelihood ratio of an attacker who sees every step and knows all other rows.
"""

import math
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import scipy
from keras import ops

from keras_adaclip import backend
from keras_adaclip.accounting import Unit
from keras_adaclip.clipping import ClippingStrategy
from keras_adaclip.gradients import (
    BatchGradients,
    ClippedSum,
    Draws,
    PerExampleGradient,
    clipped_contributions,
)

Tensor = Any
# The norm of a canary's gradient, in clipping norms.
_NORM = 10.0
# Places of random numbers in a step that no replica and no layer has, and its stream.
_PLACE, _STREAM = 1 << 30, 0
# Without noise, the likelihood ratio is infinite.
_LEAST_STDDEV = 0.01


class CanaryScores(keras.metrics.Metric):
    """The scores of all canaries, summed over the steps of a run and not shown in logs.

    Args:
        num_canaries: Number of canaries.
    """

    def __init__(self, num_canaries: int) -> None:
        super().__init__(name="canary_scores", dtype="float32")
        self.total = self.add_variable((num_canaries,), "zeros", name="scores")

    def update_state(self, scores: Tensor) -> None:
        """Add the scores of a step, float32 of shape `(num_canaries,)`."""
        self.total.assign(self.total.value + scores)

    def reset_state(self) -> None:
        """Keep the scores: Keras resets metrics in each epoch."""

    def result(self) -> dict[str, Tensor]:
        """Return nothing for the logs."""
        return {}


class GradientCanaries:
    """Canaries that are rows of gradients, half of them in training by the toss of a coin.

    Each canary has some coordinates of all weights for itself, so that no two have one in common.
    Those whose coin says so are drawn in each step as rows are, each by itself, and pass through
    the clip factors, sum and noise of the step. What they add to the weights is small beside the
    noise.

    Args:
        num_canaries: Number of canaries, from 2.
        sampling_probability: That of a row, from the ledger.

    Attributes:
        is_member: Bool array of shape `(num_canaries,)`, fair coins of the operating system.
        metric: What the compiled step adds the scores to.
    """

    def __init__(self, num_canaries: int, sampling_probability: float) -> None:
        self.is_member = np.random.default_rng().random(num_canaries) < 0.5
        self.metric = CanaryScores(num_canaries)
        self._probability = sampling_probability

    @classmethod
    def for_run(cls, num_canaries: int, model: Any, data: Any) -> "GradientCanaries":
        """Return canaries for a run of `fit`.

        Args:
            num_canaries: Number of canaries.
            model: The private model.
            data: Its training data.

        Raises:
            ValueError: If the run is of a kind that they cannot audit.
        """
        clipping = model.optimizer.clipping
        num_weights = sum(math.prod(each.shape) for each in model.trainable_variables)
        problem = ""
        if data.unit is Unit.CLIENT or data.poisson is None:
            problem = "The rows of each step must be drawn by Poisson sampling."
        elif clipping.groups != "flat" or (
            type(clipping).coordinates is not ClippingStrategy.coordinates
        ):
            problem = "Gradients must have one clipping norm, in their own coordinates."
        elif backend.num_processes() > 1 or backend.num_replicas(model) > 1:
            problem = "The run must be on one device."
        elif model._private_state.canaries is not None:
            problem = (
                "Another callback of this `fit` audits it, and steps have one set of canaries."
            )
        elif num_weights < num_canaries:
            problem = f"The model has {num_weights:,} trainable weights, and each canary needs one."
        if problem:
            raise ValueError(f"`AuditCallback(kind='gradient')` cannot audit this run. {problem}")
        return cls(num_canaries, data.expected_batch_size / data.num_examples)

    @property
    def scores(self) -> np.ndarray:
        """The scores so far, float array of shape `(num_canaries,)`."""
        return np.asarray(backend.array_of(self.metric.total))

    def apply(self, optimizer: Any, total: ClippedSum, variables: list[keras.Variable]) -> None:
        """Take a step with the canaries that it draws, and score what it releases.

        Args:
            optimizer: The private optimizer.
            total: The clipped sum of the rows.
            variables: The trainable variables.
        """
        clipping = optimizer.current_clipping
        clip_norm = clipping.state["clip_norm"][0]
        draws = Draws(optimizer.seed_of_layers).at(_PLACE)
        number = len(self.is_member)
        if self._probability < 1.0:
            normal = backend.gaussian((number,), draws.seed, ops.zeros((), "int32"), _STREAM)
            is_drawn = normal > float(scipy.stats.norm.isf(self._probability))
        else:
            is_drawn = ops.ones((number,), "bool")
        present = ops.logical_and(is_drawn, ops.convert_to_tensor(self.is_member))
        sizes = [math.prod(variable.shape) for variable in variables]
        starts = np.cumsum([0, *sizes])
        counts = np.bincount(np.arange(starts[-1]) % number, minlength=number).astype("float32")
        roots = ops.convert_to_tensor(np.sqrt(counts))
        height = _NORM * clip_norm / roots
        parts = [
            _OwnCoordinates(tuple(variable.shape), int(start), height)
            for variable, start in zip(variables, starts, strict=False)
        ]
        gradients = BatchGradients(variables, [*parts], number, most_rows=number)
        sums = clipped_contributions(gradients, present, clipping)[0].sums
        both = ClippedSum.of(total.totals.plus([ops.zeros_like(total.statistics), *sums]))
        release = optimizer.apply(replace(both, public_gradients=total.public_gradients), variables)
        told = [
            ops.reshape(mean * release.expected_units - known, (-1,))
            for mean, known in zip(release.means, total.gradients, strict=True)
        ]
        padding = ops.zeros((-int(starts[-1]) % number,), "float32")
        rows = ops.reshape(ops.concatenate([*told, padding]), (-1, number))
        y = ops.sum(rows, axis=0) / (roots * clip_norm)
        stddev = release.mean_stddevs[0] * release.expected_units / clip_norm
        ratio = (2.0 * y - 1.0) / (2.0 * ops.square(ops.maximum(stddev, _LEAST_STDDEV)))
        if self._probability < 1.0:
            q = self._probability
            ratio = ops.logaddexp(
                ops.convert_to_tensor(math.log1p(-q), "float32"), math.log(q) + ratio
            )
        self.metric.update_state(ratio)


class _OwnCoordinates(PerExampleGradient):
    """The gradients of canaries with respect to a variable, of which each has some coordinates.

    Coordinate k of all weights is that of canary `k % num_canaries`.

    Args:
        shape: The shape of the variable.
        start: The number of the variable's first coordinate among all weights.
        height: The size of each canary's coordinates, float32 of shape `(num_canaries,)`.
    """

    def __init__(self, shape: tuple[int, ...], start: int, height: Tensor) -> None:
        self._shape, self._start, self._height = shape, start, height

    def squared_norms(self) -> Tensor:
        """Return squared norms, float32 of shape `(num_canaries,)`."""
        number = int(self._height.shape[0])
        owners = (self._start + np.arange(math.prod(self._shape))) % number
        counts = np.bincount(owners, minlength=number).astype("float32")
        return ops.square(self._height) * ops.convert_to_tensor(counts)

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """Return the sum over the canaries, of the variable's shape."""
        number, size = int(self._height.shape[0]), math.prod(self._shape)
        values = ops.where(finite, factors, 0.0) * self._height
        values = ops.roll(values, -(self._start % number))
        return ops.reshape(ops.tile(values, (-(-size // number),))[:size], self._shape)

    def materialize(self) -> Tensor:
        """Return all gradients, of shape `(num_canaries, *shape)`."""
        rows = [self.weighted_sum(row, row > 0.0) for row in ops.eye(self._height.shape[0])]
        return ops.stack(rows)
