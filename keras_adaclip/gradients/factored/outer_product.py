"""Gradients of the weights of matrix products."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_adaclip import backend
from keras_adaclip.gradients.factored.per_example_gradient import (
    CANCELLATION,
    UNDERFLOW,
    Materialized,
    PerExampleGradient,
    positions_joined,
    size_of_row,
)

Tensor = Any

# What it costs to write a number, and to read it twice, in multiplications of a matrix product; and
# how many times as large as inputs and cotangents the gradients may be that are held.
_PASSES, _MOST_WRITTEN = 60, 2


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
            return ops.square(_sum_of_sizes(self.inputs, self.cotangents))
        if self.uses_gram:
            of_inputs = ops.matmul(self.inputs, ops.transpose(self.inputs, (0, 2, 1)))
            of_cotangents = ops.matmul(self.cotangents, ops.transpose(self.cotangents, (0, 2, 1)))
            gram = ops.sum(of_inputs * of_cotangents, axis=(1, 2))
            largest = ops.square(_sum_of_sizes(self.inputs, self.cotangents))
            return ops.maximum(gram, 0.0) + CANCELLATION * largest
        return ops.sum(ops.square(self._written_out()), axis=(1, 2))

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """One matrix product, or the weighted sum of the products where they are known."""
        if self._products is not None:
            total = Materialized(self._products).weighted_sum(factors, finite)
            return ops.reshape(ops.transpose(total) if self._is_turned else total, self.shape)
        inputs = backend.zero_where_not(finite, self.inputs)
        cotangents = backend.zero_where_not(finite, factors[:, None, None] * self.cotangents)
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

    def _written_out(self) -> Tensor:
        if self._products is None:
            first, second = self.inputs, self.cotangents
            if self._is_turned:
                first, second = second, first
            self._products = ops.matmul(ops.transpose(first, (0, 2, 1)), second)
        return self._products


def _sum_of_sizes(inputs: Tensor, cotangents: Tensor) -> Tensor:
    """`sum_t |a_t| |g_t|` of shape `(batch_size,)`, no smaller for underflow."""
    squares = [ops.sum(ops.square(value), axis=2) + UNDERFLOW for value in (inputs, cotangents)]
    return ops.sum(ops.sqrt(squares[0]) * ops.sqrt(squares[1]), axis=1)
