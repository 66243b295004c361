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

Tensor = Any

# Guards of norms that are known through products: a norm that rounding made too small would let
# a contribution pass the clipping norm. Squares of numbers below 1e-19 are zero in float32 though
# their product with another number need not be; this is added to squared norms before a product.
_UNDERFLOW = 1e-28
# The Gram form subtracts, and rounding must not shorten a norm: its errors are a few times 2^-24 of
# what the result would be if nothing cancelled, and this much of that is added.
_CANCELLATION = 2.0**-20


# What it costs to write a number, and to read it twice, in multiplications of a matrix product; and
# how many times as large as inputs and cotangents the gradients may be that are held.
_PASSES, _MOST_WRITTEN = 60, 2


class PerExampleGradient(abc.ABC):
    """The gradients of one variable, one an example."""

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
        """The sums over each `num_copies` examples that stand next to each other."""


class Materialized(PerExampleGradient):
    """Gradients written out.

    Args:
        values: tensor of shape `(batch_size, *variable.shape)`.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = ops.cast(values, "float32")

    def squared_norms(self) -> Tensor:
        """Sum of squares over all axes but the first."""
        return ops.sum(ops.square(self.values), axis=tuple(range(1, len(self.values.shape))))

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """One product of a vector with a matrix."""
        shape = tuple(self.values.shape[1:])
        flat = ops.reshape(self.values, (-1, math.prod(shape)))
        flat = ops.where(finite[:, None], flat, 0.0)
        return ops.reshape(ops.matmul(factors[None, :], flat), shape)

    def materialize(self) -> Tensor:
        """The values themselves."""
        return self.values

    def merged(self, num_copies: int) -> "Materialized":
        """Summed values."""
        shape = tuple(self.values.shape[1:])
        return Materialized(ops.sum(ops.reshape(self.values, (-1, num_copies, *shape)), axis=1))


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
        """Whether the norm is taken from Gram matrices instead of the gradients written out.

        With T positions of d inputs and p outputs, Gram matrices take `T^2 (d + p)` operations;
        the gradients themselves take none, since they are made for the weighted sum in any case,
        but they have to be written and read, and held until then.
        """
        positions, inputs, outputs = (
            self.inputs.shape[1],
            self.inputs.shape[2],
            self.cotangents.shape[2],
        )
        if positions is None:
            return False
        written = inputs * outputs
        if written > _MOST_WRITTEN * positions * (inputs + outputs):
            return True
        return positions**2 * (inputs + outputs + _PASSES) < _PASSES * written

    def squared_norms(self) -> Tensor:
        """Squared norms by the cheapest exact formula."""
        if self.inputs.shape[1] == 1:
            return ops.square(_sum_of_sizes(self.inputs, self.cotangents))
        if self.uses_gram:
            of_inputs = ops.matmul(self.inputs, ops.transpose(self.inputs, (0, 2, 1)))
            of_cotangents = ops.matmul(self.cotangents, ops.transpose(self.cotangents, (0, 2, 1)))
            gram = ops.sum(of_inputs * of_cotangents, axis=(1, 2))
            largest = ops.square(_sum_of_sizes(self.inputs, self.cotangents))
            return ops.maximum(gram, 0.0) + _CANCELLATION * largest
        return ops.sum(ops.square(self._written_out()), axis=(1, 2))

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """One matrix product, or the weighted sum of the products where they are known."""
        if self._products is not None:
            total = Materialized(self._products).weighted_sum(factors, finite)
            return ops.reshape(ops.transpose(total) if self._is_turned else total, self.shape)
        finite = finite[:, None, None]
        inputs = ops.where(finite, self.inputs, 0.0)
        cotangents = ops.where(finite, factors[:, None, None] * self.cotangents, 0.0)
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
            _positions_joined(self.inputs, num_copies),
            _positions_joined(self.cotangents, num_copies),
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

    def squared_norms(self) -> Tensor:
        """Gram form over the pairs of positions with equal ids."""
        equal = ops.cast(self.ids[:, :, None] == self.ids[:, None, :], "float32")
        gram = ops.matmul(self.cotangents, ops.transpose(self.cotangents, (0, 2, 1)))
        sizes = ops.sqrt(ops.sum(ops.square(self.cotangents), axis=2))
        largest = ops.sum(equal * sizes[:, :, None] * sizes[:, None, :], axis=(1, 2))
        return ops.maximum(ops.sum(equal * gram, axis=(1, 2)), 0.0) + _CANCELLATION * largest

    def weighted_sum(self, factors: Tensor, finite: Tensor) -> Tensor:
        """One segment sum over all positions of all examples."""
        weighted = ops.where(finite[:, None, None], factors[:, None, None] * self.cotangents, 0.0)
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
        ids = _positions_joined(self.ids, num_copies)
        return Lookup(ids, _positions_joined(self.cotangents, num_copies), self.shape)


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

    def squared_norms(self) -> Tensor:
        """From the norms of both and their inner product, over the pairs of positions."""
        lookup, product = self._lookup, self._product
        # Shape (batch_size, positions of the product, positions of the lookup).
        met = ops.take_along_axis(product.inputs, lookup.ids[:, None, :], axis=2)
        of_cotangents = ops.matmul(product.cotangents, ops.transpose(lookup.cotangents, (0, 2, 1)))
        inner = ops.sum(met * of_cotangents, axis=(1, 2))
        sizes = [
            ops.sqrt(ops.sum(ops.square(part.cotangents), axis=2) + _UNDERFLOW)
            for part in (product, lookup)
        ]
        of_pairs = ops.abs(met) * sizes[0][:, :, None] * sizes[1][:, None, :]
        separate = lookup.squared_norms() + product.squared_norms()
        largest = separate + 2.0 * ops.sum(of_pairs, axis=(1, 2))
        return ops.maximum(separate + 2.0 * inner, 0.0) + _CANCELLATION * largest

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


def combined(parts: Sequence[PerExampleGradient]) -> PerExampleGradient:
    """The gradient of a variable that was used several times: its parts add up *before* the norm.

    Args:
        parts: the gradients of the single uses, at least one.
    """
    if len(parts) == 1:
        return parts[0]
    products = [part for part in parts if isinstance(part, OuterProduct)]
    lookups = [part for part in parts if isinstance(part, Lookup)]
    shapes = {part.shape for part in products} | {part.shape for part in lookups}
    if len(products) + len(lookups) < len(parts) or len(shapes) > 1:
        return Materialized(sum(part.materialize() for part in parts))
    if not lookups:
        return _joined_products(products)
    if not products:
        return _joined_lookups(lookups)
    lookup, product = _joined_lookups(lookups), _joined_products(products)
    rows = product.inputs.shape[2]
    if rows != lookup.shape[0] or not (product.uses_gram or product.inputs.shape[1] == 1):
        # The norm of the product takes the whole table anyway.
        return Materialized(lookup.materialize() + product.materialize())
    return LookupAndProduct(lookup, product)


def _joined_products(parts: Sequence[OuterProduct]) -> OuterProduct:
    """The positions of products of one shape behind each other."""
    return OuterProduct(
        ops.concatenate([part.inputs for part in parts], axis=1),
        ops.concatenate([part.cotangents for part in parts], axis=1),
        parts[0].shape,
    )


def _joined_lookups(parts: Sequence[Lookup]) -> Lookup:
    """The positions of lookups in one table behind each other."""
    return Lookup(
        ops.concatenate([part.ids for part in parts], axis=1),
        ops.concatenate([part.cotangents for part in parts], axis=1),
        parts[0].shape,
    )


def shifted_and_scaled(
    part: PerExampleGradient | None, centre: Tensor, scale: Tensor, num_rows: Any
) -> PerExampleGradient:
    """The gradients as `(g - centre) / scale`, of a variable that was not used too.

    Args:
        part: the gradients; None stands for zeros.
        centre: tensor of the variable's shape.
        scale: positive tensor of the variable's shape.
        num_rows: the number of rows.
    """
    if part is None:
        rows = ops.ones((num_rows, *([1] * len(centre.shape))), "float32")
        return Materialized(-rows * (centre / scale))
    return Materialized((part.materialize() - centre) / scale)


def _positions_joined(value: Tensor, num_copies: int) -> Tensor:
    """From `(examples * copies, positions, ...)` to `(examples, copies * positions, ...)`."""
    positions = num_copies * ops.shape(value)[1]
    return ops.reshape(value, (-1, positions, *value.shape[2:]))


def _sum_of_sizes(inputs: Tensor, cotangents: Tensor) -> Tensor:
    """`sum_t |a_t| |g_t|` of shape `(batch_size,)`, no smaller for underflow."""
    squares = [ops.sum(ops.square(value), axis=2) + _UNDERFLOW for value in (inputs, cotangents)]
    return ops.sum(ops.sqrt(squares[0]) * ops.sqrt(squares[1]), axis=1)
