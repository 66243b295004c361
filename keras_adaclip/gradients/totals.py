"""Sums over many units in two floats, so that rounding hides no unit and moves no other.

A float32 sum of n contributions of norm C rounds at about `n C 2^-24`. Removing one unit changes
how all that follow are rounded. So one float32 sum covers few rows, and what the addition of such
sums loses is kept beside them until the noise is in.

Removing a unit must change few of these sums: `sampling` gives the units that a step draws secret
places, so that neighbours can be coupled with the last unit in the place of the removed one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras import ops

from keras_adaclip import backend

Tensor = Any
# In an order that is made for it, rounding of n contributions moves up to n^2 2^-26 of the clipping
# norm: 0.001 with 256. In random order it moves some 3e-4 with 1,024.
MOST_ROWS, MOST_DRAWN_ROWS = 256, 1024


@dataclass(frozen=True)
class Totals:
    """Sums, and what float32 has lost of them.

    Args:
        sums: Float32 tensors.
        remainders: What is to be added to each of the sums; None stands for zeros.
    """

    sums: list[Tensor]
    remainders: list[Tensor] | None = None

    @classmethod
    def zeros(cls, shapes: Sequence[Sequence[int]]) -> "Totals":
        """Return sums over nothing."""
        sums, remainders = ([ops.zeros(shape, "float32") for shape in shapes] for _ in range(2))
        return cls(sums, remainders)

    @classmethod
    def of_flat(cls, tensors: Sequence[Tensor]) -> "Totals":
        """Return what `flat` has made a list of."""
        half = len(tensors) // 2
        return cls(list(tensors[:half]), list(tensors[half:]))

    @property
    def flat(self) -> list[Tensor]:
        """The sums, then the remainders."""
        return [*self.sums, *(self.remainders or map(ops.zeros_like, self.sums))]

    def plus(self, other: "Totals | list[Tensor]") -> "Totals":
        """Return the sums with further ones, given with or without remainders."""
        other = other if isinstance(other, Totals) else Totals(other)
        pairs = [backend.two_sum(*pair) for pair in zip(self.sums, other.sums, strict=True)]
        remainders = [lost for _, lost in pairs]
        for further in (self.remainders, other.remainders):
            if further is not None:
                remainders = [one + two for one, two in zip(remainders, further, strict=True)]
        return Totals([total for total, _ in pairs], remainders)
