"""The per-example gradients of a whole model, in the form in which each variable has them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_adaclip import backend
from keras_adaclip.clipping import ParameterGroups
from keras_adaclip.gradients.forms import PerExampleGradient, shifted_and_scaled

Tensor = Any


@dataclass(frozen=True)
class BatchGradients:
    """The per-example gradients of every trainable variable.

    Args:
        variables: the trainable variables.
        parts: the gradients of each, None where it was not used.
        num_rows: the number of rows of the batch.
    """

    variables: list[keras.Variable]
    parts: list[PerExampleGradient | None]
    num_rows: Any

    @property
    def numbers_touched(self) -> int:
        """How many float32 numbers of an example are written for norms and sums, at least."""
        return sum(part.numbers_touched for part in self.parts if part is not None)

    def in_coordinates(self, coordinates: Sequence[tuple[Tensor, Tensor]]) -> "BatchGradients":
        """The gradients as `(g - centre) / scale`, written out.

        Args:
            coordinates: centre and scale of each variable.
        """
        return BatchGradients(
            self.variables,
            [
                shifted_and_scaled(part, centre, scale, self.num_rows)
                for part, (centre, scale) in zip(self.parts, coordinates, strict=True)
            ],
            self.num_rows,
        )

    def squared_norms(self, groups: ParameterGroups) -> Tensor:
        """Squared norms of each group's part, float32 of shape `(batch_size, num_groups)`.

        Args:
            groups: the groups of variables.
        """
        norms: list[list[Tensor]] = [[] for _ in groups.names]
        for part, number in zip(self.parts, groups.assignment, strict=True):
            if part is not None:
                with backend.full_precision():
                    norms[number].append(part.squared_norms())
        unused = ops.zeros((self.num_rows,), "float32")
        return ops.stack(
            [sum(of_group[1:], of_group[0]) if of_group else unused for of_group in norms], axis=1
        )

    def weighted_sums(
        self, factors: Tensor, finite: Tensor, groups: ParameterGroups
    ) -> list[Tensor]:
        """The sum over the batch of `factors[i, k]` times gradient i, for each variable of group k.

        Args:
            factors: float32 of shape `(batch_size, num_groups)`, zero where not finite.
            finite: bool of shape `(batch_size,)`.
            groups: the groups of the variables.
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
