"""The forms of per-example gradients; those of matrix products are in `outer_products.py`.

A form holds the gradient of one variable for every example, in a way that makes norms and weighted
sums over the batch cheap. `squared_norms` and `weighted_sum` of one object always describe the same
gradients.
"""

import abc
import functools
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

    Attributes:
        axis: The axis of the positions in both tensors.
        layout: Further arguments of the constructor.
    """

    axis: int = 1
    layout: tuple[Any, ...] = ()

    def __init__(self, inputs: Tensor, cotangents: Tensor, shape: Sequence[int]) -> None:
        self.factors = inputs, cotangents
        self.shape = tuple(shape)

    def _with_factors(self, inputs: Tensor, cotangents: Tensor) -> Any:
        """Return gradients of the same form with other factors.

        Args:
            inputs: As for the constructor.
            cotangents: As for the constructor.
        """
        return type(self)(inputs, cotangents, self.shape, *self.layout)

    def rows(self, rows: slice) -> Any:
        """Return the gradients of some examples."""
        return self._with_factors(*(value[rows] for value in self.factors))

    def merged(self, num_copies: int) -> "SumOverPositions":
        """Return the sums over consecutive examples, whose positions are concatenated."""

        def concatenated(value: Tensor) -> Tensor:
            """Move the copies of each example to the axis of positions."""
            sizes = ops.shape(value)[1:]
            value = ops.reshape(value, (-1, num_copies, *sizes))
            value = ops.moveaxis(value, 1, self.axis)
            before, (positions, *after) = sizes[: self.axis - 1], sizes[self.axis - 1 :]
            return ops.reshape(value, (-1, *before, num_copies * positions, *after))

        return self._with_factors(*map(concatenated, self.factors))


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

    def materialize(self) -> Tensor:
        """Return the tables, of shape `(batch_size, num_rows, output_size)`."""
        onehot = ops.one_hot(self.ids, self.shape[0], dtype="float32")
        return ops.matmul(ops.transpose(onehot, (0, 2, 1)), self.cotangents)


def size_of_row(value: Tensor) -> int | None:
    """Return the numbers per example in a `(batch_size, ...)` tensor, None if not known."""
    sizes = value.shape[1:]
    return None if any(size is None for size in sizes) else math.prod(sizes)
