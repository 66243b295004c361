"""The state of the noise as Keras variables: key, counter, standard deviations and divisor.

    means = (sums + N(0, stddevs^2)) / expected_units

with the standard deviations of `noise.group_stddevs` for the sum's noise multiplier. The step reads
all of them from variables, so that none is constant in a compiled step.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend, noise
from keras_adaclip.clipping import ParameterGroups

Tensor = Any

# Norms and sums in float32 are exact to three digits and more, see `gradients.totals`. The noise is
# wider by that much, and by a little more for each group whose norm is part of a sum.
_ROUNDING_MARGIN, _MARGIN_PER_GROUP = 1.001, 2.0**-23
_STATISTICS_STREAM, _SUMS_STREAM, _LAYERS_STREAM = 0, 1, 2


class NoiseState:
    """The noise of one optimizer.

    Args:
        add_variable: a function that makes a variable from a name and an initial array.
        groups: the groups of the trainable variables.
        allocation: how the noise is spread over the groups.
    """

    def __init__(
        self,
        add_variable: Callable[[str, np.ndarray], keras.Variable],
        groups: ParameterGroups,
        allocation: str,
    ) -> None:
        self._groups = groups
        self._allocation = allocation
        self.key = add_variable("noise_key", noise.fresh_key())
        self._num_draws = add_variable("num_noise_draws", np.zeros((), np.int32))
        self._sum_noise_multiplier = add_variable("sum_noise_multiplier", np.zeros((), np.float32))
        self._statistics_stddev = add_variable("statistics_stddev", np.zeros((), np.float32))
        self._expected_units = add_variable("expected_units", np.ones((), np.float32))

    def configure(
        self, sum_noise_multiplier: float, statistics_stddev: float, expected_units: int
    ) -> None:
        """Set the noise of the next steps.

        Args:
            sum_noise_multiplier: joint noise multiplier of the sums.
            statistics_stddev: standard deviation of the noise on the statistics.
            expected_units: expected number of units in a step.
        """
        margin = _ROUNDING_MARGIN + _MARGIN_PER_GROUP * self._groups.num_groups
        self._sum_noise_multiplier.assign(_rounded_up(sum_noise_multiplier * margin))
        self._statistics_stddev.assign(_rounded_up(statistics_stddev * margin))
        self._expected_units.assign(np.float32(expected_units))

    @property
    def expected_units(self) -> Tensor:
        """Expected number of units in a step, the divisor of every sum."""
        return self._expected_units.value

    def sum_stddevs(self, clip_norms: Tensor) -> list[Tensor]:
        """Return the standard deviation of the noise on each variable's sum.

        Args:
            clip_norms: the clipping norms of this step, of shape `(num_groups,)`.
        """
        stddevs = noise.group_stddevs(
            self._allocation, self._sum_noise_multiplier.value, clip_norms, self._groups.sizes
        )
        of_groups = [stddevs[number] for number in range(self._groups.num_groups)]
        return [of_groups[number] for number in self._groups.assignment]

    def noised_means(
        self,
        sums: Sequence[Tensor],
        stddevs: Sequence[Tensor],
        remainders: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """Return the noised sums over the expected number of units, float32.

        Args:
            sums: the sum of contributions of each variable.
            stddevs: the standard deviation of the noise on each.
            remainders: what float32 has lost of each sum, None for nothing.
        """
        means, divisor = [], ops.convert_to_tensor(self.expected_units)
        for total in self._noised(sums, stddevs, _SUMS_STREAM, remainders):
            total /= divisor  # In place on PyTorch.
            means.append(total)
        return means

    def noised_statistics(self, statistics: Tensor, remainder: Tensor | None = None) -> Tensor:
        """Return the noised sums of the strategy's statistics, of shape `(num_statistics,)`.

        Args:
            statistics: the sums.
            remainder: what float32 has lost of them, None for nothing.
        """
        stddev, lost = self._statistics_stddev.value, None if remainder is None else [remainder]
        (noised,) = self._noised([statistics], [stddev], _STATISTICS_STREAM, lost)
        return noised

    @property
    def seed_of_layers(self) -> Tensor:
        """64 random bits, new for each step: the seed of random numbers other than noise."""
        return backend.seed_of_step(self.key.value, self._num_draws.value, _LAYERS_STREAM)

    def begin_draw(self) -> None:
        """Advance the counter of draws, before any noise of the step is drawn."""
        self._num_draws.assign(self._num_draws.value + 1)

    def _noised(
        self,
        tensors: Sequence[Tensor],
        stddevs: Sequence[Tensor],
        stream: int,
        remainders: Sequence[Tensor] | None,
    ) -> list[Tensor]:
        """Return the tensors with the noise of this step and stream added."""
        key, number = self.key.value, self._num_draws.value
        return noise.add_noise(tensors, stddevs, key, number, stream, remainders)


def _rounded_up(value: float) -> np.float32:
    """Return the smallest float32 that is at least `value`: noise is never rounded down."""
    rounded = np.float32(value)
    return rounded if float(rounded) >= value else np.nextafter(rounded, np.float32(np.inf))
