"""Gradients of grouped matrix products: grouped convolutions, einsums with shared axes."""

import copy
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.forms.outer_product import OuterProduct
from keras_adaclip.gradients.forms.written_out import Materialized, PerExampleGradient

Tensor = Any


class GroupedOuterProduct(PerExampleGradient):
    """`sum_t outer(inputs[i, k, t], cotangents[i, k, t])` for each group k, in any order of axes.

    Each group of an example is treated as an example of an `OuterProduct`. The squared norms of
    the groups add up.

    Args:
        inputs: Tensor of shape `(batch_size, groups, positions, input_size)`.
        cotangents: Tensor of shape `(batch_size, groups, positions, output_size)`.
        shape: The variable's shape, of `groups * input_size * output_size` elements.
        sizes: The sizes of the axes that make up groups, inputs and outputs, in this order. None
            means `(groups, input_size, output_size)`.
        order: The positions of these axes in the order of the variable. None keeps their order.
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
        self.form = self._rows.form

    @property
    def numbers_per_example(self) -> int | None:
        """The numbers of all groups."""
        in_group = self._rows.numbers_per_example
        return None if in_group is None else int(self._blocks[0]) * in_group

    def squared_norms(self) -> Tensor:
        """Return the sum of the groups' squared norms."""
        return ops.sum(ops.reshape(self._rows.squared_norms(), (-1, self._blocks[0])), axis=1)

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """Return one matrix product per group, or the weighted sum of written-out gradients."""
        if self.form == "written out":
            products = ops.reshape(self._rows.materialize(), (-1, *self._blocks))
            return self._arranged(Materialized(products).weighted_sum(factors, finite))[0]
        inputs = backend.masked(finite, self.inputs)
        cotangents = backend.masked(finite, factors[:, None, None, None] * self.cotangents)
        return self._arranged(ops.einsum("bkti,bkto->kio", inputs, cotangents))[0]

    def rows(self, rows: slice) -> "GroupedOuterProduct":
        """Return the gradients of some examples; what is written out stays so."""
        part = copy.copy(self)
        part.inputs, part.cotangents = self.inputs[rows], self.cotangents[rows]
        groups = int(self._blocks[0])
        part._rows = self._rows.rows(slice(rows.start * groups, rows.stop * groups))
        return part

    def materialize(self) -> Tensor:
        """Return the gradients, of shape `(batch_size, *shape)`."""
        return self._arranged(self._rows.materialize())

    def _arranged(self, blocks: Tensor) -> Tensor:
        """Rearrange blocks of `(groups, inputs, outputs)` to `(number of blocks, *shape)`."""
        values = ops.reshape(blocks, (-1, *self._sizes))
        values = ops.transpose(values, (0, *(1 + axis for axis in self._order)))
        return ops.reshape(values, (-1, *self.shape))


def _groups_as_rows(value: Tensor) -> Tensor:
    """Reshape `(batch_size, groups, ...)` to `(batch_size * groups, ...)`."""
    return ops.reshape(value, (-1, *ops.shape(value)[2:]))
