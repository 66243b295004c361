"""The interface of per-example gradients, and gradients that are written out in full.

A form holds the gradient of one variable for every example, in a way that makes norms and weighted
sums over the batch cheap. `squared_norms` and `weighted_sum` of one object always describe the same
gradients.
"""

import abc
import math
from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_adaclip import backend

Tensor = Any

# Guards of norms that are computed through products. If rounding made a norm too small, a
# contribution could exceed the clipping norm. Squares of numbers below 1e-19 underflow to zero in
# float32, although their product with another number may not; this constant is added to squared
# norms before they are multiplied.
UNDERFLOW = 1e-28
# The relative error of one float32 operation, plus 5% for products of such errors.
ROUNDING = 1.05 * 2.0**-24
# How far a contribution may exceed its bound.
_TOLERANCE = 1e-4


def guard_of_sums(num_terms: Any) -> Any:
    """Return the factor k that makes a squared norm safe against cancellation in sums.

    A sum of n numbers in any order errs by at most `e S` with `e = n 2^-24`, where S is the sum of
    their sizes. For a norm x, `x + e S` is at most `1 + 1e-4` times `sqrt(x^2 + k S^2)` if
    `k >= e^2 / 2e-4`. Two uses of one variable may both err, so k is twice that.

    Args:
        num_terms: The number of terms n.

    Returns:
        The factor k. Add `k S^2` to the squared norm.
    """
    return ROUNDING**2 / _TOLERANCE * num_terms * num_terms


class PerExampleGradient(abc.ABC):
    """The gradients of one variable, one for each example.

    Attributes:
        form: How the norm is computed, in a few words.
    """

    form: str = "own formula"

    @property
    def numbers_per_example(self) -> int | None:
        """Float32 numbers written per example for norms and sums, None if not known."""
        return None

    @abc.abstractmethod
    def squared_norms(self) -> Tensor:
        """Return squared Euclidean norms, float32 of shape `(batch_size,)`."""

    @abc.abstractmethod
    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """Return the sum of `factors[i] * gradient[i]` over the examples with `finite[i]`.

        Args:
            factors: Float32 of shape `(batch_size,)`, zero where not finite.
            finite: Bool of shape `(batch_size,)`. The other examples may hold NaN or infinity.

        Returns:
            A float32 tensor of the variable's shape.
        """

    @abc.abstractmethod
    def materialize(self) -> Tensor:
        """Return all gradients, float32 of shape `(batch_size, *variable.shape)`."""

    def rows(self, rows: slice) -> "PerExampleGradient":
        """Return the gradients of some examples, by default written out.

        Args:
            rows: The examples.
        """
        return Materialized(self.materialize()[rows])

    def merged(self, num_copies: int) -> "PerExampleGradient":
        """Return the sums over each `num_copies` consecutive examples, by default written out.

        Args:
            num_copies: The number of consecutive examples that make one.
        """
        values = self.materialize()
        shape = tuple(values.shape[1:])
        return Materialized(ops.sum(ops.reshape(values, (-1, num_copies, *shape)), axis=1))


class Materialized(PerExampleGradient):
    """Gradients written out.

    Args:
        values: Tensor of shape `(batch_size, *variable.shape)`.
    """

    form = "written out"

    def __init__(self, values: Tensor) -> None:
        self.values = ops.cast(values, "float32")

    @property
    def numbers_per_example(self) -> int | None:
        """The size of one gradient."""
        return size_of_row(self.values)

    def squared_norms(self) -> Tensor:
        """Return the sum of squares over all axes but the first."""
        return ops.sum(ops.square(self.values), axis=tuple(range(1, len(self.values.shape))))

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """Return the weighted sum as one product of a vector with a matrix."""
        shape = tuple(self.values.shape[1:])
        flat = backend.masked(finite, ops.reshape(self.values, (-1, math.prod(shape))))
        return ops.reshape(ops.matmul(factors[None, :], flat), shape)

    def rows(self, rows: slice) -> "Materialized":
        """Return the gradients of some examples."""
        return type(self)(self.values[rows])

    def materialize(self) -> Tensor:
        """Return the values."""
        return self.values


class SumOverPositions(PerExampleGradient):
    """Base of gradients that are sums over positions, such as the steps of a sequence.

    Args:
        inputs: Tensor of shape `(batch_size, positions, ...)`.
        cotangents: Tensor of shape `(batch_size, positions, output_size)`.
        shape: The variable's shape.
    """

    def __init__(self, inputs: Tensor, cotangents: Tensor, shape: Sequence[int]) -> None:
        self.factors = inputs, cotangents
        self.shape = tuple(shape)

    def rows(self, rows: slice) -> Any:
        """Return the gradients of some examples."""
        inputs, cotangents = self.factors
        return type(self)(inputs[rows], cotangents[rows], self.shape)

    def merged(self, num_copies: int) -> "SumOverPositions":
        """Return the sums over consecutive examples, whose positions are concatenated."""
        positions = num_copies * ops.shape(self.factors[0])[1]
        inputs, cotangents = (
            ops.reshape(value, (-1, positions, *value.shape[2:])) for value in self.factors
        )
        return type(self)(inputs, cotangents, self.shape)


def combined(parts: Sequence[PerExampleGradient]) -> PerExampleGradient:
    """Return the gradient of a variable that was used several times.

    The parts are added *before* the norm. Sums over positions of one kind and shape are
    concatenated, anything else is written out.

    Args:
        parts: The gradients of the single uses, at least one.
    """
    if len(parts) == 1:
        return parts[0]
    sums = [part for part in parts if isinstance(part, SumOverPositions)]
    if len(sums) == len(parts) and len({(type(part), part.shape) for part in sums}) == 1:
        factors = zip(*(part.factors for part in sums), strict=True)
        inputs, cotangents = (ops.concatenate(values, axis=1) for values in factors)
        return type(sums[0])(inputs, cotangents, sums[0].shape)
    return Materialized(sum(part.materialize() for part in parts))


def size_of_row(value: Tensor) -> int | None:
    """Return the numbers per example in a `(batch_size, ...)` tensor, None if not known."""
    sizes = value.shape[1:]
    return None if any(size is None for size in sizes) else math.prod(sizes)
