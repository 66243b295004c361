"""Contributions as integers, for the queries of discrete noise, which neither clip nor round.

    x -> floor(scale * clip(x, C) + u),  u uniform in [0, 1),  and results / scale

Rounding at random leaves the mean as it is and moves each coordinate by less than 1. So with d
coordinates the integers have a norm of at most scale * C + sqrt(d), whatever was drawn, and

    scale = (bound - sqrt(d)) / C

is the finest grid on which the query's `l2_norm_bound` holds always. (Kairouz et al. 2021, "The
distributed discrete Gaussian mechanism", round again where an integer vector is too long, after a
random rotation: a coarser grid for the same bound, where integers are dear to send.)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from keras import ops

from keras_adaclip.integrations.tensorflow_privacy.library import is_instance

Tensor = Any
# Norms are float32.
_MARGIN = 1.0 - 2.0**-16
_LARGEST_SUM = 2**31


@dataclass(frozen=True)
class IntegerRecords:
    """The grid.

    Args:
        clip_norm: what a contribution is clipped to, in its own units.
        scale: grid points a unit.
        bound: what no coordinate of an encoded contribution exceeds.
    """

    clip_norm: float
    scale: float
    bound: float

    @classmethod
    def of(cls, query: Any, clip_norm: float, num_weights: int) -> "IntegerRecords":
        """The finest grid that a query of integers allows.

        Args:
            query: one for which `needs_integers`.
            clip_norm: what a contribution is clipped to.
            num_weights: trainable numbers of the model.

        Raises:
            ValueError: where the query's bound leaves no room for a grid.
        """
        name = type(query).__name__
        query = query._numerator if is_instance(query, "NormalizedQuery") else query
        root = math.sqrt(num_weights)
        bound = float(query._l2_norm_bound)
        if is_instance(query, "DistributedSkellamSumQuery"):
            # Of all vectors of a norm the longest in the other one has equal coordinates.
            bound = min(bound, float(query._l1_norm_bound) / root)
        if bound * _MARGIN <= root:
            raise ValueError(
                f"The norm bound of the `{name}` must exceed the square root of the number of "
                f"trainable weights, {root:.4g}: that much is lost when they are rounded to "
                f"integers. Take one that is many times as large. Received: {bound:g}"
            )
        return cls(clip_norm, (bound * _MARGIN - root) / clip_norm, bound)

    def check_sum(self, num_units: int) -> None:
        """Raises where the sum of so many contributions would not fit int32."""
        if self.bound * num_units >= _LARGEST_SUM:
            raise ValueError(
                f"The sum of {num_units:,} clients would not fit 32 bits with the query's norm "
                f"bound: take one below {_LARGEST_SUM / num_units:.4g}. Received: {self.bound:g}"
            )

    def encode(self, record: Sequence[Tensor], uniform: Callable[..., Tensor]) -> list[Tensor]:
        """A contribution as int32 tensors.

        Args:
            record: float32 tensors, finite.
            uniform: draws numbers between 0 and 1 of a shape.
        """
        norm = ops.sqrt(sum(ops.sum(ops.square(part)) for part in record))
        factor = self.scale * ops.minimum(1.0, self.clip_norm / ops.maximum(norm, 1e-30))
        return [
            ops.cast(ops.floor(factor * part + uniform(ops.shape(part))), "int32")
            for part in record
        ]

    def decode(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Sums of encoded contributions, in the units of contributions."""
        return [ops.cast(value, "float32") / self.scale for value in values]


def needs_integers(query: Any) -> bool:
    """Whether `query` adds up int32 only."""
    query = query._numerator if is_instance(query, "NormalizedQuery") else query
    return is_instance(
        query,
        "DiscreteGaussianSumQuery",
        "DistributedDiscreteGaussianSumQuery",
        "DistributedSkellamSumQuery",
    )
