"""Matrix products that stand side by side: grouped convolutions, einsums with shared axes."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.forms.outer_product import OuterProduct
from keras_adaclip.gradients.forms.per_example_gradient import (
    Materialized,
    PerExampleGradient,
)

Tensor = Any


class GroupedOuterProduct(PerExampleGradient):
    """`sum_t outer(inputs[i, k, t], cotangents[i, k, t])` for each group k, in any order of axes.

    A group of an example is to `OuterProduct` an example of its own; the squared norms of the
    groups add up.

    Args:
        inputs: tensor of shape `(batch_size, groups, positions, input_size)`.
        cotangents: tensor of shape `(batch_size, groups, positions, output_size)`.
        shape: the variable's shape, of `groups * input_size * output_size` elements.
        sizes: how groups, inputs and outputs are made up of axes, in this order; None stands for
            `(groups, input_size, output_size)`.
        order: the numbers of these axes in the order that the variable has them; None stands for
            the order they have.
    """

    def __init__(
        self,
        inputs: Tensor,
        cotangents: Tensor,
        shape: Sequence[int],
        sizes: Sequence[int] | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        self.inputs = ops.cast(inputs, "float32")
        self.cotangents = ops.cast(cotangents, "float32")
        self.shape = tuple(shape)
        self._blocks = (inputs.shape[1], inputs.shape[3], cotangents.shape[3])
        self._sizes = tuple(self._blocks if sizes is None else sizes)
        self._order = tuple(range(len(self._sizes)) if order is None else order)
        self._rows = OuterProduct(
            _groups_as_rows(self.inputs), _groups_as_rows(self.cotangents), self._blocks[1:]
        )

    @property
    def form(self) -> str:
        """How the norm is taken."""
        return self._rows.form

    @property
    def numbers_held(self) -> int | None:
        """How many float32 numbers of an example are held."""
        of_group = self._rows.numbers_held
        return None if of_group is None else self._blocks[0] * of_group

    @property
    def numbers_touched(self) -> int:
        """Those of all groups."""
        return int(self._blocks[0]) * self._rows.numbers_touched

    def squared_norms(self) -> Tensor:
        """The sum of the groups' squared norms."""
        return ops.sum(ops.reshape(self._rows.squared_norms(), (-1, self._blocks[0])), axis=1)

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """One matrix product a group, or the weighted sum of the products where they are known."""
        if self.inputs.shape[2] != 1 and not self._rows.uses_gram:
            products = ops.reshape(self._rows.materialize(), (-1, *self._blocks))
            return self._arranged(Materialized(products).weighted_sum(factors, finite), ())
        inputs = backend.masked(finite, self.inputs)
        cotangents = factors[:, None, None, None] * self.cotangents
        cotangents = backend.masked(finite, cotangents)
        inputs, cotangents = (
            ops.reshape(ops.transpose(value, (1, 0, 2, 3)), (self._blocks[0], -1, value.shape[3]))
            for value in (inputs, cotangents)
        )
        return self._arranged(ops.matmul(ops.transpose(inputs, (0, 2, 1)), cotangents), ())

    def materialize(self) -> Tensor:
        """The products, of shape `(batch_size, *shape)`."""
        return self._arranged(self._rows.materialize(), (-1,))

    def merged(self, num_copies: int) -> "GroupedOuterProduct":
        """The copies' positions behind each other."""

        def joined(value: Tensor) -> Tensor:
            _, groups, positions, size = ops.shape(value)
            value = ops.reshape(value, (-1, num_copies, groups, positions, size))
            value = ops.transpose(value, (0, 2, 1, 3, 4))
            return ops.reshape(value, (-1, groups, num_copies * positions, size))

        return GroupedOuterProduct(
            joined(self.inputs), joined(self.cotangents), self.shape, self._sizes, self._order
        )

    def _arranged(self, blocks: Tensor, leading: tuple[int, ...]) -> Tensor:
        """From `(*leading, groups, inputs, outputs)` to the variable's axes."""
        kept = len(leading)
        values = ops.reshape(blocks, (*leading, *self._sizes))
        values = ops.transpose(values, (*range(kept), *(kept + axis for axis in self._order)))
        return ops.reshape(values, (*leading, *self.shape))


def _groups_as_rows(value: Tensor) -> Tensor:
    """From `(batch_size, groups, ...)` to `(batch_size * groups, ...)`."""
    return ops.reshape(value, (-1, *ops.shape(value)[2:]))
