"""A clipping strategy with its state at one step, for the gradient code."""

from dataclasses import dataclass
from typing import Any

from keras import ops

from keras_adaclip.clipping.groups import SMALLEST_CLIP_NORM, ParameterGroups
from keras_adaclip.clipping.strategy import ClippingStrategy, State

Tensor = Any


@dataclass(frozen=True)
class Clipper:
    """A strategy, its groups and its state at one step.

    Args:
        strategy: the clipping strategy.
        groups: the groups of the trainable variables, in their order.
        state: the strategy's state at this step.
    """

    strategy: ClippingStrategy
    groups: ParameterGroups
    state: State

    @property
    def num_groups(self) -> int:
        """The number of groups."""
        return self.groups.num_groups

    @property
    def num_statistics(self) -> int:
        """The number of statistics that each unit adds."""
        return self.strategy.num_statistics(self.num_groups)

    @property
    def coordinates(self) -> list[tuple[Tensor, Tensor]] | None:
        """Centre and scale of each variable, None for clipping in the gradient's coordinates."""
        return self.strategy.coordinates(self.state, self.groups)

    def factors(self, norms: Tensor, finite: Tensor) -> Tensor:
        """Return the factor of each unit in each group, zero where the unit is not finite.

        Args:
            norms: float32 of shape `(batch_size, num_groups)`, zero where not finite.
            finite: bool of shape `(batch_size,)`, false for padding too.
        """
        factors = self.strategy.clip_factors(self.state, norms)
        # No contribution exceeds its bound, whatever a user's own strategy returns: neither with a
        # negative factor, nor if squares underflow and the computed norm is too small.
        longest = self.state["clip_norm"] / ops.maximum(norms, SMALLEST_CLIP_NORM)
        factors = ops.maximum(ops.minimum(factors, longest), -longest)
        counted = ops.logical_and(finite[:, None], ops.logical_not(ops.isnan(factors)))
        return ops.where(counted, factors, 0.0)

    def summed_statistics(self, norms: Tensor, finite: Tensor, present: Tensor) -> Tensor:
        """Return the sums of the strategy's statistics, float32 of shape `(num_statistics,)`.

        Args:
            norms: as in `factors`.
            finite: as in `factors`.
            present: bool of shape `(batch_size,)`, false for padding.

        Raises:
            ValueError: If the strategy returns another number of statistics than it states.
        """
        statistics = self.strategy.statistics(self.state, norms, finite)
        if statistics is None:
            return ops.zeros((self.num_statistics,), "float32")
        if statistics.shape[1] not in (None, self.num_statistics):
            raise ValueError(
                f"`{type(self.strategy).__name__}.statistics` returns another number of statistics "
                "than `num_statistics`, which are paid for. Let both agree. "
                f"Received: {statistics.shape[1]} statistics for {self.num_statistics}"
            )
        return ops.sum(ops.where(present[:, None], statistics, 0.0), axis=0)
