"""Gradients of the weights of matrix products, also of grouped ones."""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.forms import (
    ROUNDING,
    UNDERFLOW,
    Lookup,
    Materialized,
    PerExampleGradient,
    SumOverPositions,
    guard_of_sums,
    size_of_row,
)

Tensor = Any

# The cost of writing a number and reading it twice, in multiplications of a matrix product.
_PASSES = 60
# Largest ratio of gradients to inputs and cotangents at which gradients are written out.
_MOST_WRITTEN = 2
# Above this value of `T (d + p)`, sums are computed in blocks, which reduces their error.
_LARGEST_UNBLOCKED = 1 << 17
_SMALLEST_BLOCK, _MOST_BLOCKS = 128, 32


def gram_is_cheaper(positions: int | None, inputs: int, outputs: int) -> bool:
    """Return whether a norm costs less from Gram matrices than from written-out gradients.

    With T positions of d inputs and p outputs, Gram matrices take `T^2 (d + p)` operations. The
    gradients themselves take none, since the weighted sum needs them in any case, but they have to
    be written, read, and held until then.

    Args:
        positions: T, None if not known.
        inputs: D.
        outputs: P.
    """
    if positions is None:
        return False
    written = inputs * outputs
    if written > _MOST_WRITTEN * positions * (inputs + outputs):
        return True
    return positions**2 * (inputs + outputs + _PASSES) < _PASSES * written


