"""A clipping strategy with its state at one step, for the gradient code."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from keras import ops

from keras_adaclip import backend
from keras_adaclip.clipping.groups import SMALLEST_CLIP_NORM, ParameterGroups
from keras_adaclip.clipping.strategy import ClippingStrategy, State

Tensor = Any


@dataclass(frozen=True)
class Clipper:
    """A strategy, its groups and its state at one step.

    Args:
        strategy: The clipping strategy.
        groups: The groups of the trainable variables, in their order.
        state: The strategy's state at this step.
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
            norms: Float32 of shape `(batch_size, num_groups)`, zero where not finite.
            finite: Bool of shape `(batch_size,)`, false for padding too.
        """
        factors = self._of_each_unit(
            lambda norms, finite: self.strategy.clip_factors(self.state, norms), norms, finite
        )
        # No contribution exceeds its bound, whatever a user's own strategy returns: neither with a
        # negative factor, nor if squares underflow and the computed norm is too small.
        longest = self.state["clip_norm"] / ops.maximum(norms, SMALLEST_CLIP_NORM)
        factors = ops.maximum(ops.minimum(factors, longest), -longest)
        if len(factors.shape) != 2:
            raise ValueError(
                f"`{type(self.strategy).__name__}.clip_factors` must return a tensor of shape "
                "`(batch_size, num_groups)`. Received: a tensor of shape "
                f"{tuple(factors.shape)}"
            )
        counted = ops.logical_and(finite[:, None], ops.logical_not(ops.isnan(factors)))
        return ops.where(counted, factors, 0.0)

    def summed_statistics(
        self, norms: Tensor, finite: Tensor, present: Tensor, factors: Tensor
    ) -> Tensor:
        """Return the sums of the strategy's statistics, float32 of shape `(num_statistics,)`.

        The statistics of each unit are cut to what is paid for.

        Args:
            norms: As in `factors`.
            finite: As in `factors`.
            present: Bool of shape `(batch_size,)`, false for padding.
            factors: The result of `factors`.

        Raises:
            ValueError: If the strategy returns another number of statistics than it states.
        """
        if self.num_statistics == 0:
            return ops.zeros((0,), "float32")
        statistics = self._of_each_unit(self._checked_statistics, norms, finite)
        statistics = ops.where(ops.isnan(statistics), 0.0, statistics)
        if (bound := self.strategy.statistic_bound) is not None:
            statistics = ops.clip(statistics, -bound, bound)
        if self.strategy.statistics_fit_the_norm:
            lengths = ops.sqrt(ops.sum(ops.square(statistics), axis=1, keepdims=True))
            used = ops.square(factors * norms / self.state["clip_norm"])
            room = ops.sqrt(ops.maximum(1.0 - used, 0.0))
            statistics = statistics * ops.where(lengths > room, room / lengths, 1.0)
        return ops.sum(ops.where(present[:, None], statistics, 0.0), axis=0)

    def _checked_statistics(self, norms: Tensor, finite: Tensor) -> Tensor:
        """Return the strategy's statistics of each unit, as many as it states."""
        statistics = self.strategy.statistics(self.state, norms, finite)
        shape = () if statistics is None else tuple(statistics.shape)
        if len(shape) != 2 or shape[1] not in (None, self.num_statistics):
            raise ValueError(
                f"`{type(self.strategy).__name__}.statistics` must return a tensor of shape "
                f"`(batch_size, {self.num_statistics})`, as many statistics as `num_statistics` "
                f"says, which are paid for. Received: a tensor of shape {shape}"
            )
        return ops.cast(statistics, "float32")

    def _of_each_unit(
        self, function: Callable[[Tensor, Tensor], Tensor], norms: Tensor, finite: Tensor
    ) -> Tensor:
        """Return the rows of a function, to which a strategy of the user's shows one unit each.

        Args:
            function: Takes norms and finiteness of some units and returns a row for each.
            norms: As in `factors`.
            finite: As in `factors`.
        """
        is_ours = type(self.strategy).__module__.partition(".")[0] == __name__.partition(".")[0]
        if is_ours and not {"clip_factors", "statistics"} & vars(self.strategy).keys():
            return function(norms, finite)

        def alone(unit: list[Tensor]) -> list[Tensor]:
            """Return the row of one unit."""
            return [function(*(value[None] for value in unit))[0]]

        try:
            return backend.map_units(alone, [norms, finite], may_loop=False)[0]
        except RuntimeError as error:
            raise ValueError(
                f"`{type(self.strategy).__name__}` reads the norm of a unit as a number of Python, "
                "which it could carry to the next unit. Let `clip_factors` and `statistics` "
                f"compute with `keras.ops` alone. PyTorch says: {error}"
            ) from error
