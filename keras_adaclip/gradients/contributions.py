"""The contributions of all units of a batch: their norms, factors and clipped sums."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.clipping import Clipper, ParameterGroups
from keras_adaclip.gradients.forms import Materialized, PerExampleGradient

Tensor = Any


@dataclass(frozen=True)
class BatchGradients:
    """The contribution of every unit to every trainable variable.

    Args:
        variables: The trainable variables.
        parts: The contributions to each variable, None if it was not used.
        num_rows: The number of rows of the batch.
    """

    variables: list[keras.Variable]
    parts: list[PerExampleGradient | None]
    num_rows: Any

    @property
    def numbers_per_example(self) -> int:
        """Float32 numbers written per example for norms and sums, as far as known."""
        return sum(part.numbers_per_example or 0 for part in self.parts if part is not None)

    def in_coordinates(self, coordinates: Sequence[tuple[Tensor, Tensor]]) -> "BatchGradients":
        """Return the contributions as `(g - centre) / scale`, written out.

        Args:
            coordinates: Centre and scale of each variable.
        """
        parts: list[PerExampleGradient | None] = []
        for part, (centre, scale) in zip(self.parts, coordinates, strict=True):
            unused = Materialized(ops.zeros((self.num_rows, *centre.shape)))
            values = (part or unused).materialize()
            parts.append(Materialized((values - centre) / scale))
        return BatchGradients(self.variables, parts, self.num_rows)

    def squared_norms(self, groups: ParameterGroups) -> Tensor:
        """Return squared norms of each group's part, float32 `(batch_size, num_groups)`.

        Args:
            groups: The groups of the trainable variables.
        """
        norms: list[list[Tensor]] = [[] for _ in groups.names]
        for part, number in zip(self.parts, groups.assignment, strict=True):
            if part is not None:
                with backend.full_precision():
                    norms[number].append(part.squared_norms())
        unused = ops.zeros((self.num_rows,), "float32")
        return ops.stack([sum(parts[1:], parts[0]) if parts else unused for parts in norms], axis=1)

    def weighted_sums(
        self, factors: Tensor, finite: Tensor, groups: ParameterGroups
    ) -> list[Tensor]:
        """Return the sum of `factors[i, k]` times contribution i, for each variable of group k.

        Args:
            factors: Float32 of shape `(batch_size, num_groups)`, zero where not finite.
            finite: Bool of shape `(batch_size,)`.
            groups: The groups of the variables.
        """
        with backend.full_precision():
            return [
                ops.zeros(variable.shape, "float32")
                if part is None
                else part.weighted_sum(factors[:, number], finite)
                for variable, part, number in zip(
                    self.variables, self.parts, groups.assignment, strict=True
                )
            ]


def clipped_contributions(
    contributions: BatchGradients,
    present: Tensor,
    clipping: Clipper,
    is_sound: Tensor | None = None,
    weights: Tensor | None = None,
) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
    """Return the sum of the units' clipped contributions.

    Args:
        contributions: The contribution of each unit to each variable.
        present: Bool of shape `(batch_size,)`, false for padding.
        clipping: The clipping strategy with the thresholds of this step.
        is_sound: Bool of shape `(batch_size,)`, false for units that add nothing, as if they were
            not finite. None means all true.
        weights: Float32 of shape `(batch_size,)`, factors of the clipped contributions, cut to the
            interval from 0 to 1. None means ones.

    Returns:
        One sum per variable; norms of shape `(batch_size, num_groups)`, zero for units that are
        not finite; whether each unit is present and finite, of shape `(batch_size,)`; factors of
        shape `(batch_size, num_groups)`.
    """
    coordinates = clipping.coordinates
    if coordinates is not None:
        contributions = contributions.in_coordinates(coordinates)
    squared_norms = contributions.squared_norms(clipping.groups)
    if is_sound is not None:
        squared_norms = ops.where(is_sound[:, None], squared_norms, float("nan"))
    norms = ops.sqrt(squared_norms)
    finite = ops.logical_and(ops.all(ops.isfinite(norms), axis=1), present)
    norms = ops.where(finite[:, None], norms, 0.0)
    factors = clipping.factors(norms, finite)
    if weights is not None:
        # No contribution exceeds its bound, whatever the weights are.
        factors = factors * ops.clip(weights, 0.0, 1.0)[:, None]
    sums = contributions.weighted_sums(factors, finite, clipping.groups)
    return sums, norms, finite, factors
