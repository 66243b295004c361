"""The contributions of units to a step: their norms, and their clipped sum.

A float32 sum of n contributions of norm C rounds at about `n C 2^-24`. Removing one unit changes
how all that follow are rounded. So one float32 sum covers few rows, and what the addition of such
sums loses is kept beside them until the noise is in. Rounding then hides no unit and moves no
other.

Removing a unit must change few of these sums: `sampling` gives the units that a step draws secret
places, so that neighbours can be coupled with the last unit in the place of the removed one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.clipping import Clipper, ParameterGroups
from keras_adaclip.gradients.forms import Materialized, PerExampleGradient

Tensor = Any
# In an order that is made for it, rounding of n contributions moves up to n^2 2^-26 of the clipping
# norm: 0.001 with 256. In random order it moves some 3e-4 with 1,024.
MOST_ROWS, MOST_DRAWN_ROWS = 256, 1024


@dataclass(frozen=True)
class Totals:
    """Sums, and what float32 has lost of them.

    Args:
        sums: Float32 tensors.
        remainders: What is to be added to each of the sums; None stands for zeros.
    """

    sums: list[Tensor]
    remainders: list[Tensor] | None = None

    @classmethod
    def zeros(cls, shapes: Sequence[Sequence[int]]) -> "Totals":
        """Return sums over nothing."""
        sums, remainders = ([ops.zeros(shape, "float32") for shape in shapes] for _ in range(2))
        return cls(sums, remainders)

    @classmethod
    def of_flat(cls, tensors: Sequence[Tensor]) -> "Totals":
        """Return what `flat` has made a list of."""
        half = len(tensors) // 2
        return cls(list(tensors[:half]), list(tensors[half:]))

    @property
    def flat(self) -> list[Tensor]:
        """The sums, then the remainders."""
        return [*self.sums, *(self.remainders or map(ops.zeros_like, self.sums))]

    def plus(self, other: "Totals | list[Tensor]") -> "Totals":
        """Return the sums with further ones, given with or without remainders."""
        other = other if isinstance(other, Totals) else Totals(other)
        pairs = [two_sum(*pair) for pair in zip(self.sums, other.sums, strict=True)]
        remainders = [lost for _, lost in pairs]
        for further in (self.remainders, other.remainders):
            if further is not None:
                remainders = [one + two for one, two in zip(remainders, further, strict=True)]
        return Totals([total for total, _ in pairs], remainders)


@dataclass(frozen=True)
class BatchGradients:
    """The contribution of every unit to every trainable variable.

    Args:
        variables: The trainable variables.
        parts: The contributions to each variable, None if it was not used.
        num_rows: The number of rows of the batch.
        most_rows: Number of rows that one float32 sum covers at most.
    """

    variables: list[keras.Variable]
    parts: list[PerExampleGradient | None]
    num_rows: Any
    most_rows: int = MOST_ROWS

    def in_coordinates(self, coordinates: Sequence[tuple[Tensor, Tensor]]) -> "BatchGradients":
        """Return the contributions as `(g - centre) / scale`, written out.

        Args:
            coordinates: Centre and scale of each variable.
        """
        parts: list[PerExampleGradient | None] = []
        for part, (centre, scale) in zip(self.parts, coordinates, strict=True):
            unused = Materialized(ops.zeros((self.num_rows, *centre.shape), "float32"))
            values = (part or unused).materialize()
            parts.append(Materialized((values - centre) / scale))
        return replace(self, parts=parts)

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

    def weighted_sums(self, factors: Tensor, finite: Tensor, groups: ParameterGroups) -> Totals:
        """Return the sum of `factors[i, k]` times contribution i, for each variable of group k.

        Args:
            factors: Float32 of shape `(batch_size, num_groups)`, zero where not finite.
            finite: Bool of shape `(batch_size,)`.
            groups: The groups of the variables.
        """

        def sum_of(rows: slice | None) -> list[Tensor]:
            """Return the sums over some rows, None for all."""
            sums = []
            members = zip(self.variables, self.parts, groups.assignment, strict=True)
            for variable, part, number in members:
                if part is None:
                    sums.append(ops.zeros(variable.shape, "float32"))
                elif rows is None:
                    sums.append(part.weighted_sum(factors[:, number], finite))
                else:
                    sums.append(part.rows(rows).weighted_sum(factors[rows, number], finite[rows]))
            return sums

        with backend.full_precision():
            if not isinstance(self.num_rows, int) or self.num_rows <= self.most_rows:
                return Totals(sum_of(None))
            starts = range(0, self.num_rows, self.most_rows)
            total = Totals.zeros([variable.shape for variable in self.variables])
            for start in starts:
                rows = slice(start, min(start + self.most_rows, self.num_rows))
                total = total.plus(sum_of(rows))
            return total


def clipped_contributions(
    contributions: BatchGradients,
    present: Tensor,
    clipping: Clipper,
    is_sound: Tensor | None = None,
    weights: Tensor | None = None,
) -> tuple[Totals, Tensor, Tensor, Tensor]:
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
        The sum for each variable; norms of shape `(batch_size, num_groups)`, zero for units that
        are not finite; whether each unit is present and finite, of shape `(batch_size,)`; factors
        of shape `(batch_size, num_groups)`.
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


def two_sum(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return the float32 sum of two tensors, and what the sum lacks, which is exact.

    Reference:
        Knuth 1997, "The art of computer programming", volume 2, section 4.2.2, theorem B.
    """
    total = first + second
    part = total - first
    return total, (first - (total - part)) + (second - part)
