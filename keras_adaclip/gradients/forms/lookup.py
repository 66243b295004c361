"""Gradients of tables whose rows were looked up."""

import functools
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.forms.outer_product import OuterProduct
from keras_adaclip.gradients.forms.per_example_gradient import (
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
        self._num_added: Tensor = 0.0

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
        """Squared norms: a row with n positions adds n times the squared share of each of them.

        The guard covers compilers that round the shares of the weighted sum in another way.
        """
        squares = self._counts * ops.sum(ops.square(self.shares), axis=2)
        equal = ops.cast(self._equal, "float32")
        largest = ops.square(ops.sum(equal * self._sizes[:, None, :], axis=2)) / self._counts
        guard = guard_of_sums(2.0 * self._counts + 2.0 + self._num_added)
        return ops.sum(squares + guard * largest, axis=1)

    @functools.cached_property
    def shares(self) -> Tensor:
        """What each position adds to the sum: its row's gradient, in equal parts.

        Positions of one row cancel here, within the example, and not in the sum over the batch,
        where large numbers would take the last digits of other examples with them.
        """
        equal = ops.cast(self._equal, "float32")
        return ops.matmul(equal, self.cotangents) / self._counts[..., None]

    @functools.cached_property
    def _sizes(self) -> Tensor:
        """How large the gradient of each position is if nothing in it cancels."""
        return ops.sqrt(ops.sum(ops.square(self.cotangents), axis=2) + UNDERFLOW)

    @functools.cached_property
    def _equal(self) -> Tensor:
        """Which positions looked up the same row, of shape `(batch_size, positions, positions)`."""
        return self.ids[:, :, None] == self.ids[:, None, :]

    @functools.cached_property
    def _counts(self) -> Tensor:
        return ops.sum(ops.cast(self._equal, "float32"), axis=2)

    def with_added(self, rows: Tensor, sizes: Tensor, num_terms: Tensor) -> "Lookup":
        """The gradient with more in the rows of the table that were looked up.

        Args:
            rows: of shape `(batch_size, positions, output_size)`: at each position what is added
                to its row, once however many positions look it up.
            sizes: how large that is if nothing in it cancels, of shape `(batch_size, positions)`.
            num_terms: how many terms it is the sum of.
        """
        whole = Lookup(self.ids, self.cotangents + rows / self._counts[..., None], self.shape)
        whole._sizes = self._sizes + sizes / self._counts
        whole._num_added = num_terms
        return whole

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """One segment sum over all positions of all examples."""
        weighted = backend.masked(finite, factors[:, None, None] * self.shares)
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
    """A table that was looked up and multiplied with.

    What the product adds to rows that were looked up joins the lookup, `<onehot(id), a> g`, and is
    left out of the product. So the two have no row in common: their squared norms add up, and
    nothing of one cancels what is in the other, neither in the norm nor in the sum over the batch.

    Args:
        lookup: the gradient of the lookups.
        product: that of the matrix products; its inputs have one element for each row of the
            table.
    """

    def __init__(self, lookup: Lookup, product: OuterProduct) -> None:
        self._lookup = lookup
        self._product = product

    @functools.cached_property
    def _parts(self) -> tuple[Lookup, OuterProduct]:
        """What is in the rows that were looked up, and what is in the others."""
        lookup, product = self._lookup, self._product
        # Shape (batch_size, positions of the product, positions of the lookup).
        met = ops.take_along_axis(product.inputs, lookup.ids[:, None, :], axis=2)
        rows = ops.matmul(ops.transpose(met, (0, 2, 1)), product.cotangents)
        of_cotangents = ops.sqrt(ops.sum(ops.square(product.cotangents), axis=2) + UNDERFLOW)
        sizes = ops.sum(ops.abs(met) * of_cotangents[:, :, None], axis=1)
        num_terms = ops.cast(ops.shape(met)[1], "float32")
        batch_size, positions = ops.shape(lookup.ids)[:2]
        examples = ops.repeat(ops.arange(batch_size, dtype="int32"), positions)
        indices = ops.stack([examples, ops.reshape(lookup.ids, (-1,))], axis=1)
        times = ops.scatter(
            indices,
            ops.ones((batch_size * positions,), "float32"),
            (batch_size, lookup.shape[0]),
        )
        others = ops.where(times[:, None, :] > 0.0, 0.0, product.inputs)
        with_added = lookup.with_added(rows, sizes, num_terms)
        return with_added, OuterProduct(others, product.cotangents, product.shape)

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
        """The sum of those of both."""
        lookup, product = self._parts
        return lookup.squared_norms() + product.squared_norms()

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """The sum of both."""
        lookup, product = self._parts
        return lookup.weighted_sum(factors, finite) + product.weighted_sum(factors, finite)

    def materialize(self) -> Tensor:
        """The tables, of shape `(batch_size, num_rows, output_size)`."""
        return self._lookup.materialize() + self._product.materialize()

    def merged(self, num_copies: int) -> "LookupAndProduct":
        """The copies' positions behind each other."""
        return LookupAndProduct(self._lookup.merged(num_copies), self._product.merged(num_copies))
