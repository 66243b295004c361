"""Gradients of tables whose rows were looked up."""

import functools
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.forms.written_out import (
    UNDERFLOW,
    SumOverPositions,
    guard_of_sums,
    size_of_row,
)

Tensor = Any


class Lookup(SumOverPositions):
    """Rows of a table that were looked up: `sum_t onehot(ids[i, t]) outer cotangents[i, t]`.

    An example with an id outside the table gets NaN gradients and so contributes nothing, because
    backends differ in what such an id does.

    Args:
        ids: Integer tensor of shape `(batch_size, positions)`.
        cotangents: Tensor of shape `(batch_size, positions, output_size)`.
        shape: The table's shape `(num_rows, output_size)`.
    """

    form = "Gram of rows"

    def __init__(self, ids: Tensor, cotangents: Tensor, shape: Sequence[int]) -> None:
        ids = ops.cast(ids, "int32")
        ids = ops.where(ids < 0, ids + shape[0], ids)
        is_row = ops.logical_and(ids >= 0, ids < shape[0])
        cotangents = ops.where(is_row[..., None], ops.cast(cotangents, "float32"), float("nan"))
        super().__init__(ops.where(is_row, ids, 0), cotangents, shape)
        self.ids, self.cotangents = self.factors

    @property
    def numbers_per_example(self) -> int | None:
        """The cotangents, and three matrices over pairs of positions."""
        size, positions = size_of_row(self.cotangents), self.ids.shape[1]
        return None if size is None else size + 3 * int(positions) ** 2

    def squared_norms(self) -> Tensor:
        """Return squared norms: a row with n positions adds n times the square of one share.

        The guard covers rounding of the shares, also by compilers that round them differently for
        the weighted sum.
        """
        squares = self._counts * ops.sum(ops.square(self.shares), axis=2)
        sizes = ops.sqrt(ops.sum(ops.square(self.cotangents), axis=2) + UNDERFLOW)
        largest = ops.square(ops.sum(self._equal * sizes[:, None, :], axis=2)) / self._counts
        guard = guard_of_sums(2.0 * self._counts + 2.0)
        return ops.sum(squares + guard * largest, axis=1)

    @functools.cached_property
    def shares(self) -> Tensor:
        """What each position adds to the sum: its row's gradient, in equal parts.

        Positions of one row cancel here, within the example. If they cancelled in the sum over the
        batch, large numbers would take the last digits of other examples with them.
        """
        return ops.matmul(self._equal, self.cotangents) / self._counts[..., None]

    @functools.cached_property
    def _equal(self) -> Tensor:
        """One where two positions looked up the same row: `(batch_size, positions, positions)`."""
        return ops.cast(self.ids[:, :, None] == self.ids[:, None, :], "float32")

    @functools.cached_property
    def _counts(self) -> Tensor:
        """How many positions look up the row of each position."""
        return ops.sum(self._equal, axis=2)

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """Return one segment sum over all positions of all examples."""
        weighted = backend.masked(finite, factors[:, None, None] * self.shares)
        rows = ops.reshape(weighted, (-1, self.shape[1]))
        return backend.sum_of_rows(rows, ops.reshape(self.ids, (-1,)), self.shape[0])

    def rows(self, rows: slice) -> "Lookup":
        """Return the gradients of some examples, with the same shares."""
        part: Lookup = super().rows(rows)
        part.shares = self.shares[rows]
        return part

    def materialize(self) -> Tensor:
        """Return the tables, of shape `(batch_size, num_rows, output_size)`."""
        onehot = ops.one_hot(self.ids, self.shape[0], dtype="float32")
        return ops.matmul(ops.transpose(onehot, (0, 2, 1)), self.cotangents)
