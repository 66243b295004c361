"""Gradients of the weights of matrix products."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.forms.per_example_gradient import (
    ROUNDING,
    UNDERFLOW,
    Materialized,
    PerExampleGradient,
    guard_of_sums,
    positions_joined,
    size_of_row,
)

Tensor = Any

# What it costs to write a number, and to read it twice, in multiplications of a matrix product; and
# how many times as large as inputs and cotangents the gradients may be that are held.
_PASSES, _MOST_WRITTEN = 60, 2
# Where `T (d + p)` is more than this, sums are made in blocks, so that they err less.
_LARGEST_UNBLOCKED = 1 << 17
_SMALLEST_BLOCK, _MOST_BLOCKS = 128, 32


def gram_is_cheaper(positions: int | None, inputs: int, outputs: int) -> bool:
    """Whether a norm costs less from Gram matrices than from the gradients written out.

    With T positions of d inputs and p outputs, Gram matrices take `T^2 (d + p)` operations; the
    gradients themselves take none, since they are made for the weighted sum in any case, but they
    have to be written and read, and held until then.

    Args:
        positions: T, None where it is not known.
        inputs: d.
        outputs: p.
    """
    if positions is None:
        return False
    written = inputs * outputs
    if written > _MOST_WRITTEN * positions * (inputs + outputs):
        return True
    return positions**2 * (inputs + outputs + _PASSES) < _PASSES * written


class OuterProduct(PerExampleGradient):
    """`sum_t outer(inputs[i, t], cotangents[i, t])`, the gradient of a matrix product's weights.

    With one position the norm is a product of two norms; with T positions it is the Gram form
    `sum_(t, u) <a_t, a_u> <g_t, g_u>` where that is cheaper than the gradients themselves.

    Args:
        inputs: tensor of shape `(batch_size, positions, input_size)`.
        cotangents: tensor of shape `(batch_size, positions, output_size)`.
        shape: the variable's shape, of `input_size * output_size` elements.
    """

    def __init__(self, inputs: Tensor, cotangents: Tensor, shape: Sequence[int]) -> None:
        self.inputs = ops.cast(inputs, "float32")
        self.cotangents = ops.cast(cotangents, "float32")
        self.shape = tuple(shape)
        self._products: Tensor | None = None

    @property
    def uses_gram(self) -> bool:
        """Whether the norm is taken from Gram matrices instead of the gradients written out."""
        return gram_is_cheaper(self.inputs.shape[1], self.inputs.shape[2], self.cotangents.shape[2])

    @property
    def form(self) -> str:
        """How the norm is taken."""
        if self.inputs.shape[1] == 1:
            return "two norms"
        return "Gram matrices" if self.uses_gram else "written out"

    @property
    def numbers_held(self) -> int | None:
        """How many float32 numbers of an example are held."""
        inputs, cotangents = size_of_row(self.inputs), size_of_row(self.cotangents)
        if inputs is None or cotangents is None:
            return None
        if self.inputs.shape[1] == 1 or self.uses_gram:
            return inputs + cotangents
        return int(self.inputs.shape[2] * self.cotangents.shape[2])

    @property
    def numbers_touched(self) -> int:
        """Both factors, and Gram matrices or gradients where there are some."""
        factors = (size_of_row(self.inputs) or 0) + (size_of_row(self.cotangents) or 0)
        positions = self.inputs.shape[1]
        if positions is None or positions == 1:
            return factors
        if self.uses_gram:
            return factors + 2 * int(positions) ** 2
        return factors + int(self.inputs.shape[2] * self.cotangents.shape[2])

    def squared_norms(self) -> Tensor:
        """Squared norms by the cheapest exact formula."""
        if self.inputs.shape[1] == 1:
            return ops.square(_sizes(self.inputs) * _sizes(self.cotangents))[:, 0]
        if self.uses_gram:
            return self._squared_norms_from_gram()
        return ops.sum(ops.square(self._written_out()), axis=(1, 2))

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """One matrix product, or the weighted sum of the products where they are known."""
        if self._products is not None:
            total = Materialized(self._products).weighted_sum(factors, finite)
            return ops.reshape(ops.transpose(total) if self._is_turned else total, self.shape)
        inputs = backend.masked(finite, self.inputs)
        cotangents = backend.masked(finite, factors[:, None, None] * self.cotangents)
        inputs = ops.reshape(inputs, (-1, self.inputs.shape[2]))
        cotangents = ops.reshape(cotangents, (-1, self.cotangents.shape[2]))
        return ops.reshape(ops.matmul(ops.transpose(inputs), cotangents), self.shape)

    def materialize(self) -> Tensor:
        """The products, of shape `(batch_size, *shape)`."""
        products = self._written_out()
        if self._is_turned:
            products = ops.transpose(products, (0, 2, 1))
        return ops.reshape(products, (-1, *self.shape))

    def merged(self, num_copies: int) -> "OuterProduct":
        """The copies' positions behind each other."""
        return OuterProduct(
            positions_joined(self.inputs, num_copies),
            positions_joined(self.cotangents, num_copies),
            self.shape,
        )

    @property
    def _is_turned(self) -> bool:
        """Whether products are kept as `(outputs, inputs)`: the smaller factor is transposed."""
        return bool(self.cotangents.shape[2] < self.inputs.shape[2])

    def _squared_norms_from_gram(self) -> Tensor:
        """Never less than the squared norms, however much of them cancels.

        A sum of n products of a and b errs by at most `n u |a| |b|`, with `u = 2^-24` and in any
        order (Higham 2002, "Accuracy and stability of numerical algorithms", section 3.1). So
        `d u |a_t| |a_u| |<g_t, g_u>| + p u |g_t| |g_u| |<a_t, a_u>|` is added for each pair of
        positions, and `2 T u` for their sum. That lengthens the norms of random rows by one or two
        parts in ten thousand (64 positions of 128 to 1152 inputs); what does not cancel, by less.
        """
        factors, positions = (self.inputs, self.cotangents), int(self.inputs.shape[1])
        in_blocks = positions * sum(x.shape[2] for x in factors) > _LARGEST_UNBLOCKED
        (of_inputs, input_error), (of_cotangents, cotangent_error) = (
            _gram(x, in_blocks) for x in factors
        )
        sizes, cotangent_sizes = (_sizes(x) for x in factors)
        # One sum for all three: XLA would make the Gram matrices anew for each.
        error = input_error + ROUNDING * (2 * positions + 8)
        pairs = of_inputs * of_cotangents
        pairs = pairs + error * _of_pairs(sizes) * ops.abs(of_cotangents)
        pairs = pairs + cotangent_error * _of_pairs(cotangent_sizes) * ops.abs(of_inputs)
        lengths = sizes * cotangent_sizes
        guard = input_error * cotangent_error + guard_of_sums(positions + 2)
        # What is added to each row keeps XLA from one long sum over all pairs.
        rows = ops.sum(pairs, axis=2) + guard * lengths * ops.sum(lengths, axis=1, keepdims=True)
        return ops.maximum(ops.sum(rows, axis=1), 0.0)

    def _written_out(self) -> Tensor:
        if self._products is None:
            first, second = self.inputs, self.cotangents
            if self._is_turned:
                first, second = second, first
            self._products = ops.matmul(ops.transpose(first, (0, 2, 1)), second)
        return self._products


def _gram(values: Tensor, in_blocks: bool) -> tuple[Tensor, float]:
    """The products of all pairs of positions, and the error of one relative to both sizes.

    A sum of n numbers in blocks of b errs like one of `b + n / b` numbers.
    """
    size = int(values.shape[2])
    block = max(_SMALLEST_BLOCK, -(-size // _MOST_BLOCKS)) if in_blocks else size
    parts = [values[:, :, start : start + block] for start in range(0, size, block)]
    products = [ops.matmul(part, ops.transpose(part, (0, 2, 1))) for part in parts]
    return sum(products[1:], products[0]), ROUNDING * (min(block, size) + len(parts))


def _of_pairs(sizes: Tensor) -> Tensor:
    """The products of all pairs of positions, for sizes of shape `(batch_size, positions)`."""
    return sizes[:, :, None] * sizes[:, None, :]


def _sizes(rows: Tensor) -> Tensor:
    """The norms of rows, of shape `(batch_size, positions)`, no smaller for underflow."""
    return ops.sqrt(ops.sum(ops.square(rows), axis=2) + UNDERFLOW)
