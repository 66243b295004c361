"""Per-example gradients in coordinates that are centred and scaled."""

from typing import Any

from keras import ops

from keras_adaclip.gradients.factored.outer_product import OuterProduct
from keras_adaclip.gradients.factored.per_example_gradient import (
    UNDERFLOW,
    Materialized,
    PerExampleGradient,
)

Tensor = Any

# The norm of a difference that is known through products is rounded up by this much of what it
# would be if nothing cancelled. So what a unit adds is never more than 2^8 times smaller than the
# two terms of which its sum is the difference, and rounding these stays within the noise's margin.
_CANCELLATION = 2.0**-16


class Rescaled(PerExampleGradient):
    """`(gradient - centre) / scale`, of gradients in any other form.

    Weighted sums need no gradient written out, nor do the norms of a product with one position:

        sum_jk (a_j d_k - m_jk)^2 / s_jk^2
            = (a^2)' S (d^2)  -  2 a' (M * S) d  +  sum(M^2 * S),    S = 1 / s^2

    Args:
        part: the gradients.
        centre: tensor of the variable's shape, m.
        scale: positive tensor of the variable's shape, s.
    """

    def __init__(self, part: PerExampleGradient, centre: Tensor, scale: Tensor) -> None:
        self._part = part
        self._centre = centre
        self._scale = scale

    @property
    def form(self) -> str:
        """How the norm is taken."""
        return "three products" if self._is_one_product else "written out"

    def squared_norms(self) -> Tensor:
        """By three products with matrices of the variable's size, or written out."""
        if self._is_one_product:
            return self._squared_norms_of_products(self._part)
        return Materialized(self.materialize()).squared_norms()

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """The weighted sum of the gradients, less the centre as often."""
        total = self._part.weighted_sum(factors, finite)
        # Beside a row that is not finite its factor is zero.
        return (total - ops.sum(factors) * self._centre) / self._scale

    def materialize(self) -> Tensor:
        """The gradients written out."""
        return (self._part.materialize() - self._centre) / self._scale

    def merged(self, num_copies: int) -> "Rescaled":
        """Each copy has the centre taken off."""
        return Rescaled(self._part.merged(num_copies), num_copies * self._centre, self._scale)

    @property
    def _is_one_product(self) -> bool:
        return isinstance(self._part, OuterProduct) and self._part.inputs.shape[1] == 1

    def _squared_norms_of_products(self, part: Any) -> Tensor:
        inputs, cotangents = part.inputs[:, 0], part.cotangents[:, 0]
        sizes = (inputs.shape[1], cotangents.shape[1])
        scaled_centre = ops.reshape(self._centre / self._scale, sizes)
        inverse = ops.reshape(1.0 / self._scale, sizes)

        def form(left: Tensor, matrix: Tensor, right: Tensor) -> Tensor:
            return ops.sum(ops.matmul(left, matrix) * right, axis=1)

        of_gradient = form(
            ops.square(inputs) + UNDERFLOW, ops.square(inverse), ops.square(cotangents) + UNDERFLOW
        )
        between = form(inputs, scaled_centre * inverse, cotangents)
        of_centre = ops.sum(ops.square(scaled_centre))
        difference = ops.maximum(of_gradient - 2.0 * between + of_centre, 0.0)
        return difference + _CANCELLATION * (of_gradient + of_centre)
