"""What every clipping strategy offers to the gradient code and to the optimizer.

A strategy is a set of pure functions over a small *state* (a dict of float32 tensors) that the
optimizer keeps among its variables: clip factors from norms, statistics that are summed over the
units and noised, and the state of the next step.
"""

import abc
import math
import numbers
from typing import Any, ClassVar, Self

from keras import ops

# Squares of what is smaller vanish in float32, and a norm that reads 0 is never clipped; what is
# larger has a square that is not finite. Between the two, norms and noise can be trusted.
SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM = 1e-10, 1e15

Tensor = Any
State = dict[str, Tensor]


class ClippingStrategy(abc.ABC):
    """Base class of the clipping strategies.

    Guarantees:
        One unit adds at most `state["clip_norm"]` (Euclidean) to the sum, under addition or
        removal of that unit and under its replacement by a hole. A unit whose norm is not a
        finite number adds zero. `noise_split` says how the total noise multiplier pays for the
        sum and for the strategy's own statistics.
    """

    num_statistics: ClassVar[int] = 0

    @abc.abstractmethod
    def initial_state(self) -> dict[str, float]:
        """The state before the first step, which holds `"clip_norm"` at least."""

    @abc.abstractmethod
    def clip_factors(self, state: State, norms: Tensor) -> Tensor:
        """The factor of each unit's contribution.

        Args:
            state: the state of this step.
            norms: float32 tensor of shape `(batch_size,)`, all finite.

        Returns:
            A float32 tensor of shape `(batch_size,)` with `factor * norm <= clip_norm`.
        """

    def statistics(self, state: State, norms: Tensor, finite: Tensor) -> Tensor | None:
        """Statistics of each unit, to be summed and noised; None where there are none.

        Args:
            state: the state of this step.
            norms: float32 tensor of shape `(batch_size,)`, zero where not finite.
            finite: bool tensor of shape `(batch_size,)`.

        Returns:
            A tensor of shape `(batch_size, num_statistics)`.
        """
        return None

    def noise_split(self, noise_multiplier: float, expected_units: float) -> tuple[float, float]:
        """Splits the total noise multiplier into that of the sum and that of the statistics.

        Args:
            noise_multiplier: the total, which the accountant sees.
            expected_units: expected number of units in a step.

        Returns:
            The noise multiplier of the clipped sum, and the standard deviation of the noise on
            each summed statistic.
        """
        return noise_multiplier, 0.0

    def update(self, state: State, statistics: Tensor, expected_units: Tensor) -> State:
        """The state of the next step.

        Args:
            state: the state of this step.
            statistics: the noised sums, of shape `(num_statistics,)`.
            expected_units: expected number of units in a step.
        """
        return state

    @abc.abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Every constructor argument under its own name."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The strategy that `get_config` describes."""
        return cls(**config)


def factors_down_to(clip_norm: Tensor, norms: Tensor) -> Tensor:
    """`min(1, clip_norm / norm)`, one where the norm is zero.

    Args:
        clip_norm: scalar tensor.
        norms: tensor of shape `(batch_size,)`.
    """
    return ops.where(norms <= clip_norm, 1.0, clip_norm / ops.where(norms > 0.0, norms, 1.0))


def require_number(name: str, value: Any) -> float:
    """Returns `value` as a float, or raises where it is not a number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"Argument `{name}` must be a number. Received: {name}={value!r}")
    return float(value)


def require_positive(name: str, value: Any) -> float:
    """Returns `value` as a float, or raises where it is not a positive finite number."""
    number = require_number(name, value)
    if not (math.isfinite(number) and number > 0.0):
        raise ValueError(
            f"Argument `{name}` must be positive and finite. Received: {name}={value!r}"
        )
    return number


def require_clip_norm(name: str, value: Any) -> float:
    """Returns `value` as a float, or raises where float32 cannot clip to it."""
    norm = require_positive(name, value)
    if not SMALLEST_CLIP_NORM <= norm <= LARGEST_CLIP_NORM:
        raise ValueError(
            f"Argument `{name}` must lie between {SMALLEST_CLIP_NORM:g} and "
            f"{LARGEST_CLIP_NORM:g}, where float32 norms can be trusted; scale the loss instead. "
            f"Received: {name}={value!r}"
        )
    return norm
