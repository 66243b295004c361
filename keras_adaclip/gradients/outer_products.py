"""Gradients of the weights of matrix products, also of grouped ones."""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.forms import (
    ROUNDING,
    UNDERFLOW,
    Materialized,
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
        """Return values never less than the squared norms, whatever cancels in them.

        A sum of n products of a and b errs by at most `n u |a| |b|`, with `u = 2^-24` and in any
        order (Higham 2002, "Accuracy and stability of numerical algorithms", section 3.1). So
        `d u |a_t| |a_u| |<g_t, g_u>| + p u |g_t| |g_u| |<a_t, a_u>|` is added for each pair of
        positions, and `2 T u` for their sum. This lengthens the norms of random rows by one or two
        parts in ten thousand (64 positions of 128 to 1152 inputs), and others by less.
        """
        factors, positions = self._rows, int(self._rows[0].shape[1])
        in_blocks = positions * sum(x.shape[2] for x in factors) > _LARGEST_UNBLOCKED
        (input_gram, input_error), (cotangent_gram, cotangent_error) = (
            _gram(x, in_blocks) for x in factors
        )
        sizes, cotangent_sizes = (_row_norms(x) for x in factors)
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