class OuterProduct(SumOverPositions):
    """`sum_t outer(inputs[i, t], cotangents[i, t])`, the gradient of a matrix product's weights.

    With one position, the norm is a product of two norms. With T positions it is the Gram form
    `sum_(t, u) <a_t, a_u> <g_t, g_u>` if that is cheaper than writing out the gradients.

    Weights of groups are a sum for each group, `sum_t outer(inputs[i, k, t], cotangents[i, k, t])`.
    Their squared norms add up.

    Args:
        inputs: Tensor of shape `(batch_size, positions, input_size)`, or of shape `(batch_size,
            groups, positions, input_size)`.
        cotangents: Tensor of the same shape, but for `output_size` in the place of `input_size`.
        shape: The variable's shape, of `input_size * output_size` elements for each group.
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
        super().__init__(ops.cast(inputs, "float32"), ops.cast(cotangents, "float32"), shape)
        *groups, positions, input_size = self.factors[0].shape[1:]
        output_size = self.factors[1].shape[-1]
        self.axis, self._num_groups = 1 + len(groups), math.prod(groups)
        self._blocks = (*groups, input_size, output_size)
        self.layout = tuple(sizes or self._blocks), tuple(order or range(len(self._blocks)))
        # Each group of an example is treated as an example.
        self._rows = [_groups_as_rows(each) if groups else each for each in self.factors]
        self._products: Tensor | None = None
        if positions == 1:
            self.form, self._num_written = "two norms", 0
        elif gram_is_cheaper(positions, input_size, output_size):
            self.form, self._num_written = "Gram matrices", 2 * positions**2
        else:
            self.form, self._num_written = "written out", input_size * output_size

    @property
    def numbers_per_example(self) -> int | None:
        """Both factors, and the Gram matrices or gradients if there are any."""
        inputs, cotangents = map(size_of_row, self.factors)
        if inputs is None or cotangents is None:
            return None
        return inputs + cotangents + int(self._num_groups * self._num_written)

    def squared_norms(self) -> Tensor:
        """Return squared norms by the cheapest exact formula."""
        if self.form == "two norms":
            norms = ops.square(_row_norms(self._rows[0]) * _row_norms(self._rows[1]))[:, 0]
        elif self.form == "Gram matrices":
            norms = self._squared_norms_from_gram()
        else:
            norms = ops.sum(ops.square(self._written_out()), axis=(1, 2))
        if self.axis == 1:
            return norms
        return ops.sum(ops.reshape(norms, (-1, self._num_groups)), axis=1)

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """Return one matrix product a group, or the weighted sum of written-out gradients."""
        if self._products is not None:
            blocks = ops.reshape(self._products, (-1, *self._blocks))
            return self._arranged(Materialized(blocks).weighted_sum(factors, finite))[0]
        factors = ops.reshape(factors, (-1, *[1] * (self.axis + 1)))
        inputs = backend.masked(finite, self.factors[0])
        cotangents = backend.masked(finite, factors * self.factors[1])
        if self.axis > 1:
            return self._arranged(ops.einsum("bkti,bkto->kio", inputs, cotangents))[0]
        inputs = ops.reshape(inputs, (-1, self._blocks[0]))
        cotangents = ops.reshape(cotangents, (-1, self._blocks[1]))
        return ops.reshape(ops.matmul(ops.transpose(inputs), cotangents), self.shape)

    def rows(self, rows: slice) -> "OuterProduct":
        """Return the gradients of some examples; what is written out stays so."""
        part: OuterProduct = super().rows(rows)
        if self._products is not None:
            groups = self._num_groups
            part._products = self._products[rows.start * groups : rows.stop * groups]
        return part

    def materialize(self) -> Tensor:
        """Return the gradients, of shape `(batch_size, *shape)`."""
        return self._arranged(self._written_out())

    def _squared_norms_from_gram(self) -> Tensor:
        """Return values never less than the squared norms, whatever cancels in them."""
        in_blocks = _is_long(*self._rows)
        grams = [_gram(each, in_blocks) for each in self._rows]
        return _squared_norms(grams, [_row_norms(each) for each in self._rows])

    def _written_out(self) -> Tensor:
        """Return the gradients as matrices, computed once."""
        if self._products is None:
            inputs, cotangents = self._rows
            self._products = ops.matmul(ops.transpose(inputs, (0, 2, 1)), cotangents)
        return self._products

    def _arranged(self, blocks: Tensor) -> Tensor:
        """Rearrange blocks of `(groups, inputs, outputs)` to `(number of blocks, *shape)`."""
        sizes, order = self.layout
        values = ops.reshape(blocks, (-1, *sizes))
        values = ops.transpose(values, (0, *(1 + axis for axis in order)))
        return ops.reshape(values, (-1, *self.shape))


class TiedTable(PerExampleGradient):
    """The gradient of a table that is looked up and, elsewhere, multiplied with.

    The ids of a lookup stand for rows of an identity matrix, so that both uses are one sum of outer
    products over the positions of the lookup and those of the product. Neither these rows nor the
    gradient of one example are written, unless the gradient is smaller than what it is made of.

    Args:
        lookup: The gradient of the lookups.
        product: The gradient of the product, with one input for each row of the table.
    """

    def __init__(self, lookup: Lookup, product: OuterProduct) -> None:
        self._lookup, self._product = lookup, product
        positions = product.factors[0].shape[1]
        self.form, self._whole = "Gram matrices", None
        # A gradient then takes less room than the cotangents of the product.
        if positions is None or lookup.shape[1] <= positions:
            self.form, self._whole = "written out", Materialized(self.materialize())

    @property
    def numbers_per_example(self) -> int | None:
        """Those of both uses, and the Gram matrices of all positions."""
        if self._whole is not None:
            return self._whole.numbers_per_example
        one, other = self._lookup.numbers_per_example, self._product.numbers_per_example
        if one is None or other is None:
            return None
        return (
            one + other + 2 * (self._lookup.ids.shape[1] + self._product.factors[0].shape[1]) ** 2
        )

    def squared_norms(self) -> Tensor:
        """Return the norms of both uses together, added before the norm."""
        if self._whole is not None:
            return self._whole.squared_norms()
        inputs, after = self._product.factors
        ids, size = self._lookup.ids, ops.shape(inputs)[1]
        equal = ops.cast(ids[:, :, None] == ids[:, None, :], "float32")
        places = ops.repeat(ids[:, None, :], size, axis=1)
        mixed = ops.take_along_axis(inputs, places, axis=2)
        in_blocks = _is_long(inputs, after)
        gram, error = _gram(inputs, in_blocks)
        above = ops.concatenate([equal, ops.transpose(mixed, (0, 2, 1))], axis=2)
        below = ops.concatenate([mixed, gram], axis=2)
        cotangents = ops.concatenate([self._lookup.cotangents, after], axis=1)
        grams = [(ops.concatenate([above, below], axis=1), error), _gram(cotangents, in_blocks)]
        ones = ops.ones_like(ids, dtype="float32")
        sizes = ops.concatenate([ones, _row_norms(inputs)], axis=1)
        return _squared_norms(grams, [sizes, _row_norms(cotangents)])

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """Return the weighted sum of both uses."""
        if self._whole is not None:
            return self._whole.weighted_sum(factors, finite)
        parts = self._lookup, self._product
        one, other = (part.weighted_sum(factors, finite) for part in parts)
        return one + other

    def rows(self, rows: slice) -> PerExampleGradient:
        """Return the gradients of some examples."""
        if self._whole is not None:
            return self._whole.rows(rows)
        return TiedTable(self._lookup.rows(rows), self._product.rows(rows))

    def merged(self, num_copies: int) -> PerExampleGradient:
        """Return the sums over consecutive examples."""
        lookup: Any = self._lookup.merged(num_copies)
        product: Any = self._product.merged(num_copies)
        return TiedTable(lookup, product)

    def materialize(self) -> Tensor:
        """Return the gradients, of shape `(batch_size, num_rows, output_size)`."""
        return self._lookup.materialize() + self._product.materialize()


def combined(parts: Sequence[PerExampleGradient]) -> PerExampleGradient:
    """Return the gradient of a variable that was used several times.

    The parts are added *before* the norm. Sums over positions of one kind and shape are
    concatenated, lookups and products with one table are a `TiedTable`, anything else is written
    out.

    Args:
        parts: The gradients of the single uses, at least one.
    """
    if len(parts) == 1:
        return parts[0]
    lookups = [part for part in parts if isinstance(part, Lookup)]
    products = [part for part in parts if isinstance(part, OuterProduct)]
    if lookups and products and len(lookups) + len(products) == len(parts):
        lookup, product = combined(lookups), combined(products)
        if isinstance(lookup, Lookup) and isinstance(product, OuterProduct) and product.axis == 1:
            return TiedTable(lookup, product)
    sums = [part for part in parts if isinstance(part, SumOverPositions)]
    kinds = {(type(part), part.shape, part.axis, part.layout) for part in sums}
    if len(sums) == len(parts) and len(kinds) == 1:
        factors = zip(*(part.factors for part in sums), strict=True)
        joined = (ops.concatenate(values, axis=sums[0].axis) for values in factors)
        return sums[0]._with_factors(*joined)
    return Materialized(sum(part.materialize() for part in parts))


def _squared_norms(grams: Sequence[tuple[Tensor, float]], row_norms: Sequence[Tensor]) -> Tensor:
    """Return values never less than the squared norms, whatever cancels in them.

    A sum of n products of a and b errs by at most `n u |a| |b|`, with `u = 2^-24` and in any order
    (Higham 2002, "Accuracy and stability of numerical algorithms", section 3.1). So `d u |a_t|
    |a_u| |<g_t, g_u>| + p u |g_t| |g_u| |<a_t, a_u>|` is added for each pair of positions, and `2 T
    u` for their sum. This lengthens the norms of random rows by one or two parts in ten thousand
    (64 positions of 128 to 1152 inputs), and others by less.

    Args:
        grams: The Gram matrices of inputs and of cotangents, each with its error relative to both
            sizes.
        row_norms: The norms of inputs and of cotangents, of shape `(batch_size, positions)`.
    """
    (input_gram, input_error), (cotangent_gram, cotangent_error) = grams
    sizes, cotangent_sizes = row_norms
    positions = int(sizes.shape[1])
    # One sum for all three terms, since XLA would compute the Gram matrices again for each.
    error = input_error + ROUNDING * (2 * positions + 8)
    pairs = input_gram * cotangent_gram
    pairs = pairs + _all_products(error**0.5 * sizes) * ops.abs(cotangent_gram)
    pairs = pairs + _all_products(cotangent_error**0.5 * cotangent_sizes) * ops.abs(input_gram)
    lengths = sizes * cotangent_sizes
    guard = input_error * cotangent_error + guard_of_sums(positions + 2)
    # The term added to each row keeps XLA from fusing one long sum over all pairs.
    rows = ops.sum(pairs, axis=2) + guard * lengths * ops.sum(lengths, axis=1, keepdims=True)
    return ops.maximum(ops.sum(rows, axis=1), 0.0)


def _is_long(*factors: Tensor) -> bool:
    """Return whether sums over the last axes are computed in blocks."""
    return int(factors[0].shape[1]) * sum(x.shape[2] for x in factors) > _LARGEST_UNBLOCKED


def _gram(values: Tensor, in_blocks: bool) -> tuple[Tensor, float]:
    """Return inner products of all pairs of positions, and their error relative to both sizes.

    A sum of n numbers in blocks of b errs like a sum of `b + n / b` numbers.
    """
    size = int(values.shape[2])
    block = max(_SMALLEST_BLOCK, -(-size // _MOST_BLOCKS)) if in_blocks else size
    parts = [values[:, :, start : start + block] for start in range(0, size, block)]
    products = [ops.matmul(part, ops.transpose(part, (0, 2, 1))) for part in parts]
    return sum(products[1:], products[0]), ROUNDING * (min(block, size) + len(parts))


def _all_products(sizes: Tensor) -> Tensor:
    """Return the products of all pairs in a tensor of shape `(batch_size, positions)`."""
    return sizes[:, :, None] * sizes[:, None, :]


def _row_norms(rows: Tensor) -> Tensor:
    """Return the norms of rows, of shape `(batch_size, positions)`, guarded against underflow."""
    return ops.sqrt(ops.sum(ops.square(rows), axis=2) + UNDERFLOW)


def _groups_as_rows(value: Tensor) -> Tensor:
    """Reshape `(batch_size, groups, ...)` to `(batch_size * groups, ...)`."""
    return ops.reshape(value, (-1, *ops.shape(value)[2:]))
