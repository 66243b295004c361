"""Gradients of one variable out of the gradients of its single uses."""

from collections.abc import Sequence
from typing import Any

from keras import ops

from keras_adaclip.gradients.forms.lookup import Lookup, LookupAndProduct
from keras_adaclip.gradients.forms.outer_product import OuterProduct
from keras_adaclip.gradients.forms.per_example_gradient import Materialized, PerExampleGradient

Tensor = Any


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
