"""The interface of a clipping strategy to the gradient code and to the optimizer.

A strategy is a set of pure functions over a small *state* (a dict of tensors) that the optimizer
keeps among its variables: clip factors from norms, statistics that are summed over the units and
noised, and the state of the next step. Statistics cost noise on the sum:

    z_D = (z^-2 - K (2 s)^-2)^(-1/2)

is the noise multiplier of the sum, for total noise multiplier z and K statistics between -1/2 and
1/2, each summed and noised with standard deviation s. Adding or removing a unit moves each sum by
at most 1/2, so sum and statistics together are one Gaussian mechanism with noise multiplier z.

Source: Andrew et al. 2021, "Differentially private learning with adaptive clipping", section 2.1.
"""

import abc
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from keras import ops

from keras_adaclip._checks import check_choice
from keras_adaclip._configurable import Configurable
from keras_adaclip.clipping.groups import Groups, ParameterGroups, check_groups
from keras_adaclip.noise import ALLOCATIONS

Tensor = Any
State = dict[str, Tensor]


@dataclass(frozen=True)
class Release:
    """The private outputs of one step: all that the next state may depend on.

    Args:
        means: The noised means, one for each variable, in the coordinates of the clipping.
        mean_stddevs: The standard deviation of the noise in each mean.
        statistics: The noised sums of the strategy's statistics, of shape `(num_statistics,)`.
        expected_units: Expected number of units in a step.
        step: Number of steps taken, this one included.
    """

    means: Sequence[Tensor]
    mean_stddevs: Sequence[Tensor]
    statistics: Tensor
    expected_units: Tensor
    step: Tensor


class ClippingStrategy(Configurable, abc.ABC):
    """Base class of clipping strategies.

    The constructor arguments of a subclass are attributes of the same names.

    Args:
        groups: `"flat"` clips the whole contribution to one norm, `"per_layer"` the part of each
            layer to its own norm; a function takes a variable and returns the name of its group.
        noise_allocation: How the noise is spread over groups: `"global"` (equal noise on every
            coordinate), `"proportional"` (to the group's clipping norm) or `"optimal"` (least
            total noise).

    Attributes:
        is_constant: Whether the state never changes; loading a checkpoint then leaves it alone.
        statistic_bound: The largest absolute value of a statistic of one unit, to which it is cut.
            A strategy with statistics states it, and pays for as much in `noise_split`.
        statistics_fit_the_norm: Whether (n / clip_norm)^2 + ||statistics||^2 <= 1 for every unit,
            with n the norm of what it contributes. In a single group, with the total noise
            multiplier, statistics then cost nothing.

    `clip_factors` and `statistics` of a subclass outside of this package are called for one unit at
    a time: their tensors then have one row.

    Guarantees:
        One unit adds at most `state["clip_norm"][k]` (Euclidean) to group k of the sum, under
        addition or removal of that unit and under its replacement by a hole. A unit with a number
        that is not finite adds zero. `noise_split` says how the total noise multiplier pays for the
        sum and for the strategy's own statistics.
    """

    is_constant: ClassVar[bool] = False
    groups: Groups = "flat"
    noise_allocation: str = "global"
    statistics_fit_the_norm: ClassVar[bool] = False
    statistic_bound: ClassVar[float | None] = None

    def __init__(self, groups: Groups = "flat", noise_allocation: str = "global") -> None:
        self.groups = check_groups(groups)
        self.noise_allocation = check_choice("noise_allocation", noise_allocation, ALLOCATIONS)

    @abc.abstractmethod
    def initial_state(self, groups: ParameterGroups) -> dict[str, np.ndarray]:
        """Return the state before the first step.

        Args:
            groups: The groups of the trainable variables.

        Returns:
            Arrays, among them `"clip_norm"` of shape `(num_groups,)`.
        """

    def clip_factors(self, state: State, norms: Tensor) -> Tensor:
        """Return the factor of each unit's contribution to each group: `min(1, clip_norm / norm)`.

        Args:
            state: The state of this step.
            norms: Float32 tensor of shape `(batch_size, num_groups)`, all finite.

        Returns:
            A float32 tensor of the same shape with `factor * norm <= clip_norm`.
        """
        clip_norm = state["clip_norm"]
        return ops.where(norms <= clip_norm, 1.0, clip_norm / ops.where(norms > 0.0, norms, 1.0))

    def num_statistics(self, num_groups: int) -> int:
        """Return the number of statistics that each unit adds.

        Args:
            num_groups: Number of groups.
        """
        return 0

    def statistics(self, state: State, norms: Tensor, finite: Tensor) -> Tensor | None:
        """Return the statistics of each unit, which are summed and noised; None if there are none.

        A strategy with statistics states their number in `num_statistics` and their size in
        `statistic_bound`, and pays for them in `noise_split`, unless `statistics_fit_the_norm`.
        What exceeds that is cut off.

        Args:
            state: The state of this step.
            norms: Float32 tensor of shape `(batch_size, num_groups)`, zero where not finite.
            finite: Bool tensor of shape `(batch_size,)`.

        Returns:
            A tensor of shape `(batch_size, num_statistics)`.
        """
        return None

    def noise_split(
        self, noise_multiplier: float, expected_units: float, num_groups: int = 1
    ) -> tuple[float, float]:
        """Split the total noise multiplier between the sum and the statistics.

        Args:
            noise_multiplier: The total, which the accountant sees.
            expected_units: Expected number of units in a step.
            num_groups: Number of groups.

        Returns:
            The noise multiplier of the clipped sum, and the standard deviation of the noise on
            each summed statistic.
        """
        return noise_multiplier, 0.0

    def coordinates(
        self, state: State, groups: ParameterGroups
    ) -> list[tuple[Tensor, Tensor]] | None:
        """Return centre and scale of each variable, None to clip the gradients as they are.

        Unit i is clipped as `(g_i - centre) / scale`. Both may depend on earlier releases only.

        Args:
            state: The state of this step.
            groups: The groups of the trainable variables.
        """
        return None

    def gradients(self, state: State, means: Sequence[Tensor]) -> list[Tensor]:
        """Return the noised means in the coordinates of the gradient.

        Args:
            state: The state of this step.
            means: The noised mean of each variable, in the coordinates of the clipping.
        """
        return list(means)

    def begin_run(
        self, state: dict[str, np.ndarray], step: int, steps_per_epoch: int | None
    ) -> dict[str, np.ndarray]:
        """Return the entries of the state that change when a run of steps begins.

        Args:
            state: The state as arrays.
            step: Number of steps taken so far.
            steps_per_epoch: Number of steps in an epoch, None if unknown.
        """
        return {}

    def update(self, state: State, release: Release) -> State:
        """Return the state of the next step.

        Args:
            state: The state of this step.
            release: The private outputs of this step.
        """
        return state

    def clip_norm_of_step(self, state: State, step: int) -> Any:
        """Return the norms to log for a step, of shape `(num_groups,)`.

        A strategy that adapts logs the norms that its latest step has set; a schedule overrides
        this, and logs the norms with which the step was clipped.

        Args:
            state: The state as arrays, after the latest step.
            step: Number of the latest step, from 0.
        """
        return state["clip_norm"]

    def describe(self, noise_multiplier: float, expected_units: float, num_groups: int = 1) -> str:
        """Return a sentence with the noise on the sum and the price of the statistics.

        Args:
            noise_multiplier: The total, which the accountant sees.
            expected_units: Expected number of units in a step.
            num_groups: Number of groups.
        """
        rest, stddev = self.noise_split(noise_multiplier, expected_units, num_groups)
        num_statistics = self.num_statistics(num_groups)
        text = (
            f"{type(self).__name__}: noise multiplier z = {noise_multiplier:.6g}, of the sum "
            f"z_D = {rest:.6g}"
        )
        if num_statistics and noise_multiplier > 0.0:
            count = f"{num_statistics} private statistic{'s' if num_statistics > 1 else ''}"
            if self.statistics_fit_the_norm:
                return f"{text}; {count} at no cost"
            text += (
                f" ({100.0 * (rest / noise_multiplier - 1.0):.3g}% more noise, the price of "
                f"{count} with noise of standard deviation {stddev:.6g})"
            )
        if num_groups > 1:
            text += f"; {num_groups} groups, noise allocation {self.noise_allocation!r}"
        return text


