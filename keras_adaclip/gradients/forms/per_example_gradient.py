"""Per-example gradients that are known without being written out.

The gradient of one variable for example i is kept in the form in which its norm and its weighted
sum over the batch are cheapest. `squared_norms` and `weighted_sum` of one object always describe
the same gradients.
"""

import abc
import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_adaclip import backend

Tensor = Any

# Guards of norms that are known through products: a norm that rounding made too small would let
# a contribution pass the clipping norm. Squares of numbers below 1e-19 are zero in float32 though
# their product with another number need not be; this is added to squared norms before a product.
UNDERFLOW = 1e-28
# The error of one float32 operation, with 5% for the products of such errors.
ROUNDING = 1.05 * 2.0**-24
# What a contribution may be longer than its bound.
_TOLERANCE = 1e-4


def guard_of_sums(num_terms: Any) -> Any:
    """What to add to a squared norm for sums in which numbers of any size cancel.

    A sum of n numbers in any order errs by at most `e S` with `e = n 2^-24`, where S is the sum of
    their sizes. Of a norm x, `x + e S` is at most `1 + 1e-4` times `sqrt(x^2 + k S^2)` where
    `k >= e^2 / 2e-4`. Two uses of one variable may both err: k is twice that.

    Args:
        num_terms: n.

    Returns:
        k, to be multiplied by `S^2`.
    """
    return ROUNDING**2 / _TOLERANCE * num_terms * num_terms


class PerExampleGradient(abc.ABC):
    """The gradients of one variable, one an example."""

    @property
    def form(self) -> str:
        """How the norm is taken, in a few words."""
        return "own formula"

    @property
    def numbers_held(self) -> int | None:
        """How many float32 numbers of an example are held until the sums are made.

        None where that is not known, as for sequences of any length.
        """
        return None

    @property
    def numbers_touched(self) -> int:
        """How many float32 numbers of an example are written for norms and sums, at least."""
        return self.numbers_held or 0

    @abc.abstractmethod
    def squared_norms(self) -> Tensor:
        """Squared Euclidean norms, float32 of shape `(batch_size,)`."""

    @abc.abstractmethod
    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """The sum of `factors[i] * gradient[i]` over the examples with `finite[i]`.

        Args:
            factors: float32 of shape `(batch_size,)`, zero where not finite.
            finite: bool of shape `(batch_size,)`; the other examples may hold NaN or infinity.

        Returns:
            A float32 tensor of the variable's shape.
        """

    @abc.abstractmethod
    def materialize(self) -> Tensor:
        """All gradients, float32 of shape `(batch_size, *variable.shape)`."""

    @abc.abstractmethod
    def merged(self, num_copies: int) -> "PerExampleGradient":
        """The sums over each `num_copies` examples that stand next to each other.

        Args:
            num_copies: how many examples make one.
        """


class Materialized(PerExampleGradient):
    """Gradients written out.

    Args:
        values: tensor of shape `(batch_size, *variable.shape)`, or with the variable's axes in
            another order.
        order: the numbers of these axes in the order that the variable has them; None stands for
            the order they have.
    """

    def __init__(self, values: Tensor, order: Sequence[int] | None = None) -> None:
        self.values = ops.cast(values, "float32")
        self._order = None if order is None else tuple(order)

    @property
    def form(self) -> str:
        """How the norm is taken."""
        return "written out"

    @property
    def numbers_held(self) -> int | None:
        """How many float32 numbers of an example are held."""
        return size_of_row(self.values)

    def squared_norms(self) -> Tensor:
        """Sum of squares over all axes but the first."""
        return ops.sum(ops.square(self.values), axis=tuple(range(1, len(self.values.shape))))

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """One product of a vector with a matrix."""
        shape = tuple(self.values.shape[1:])
        flat = ops.reshape(self.values, (-1, math.prod(shape)))
        flat = backend.masked(finite, flat)
        total = ops.reshape(ops.matmul(factors[None, :], flat), shape)
        return total if self._order is None else ops.transpose(total, self._order)

    def materialize(self) -> Tensor:
        """The values themselves."""
        if self._order is None:
            return self.values
        return ops.transpose(self.values, (0, *(1 + axis for axis in self._order)))

    def merged(self, num_copies: int) -> "Materialized":
        """Summed values."""
        shape = tuple(self.values.shape[1:])
        total = ops.sum(ops.reshape(self.values, (-1, num_copies, *shape)), axis=1)
        return Materialized(total, self._order)


def positions_joined(value: Tensor, num_copies: int) -> Tensor:
    """From `(examples * copies, positions, ...)` to `(examples, copies * positions, ...)`."""
    positions = num_copies * ops.shape(value)[1]
    return ops.reshape(value, (-1, positions, *value.shape[2:]))


def size_of_row(value: Tensor) -> int | None:
    """How many numbers one example has in a tensor of shape `(batch_size, ...)`."""
    sizes = value.shape[1:]
    return None if any(size is None for size in sizes) else math.prod(sizes)
