"""Gradients of tables whose rows were looked up."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.factored.outer_product import OuterProduct
from keras_adaclip.gradients.factored.per_example_gradient import (
    ROUNDING,
    UNDERFLOW,
    PerExampleGradient,
    guard_of_sums,
    positions_joined,
    size_of_row,
)

Tensor = Any


class Lookup(PerExampleGradient):
    """Rows of a table that were looked up: `sum_t onehot(ids[i, t]) outer cotangents[i, t]`.

    Args:
        ids: integer tensor of shape `(batch_size, positions)`.
        cotangents: tensor of shape `(batch_size, positions, output_size)`.
        shape: the table's shape `(num_rows, output_size)`.

    An example that looks up a row which the table does not have gets gradients that are not a
    number, and so contributes nothing: backends differ in what such an id does.
    """

    def __init__(self, ids: Tensor, cotangents: Tensor, shape: Sequence[int]) -> None:
        ids = ops.cast(ids, "int32")
        self.shape = tuple(shape)
        ids = ops.where(ids < 0, ids + self.shape[0], ids)
        is_row = ops.logical_and(ids >= 0, ids < self.shape[0])
        self.ids = ops.where(is_row, ids, 0)
        self.cotangents = ops.where(
            is_row[..., None], ops.cast(cotangents, "float32"), float("nan")
        )

    @property
    def form(self) -> str:
        """How the norm is taken."""
        return "Gram of rows"

    @property
    def numbers_held(self) -> int | None:
        """How many float32 numbers of an example are held."""
        return size_of_row(self.cotangents)

    @property
    def numbers_touched(self) -> int:
        """The cotangents, and what is known of the pairs of positions."""
        positions = self.ids.shape[1]
        return (self.numbers_held or 0) + (0 if positions is None else 3 * int(positions) ** 2)

    def squared_norms(self) -> Tensor:
        """Each position has the sum of its row of the table: a row counts once for each position.

        So nothing cancels behind the sums, which err as the weighted sum does.
        """
        return ops.sum(self._rows_and_sizes()[0], axis=1)

    def _rows_and_sizes(self) -> tuple[Tensor, Tensor]:
        """The share of each position in the squared norm, and in what it is if nothing cancels."""
        equal = ops.cast(self.ids[:, :, None] == self.ids[:, None, :], "float32")
        sizes = ops.sqrt(ops.sum(ops.square(self.cotangents), axis=2))
        counts = ops.sum(equal, axis=2)
        rows = ops.sum(ops.square(ops.matmul(equal, self.cotangents)), axis=2)
        largest = ops.square(ops.sum(equal * sizes[:, None, :], axis=2))
        return (rows + guard_of_sums(2.0 * counts + 2.0) * largest) / counts, largest / counts

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """One segment sum over all positions of all examples."""
        weighted = backend.zero_where_not(finite, factors[:, None, None] * self.cotangents)
        return ops.segment_sum(
            ops.reshape(weighted, (-1, self.shape[1])),
            ops.reshape(self.ids, (-1,)),
            num_segments=self.shape[0],
        )

    def materialize(self) -> Tensor:
        """The tables, of shape `(batch_size, num_rows, output_size)`."""
        onehot = ops.one_hot(self.ids, self.shape[0], dtype="float32")
        return ops.matmul(ops.transpose(onehot, (0, 2, 1)), self.cotangents)

    def merged(self, num_copies: int) -> "Lookup":
        """The copies' positions behind each other."""
        ids = positions_joined(self.ids, num_copies)
        return Lookup(ids, positions_joined(self.cotangents, num_copies), self.shape)


class LookupAndProduct(PerExampleGradient):
    """A table that was looked up and multiplied with: `|l + p|^2 = |l|^2 + |p|^2 + 2 <l, p>`.

    The inner product needs no table: `<onehot(id) outer c, a outer g> = a[id] <c, g>`.

    Args:
        lookup: the gradient of the lookups.
        product: that of the matrix products; its inputs have one element for each row of the
            table.
    """

    def __init__(self, lookup: Lookup, product: OuterProduct) -> None:
        self._lookup = lookup
        self._product = product

    @property
    def form(self) -> str:
        """How the norm is taken."""
        return "Gram of both"

    @property
    def numbers_held(self) -> int | None:
        """How many float32 numbers of an example are held."""
        lookup, product = self._lookup.numbers_held, self._product.numbers_held
        if lookup is None or product is None:
            return None
        return lookup + product

    @property
    def numbers_touched(self) -> int:
        """Those of both."""
        return self._lookup.numbers_touched + self._product.numbers_touched

    def squared_norms(self) -> Tensor:
        """From the norms of both and their inner product, over the pairs of positions.

        With what rounding takes off each: of n numbers that are added up, `n u` of their sizes.
        """
        lookup, product = self._lookup, self._product
        # Shape (batch_size, positions of the product, positions of the lookup).
        met = ops.take_along_axis(product.inputs, lookup.ids[:, None, :], axis=2)
        of_cotangents = ops.matmul(product.cotangents, ops.transpose(lookup.cotangents, (0, 2, 1)))
        sizes = [
            ops.sqrt(ops.sum(ops.square(part.cotangents), axis=2) + UNDERFLOW)
            for part in (product, lookup)
        ]
        of_pairs = ops.abs(met) * sizes[0][:, :, None] * sizes[1][:, None, :]
        positions = [ops.cast(size, "float32") for size in ops.shape(of_pairs)[1:]]
        error = ROUNDING * (lookup.shape[1] + positions[0] + positions[1] + 8)
        rows = 2.0 * (ops.sum(met * of_cotangents, axis=2) + error * ops.sum(of_pairs, axis=2))
        of_lookup, largest = lookup._rows_and_sizes()
        error = ROUNDING * (lookup.shape[1] + 3.0 * positions[1] + 8)
        of_lookup = ops.sum(of_lookup, axis=1) + error * ops.sum(largest, axis=1)
        # The Gram form has what it takes in it, the two norms of one position have not.
        error = 8 if product.uses_gram else sum(product.shape) + 8
        of_product = (1.0 + ROUNDING * error) * product.squared_norms()
        return ops.maximum(of_lookup + of_product + ops.sum(rows, axis=1), 0.0)

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """The sum of both."""
        return self._lookup.weighted_sum(factors, finite) + self._product.weighted_sum(
            factors, finite
        )

    def materialize(self) -> Tensor:
        """The tables, of shape `(batch_size, num_rows, output_size)`."""
        return self._lookup.materialize() + self._product.materialize()

    def merged(self, num_copies: int) -> "LookupAndProduct":
        """The copies' positions behind each other."""
        return LookupAndProduct(self._lookup.merged(num_copies), self._product.merged(num_copies))