class AdaptiveClipping(ClippingStrategy):
    """Base class of strategies with one statistic in [-1/2, 1/2] for each unit and group.

    A subclass implements `statistics` and `update`, and names its argument for the standard
    deviation of the noise on the summed statistics in `_stddev_argument`.

    Guarantees:
        The clipped sum and the statistics of one step together are one Gaussian mechanism with the
        total noise multiplier, under addition or removal of one unit.
    """

    statistic_bound = 0.5
    _stddev_argument: ClassVar[str]

    def num_statistics(self, num_groups: int) -> int:
        """Return one statistic for each group."""
        return num_groups

    def noise_split(
        self, noise_multiplier: float, expected_units: float, num_groups: int = 1
    ) -> tuple[float, float]:
        """Return the noise multiplier of the sum and the standard deviation on the statistics.

        Raises:
            ValueError: If the statistics have so little noise that none is left for the sum.
        """
        given = getattr(self, self._stddev_argument)
        if noise_multiplier == 0.0:
            return 0.0, given or 0.0
        stddev = float(given or expected_units / 20.0)
        name, argument = type(self).__name__, self._stddev_argument
        least = noise_multiplier * math.sqrt(num_groups) / 2.0
        if stddev <= least:
            raise ValueError(
                f"The noise multiplier {noise_multiplier:g} leaves nothing for the statistics of "
                f"`{name}` ({num_groups}): their noise must have a standard deviation above "
                f"{least:g}. Raise `{argument}` above {least:g}; where it is None, raise "
                f"`batch_size` (of clients, `cohort_size`) above {20.0 * least:g}. "
                f"Received: noise_multiplier={noise_multiplier}, {argument}={stddev}"
            )
        rest = float((noise_multiplier**-2 - num_groups * (2.0 * stddev) ** -2) ** -0.5)
        if rest >= 2.0 * noise_multiplier:
            warnings.warn(
                f"The statistics of `{name}` take much of the budget: the sum is noised with "
                f"{rest:.3g} instead of {noise_multiplier:.3g}. Raise `{argument}` "
                f"(now {stddev:g}).",
                stacklevel=2,
            )
        return rest, stddev
