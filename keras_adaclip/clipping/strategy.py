"""What every clipping strategy offers to the gradient code and to the optimizer.

A strategy is a set of pure functions over a small *state* (a dict of tensors) that the optimizer
keeps among its variables: clip factors from norms, statistics that are summed over the units and
noised, and the state of the next step.
"""

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from keras import ops

from keras_adaclip.clipping.groups import (
    GroupsArgument,
    ParameterGroups,
    checked_groups,
    serialized_groups,
)
from keras_adaclip.noise import checked_allocation

Tensor = Any
State = dict[str, Tensor]


@dataclass(frozen=True)
class Release:
    """What one step releases: all that the next threshold may depend on.

    Args:
        means: the noised means, one a variable, in the coordinates in which they were clipped.
        mean_stddevs: the standard deviation of the noise in each of them.
        statistics: the noised sums of the strategy's statistics, of shape `(num_statistics,)`.
        expected_units: expected number of units in a step.
        step: the number of steps taken, this one included.
    """

    means: Sequence[Tensor]
    mean_stddevs: Sequence[Tensor]
    statistics: Tensor
    expected_units: Tensor
    step: Tensor


class ClippingStrategy(abc.ABC):
    """Base class of the clipping strategies.

    Args:
        groups: `"flat"` clips the whole contribution to one norm, `"per_layer"` the part of each
            layer to its own; a function takes a variable and returns the name of its group.
        noise_allocation: how the noise is spread over groups: `"global"` (the same for every
            coordinate), `"proportional"` (to the group's clipping norm) or `"optimal"` (the least
            noise in all).

    Guarantees:
        One unit adds at most `state["clip_norm"][k]` (Euclidean) to group k of the sum, under
        addition or removal of that unit and under its replacement by a hole. A unit of which a
        number is not finite adds zero. `noise_split` says how the total noise multiplier pays for
        the sum and for the strategy's own statistics.
    """

    # Whether contributions are clipped in coordinates of the strategy's own.
    has_coordinates: ClassVar[bool] = False
    # Whether the state never changes, so that loading a checkpoint must not change it either.
    is_constant: ClassVar[bool] = False
    groups: GroupsArgument = "flat"
    noise_allocation: str = "global"

    def __init__(self, groups: GroupsArgument = "flat", noise_allocation: str = "global") -> None:
        self.groups = checked_groups(groups)
        self.noise_allocation = checked_allocation(noise_allocation)
        self._latest_split: tuple[float, float, float, int] | None = None

    @abc.abstractmethod
    def initial_state(self, groups: ParameterGroups) -> dict[str, np.ndarray]:
        """The state before the first step.

        Args:
            groups: the groups of the trainable variables.

        Returns:
            Arrays, among them `"clip_norm"` of shape `(num_groups,)`.
        """

    @abc.abstractmethod
    def clip_factors(self, state: State, norms: Tensor) -> Tensor:
        """The factor of each unit's contribution to each group.

        Args:
            state: the state of this step.
            norms: float32 tensor of shape `(batch_size, num_groups)`, all finite.

        Returns:
            A float32 tensor of the same shape with `factor * norm <= clip_norm`.
        """

    def num_statistics(self, num_groups: int) -> int:
        """The number of statistics that each unit adds.

        Args:
            num_groups: number of groups of variables.
        """
        return 0

    def statistics(self, state: State, norms: Tensor, finite: Tensor) -> Tensor | None:
        """Statistics of each unit, to be summed and noised; None where there are none.

        A strategy that has some says how many in `num_statistics`, and pays for them in
        `noise_split`: see `paid_statistics.split` for statistics between -1/2 and 1/2.

        Args:
            state: the state of this step.
            norms: float32 tensor of shape `(batch_size, num_groups)`, zero where not finite.
            finite: bool tensor of shape `(batch_size,)`.

        Returns:
            A tensor of shape `(batch_size, num_statistics)`.
        """
        return None

    def noise_split(
        self, noise_multiplier: float, expected_units: float, num_groups: int = 1
    ) -> tuple[float, float]:
        """Splits the total noise multiplier into that of the sum and that of the statistics.

        Args:
            noise_multiplier: the total, which the accountant sees.
            expected_units: expected number of units in a step.
            num_groups: number of groups.

        Returns:
            The noise multiplier of the clipped sum, and the standard deviation of the noise on
            each summed statistic.
        """
        return noise_multiplier, 0.0

    def coordinates(self, state: State, groups: ParameterGroups) -> list[tuple[Tensor, Tensor]]:
        """Centre and scale of each variable, where `has_coordinates`.

        Unit i is clipped as `(g_i - centre) / scale`; both may depend on earlier releases only.

        Args:
            state: the strategy's variables, as `initial_state` names them.
            groups: the groups of variables, with their shapes.
        """
        raise NotImplementedError

    def gradients(self, state: State, means: Sequence[Tensor]) -> list[Tensor]:
        """The noised means in the coordinates of the gradient.

        Args:
            state: the strategy's variables.
            means: a noised mean for each variable, in its shape.
        """
        return list(means)

    def begin_run(
        self, state: dict[str, np.ndarray], step: int, steps_per_epoch: int | None
    ) -> dict[str, np.ndarray]:
        """What of the state changes as a run of steps begins; nothing, by default.

        Args:
            state: the state as arrays.
            step: the number of steps taken so far.
            steps_per_epoch: steps in an epoch, None where unknown.
        """
        return {}

    def update(self, state: State, release: Release) -> State:
        """The state of the next step.

        Args:
            state: the state of this step.
            release: what this step released.
        """
        return state

    def clip_norm_of_step(self, state: State, step: int) -> Any:
        """The norms that stand in logs and figures for the latest step, one a group.

        A norm that adapts to the gradients moves a little after every step, and is logged as the
        latest step left it: `state["clip_norm"]`, with which the next one clips. A norm that is
        known beforehand may leap between two steps, and is logged as the latest step used it.

        Args:
            state: the state of the next step, as arrays.
            step: the number of the latest step, from 0.

        Returns:
            An array of shape `(num_groups,)`.
        """
        return state["clip_norm"]

    def describe(
        self,
        noise_multiplier: float | None = None,
        expected_units: float | None = None,
        num_groups: int | None = None,
    ) -> str:
        """In words: the strategy, and what its statistics cost in noise.

        Args:
            noise_multiplier: the total; None means that of the latest run.
            expected_units: expected number of units in a step; None as above.
            num_groups: number of groups; None means that of the latest run, or one.
        """
        split = getattr(self, "_latest_split", None)
        if num_groups is None:
            num_groups = 1 if split is None else split[3]
        if noise_multiplier is not None and expected_units is not None:
            of_sum, of_statistics = self.noise_split(noise_multiplier, expected_units, num_groups)
            split = (noise_multiplier, of_sum, of_statistics, num_groups)
        name = type(self).__name__
        if split is None:
            return (
                f"{name}: the noise is split when training starts; "
                "`describe(noise_multiplier, expected_units)` tells it now"
            )
        total, of_sum, of_statistics, num_groups = split
        num_statistics = self.num_statistics(num_groups)
        text = f"{name}: noise multiplier z = {total:.6g}, of the sum z_D = {of_sum:.6g}"
        if num_statistics and total > 0.0:
            text += (
                f" ({100.0 * (of_sum / total - 1.0):.3g}% more noise, the price of "
                f"{num_statistics} private statistic{'s' if num_statistics > 1 else ''} with noise "
                f"of standard deviation {of_statistics:.6g})"
            )
        if num_groups > 1:
            text += f"; {num_groups} groups, noise allocation {self.noise_allocation!r}"
        elif self.groups != "flat":
            text += "; for a single group: `describe(..., num_groups=...)` tells it for more"
        return text

    def remember_split(self, total: float, of_sum: float, of_statistics: float, num: int) -> None:
        """Keeps what the optimizer's latest run pays, for `describe`.

        Args:
            total: the noise multiplier that the accountant sees.
            of_sum: that of the clipped sum alone.
            of_statistics: standard deviation of the noise of a statistic.
            num: number of statistics.
        """
        self._latest_split = (total, of_sum, of_statistics, num)

    @abc.abstractmethod
    def get_config(self) -> dict[str, Any]:
        """Every constructor argument under its own name."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """The strategy that `get_config` describes.

        Args:
            config: what `get_config` returned.
        """
        return cls(**config)

    def _group_config(self) -> dict[str, Any]:
        """The part of the config that all strategies with groups share."""
        return {
            "groups": serialized_groups(self.groups),
            "noise_allocation": self.noise_allocation,
        }


def factors_down_to(clip_norm: Tensor, norms: Tensor) -> Tensor:
    """`min(1, clip_norm / norm)`, one where the norm is zero.

    Args:
        clip_norm: tensor of shape `(num_groups,)`.
        norms: tensor of shape `(batch_size, num_groups)`.
    """
    return ops.where(norms <= clip_norm, 1.0, clip_norm / ops.where(norms > 0.0, norms, 1.0))
