"""The state of the noise as Keras variables: key, counter, standard deviations and divisor.

    means = (sums + N(0, stddevs^2)) / expected_units

with the standard deviations of `noise.group_stddevs` for the sum's noise multiplier.

The step reads all of it from variables, so that nothing is fixed when a step is compiled.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend, noise
from keras_adaclip.clipping import ParameterGroups

Tensor = Any

# Norms and products are float32, right to about five digits: the noise is drawn that much wider,
# and a little more for each group whose norm goes into a sum.
_ROUNDING_MARGIN, _MARGIN_OF_A_GROUP = 1.0 + 2.0**-16, 2.0**-23
_STREAM_OF_STATISTICS, _STREAM_OF_SUMS, _STREAM_OF_AUGMENTATION = 0, 1, 2


class NoiseVariables:
    """The noise of one optimizer.

    Args:
        add_variable: makes a variable from a name and an initial array.
        seed: None, or the integer that the keys are derived from.
        groups: the groups of the trainable variables.
        allocation: how the noise is spread over the groups.
    """

    def __init__(
        self,
        add_variable: Callable[[str, np.ndarray], keras.Variable],
        seed: int | None,
        groups: ParameterGroups,
        allocation: str,
    ) -> None:
        self._seed = seed
        self._groups = groups
        self._allocation = allocation
        self.key = add_variable("noise_key", noise.fresh_key())
        self._num_draws = add_variable("num_noise_draws", np.zeros((), np.int32))
        self._sum_noise_multiplier = add_variable("sum_noise_multiplier", np.zeros((), np.float32))
        self._statistics_stddev = add_variable("statistics_stddev", np.zeros((), np.float32))
        self._expected_units = add_variable("expected_units", np.ones((), np.float32))

    def configure(
        self,
        sum_noise_multiplier: float,
        statistics_stddev: float,
        expected_units: int,
        num_earlier_steps: int,
    ) -> None:
        """Sets the noise of the steps to come, under a key that no earlier step had.

        Args:
            sum_noise_multiplier: joint noise multiplier of the sums.
            statistics_stddev: standard deviation of the noise on the statistics.
            expected_units: expected number of units in a step.
            num_earlier_steps: steps on the ledger, which sets the keys of one seed apart.
        """
        self.key.assign(noise.fresh_key(self._seed, num_earlier_steps))
        margin = _ROUNDING_MARGIN + _MARGIN_OF_A_GROUP * self._groups.num_groups
        self._sum_noise_multiplier.assign(_rounded_up(sum_noise_multiplier * margin))
        self._statistics_stddev.assign(_rounded_up(statistics_stddev))
        self._expected_units.assign(np.float32(expected_units))

    def renew_key(self) -> None:
        """Takes this key and all later ones from the operating system, with a seed too.

        Another process may have gone on from the state that was loaded, with the same seed.
        """
        self._seed = None
        self.key.assign(noise.fresh_key())

    def retire_key(self) -> None:
        """Replaces the key, so that nothing here tells what noise was drawn with it."""
        self.key.assign(noise.next_key(backend.array_of(self.key)))

    @property
    def expected_units(self) -> Tensor:
        """Expected number of units in a step, what every sum is divided by."""
        return self._expected_units.value

    def sum_stddevs(self, clip_norms: Tensor) -> list[Tensor]:
        """The standard deviation of the noise on each variable's sum.

        Args:
            clip_norms: what this step's contributions were clipped to, of shape `(num_groups,)`.
        """
        stddevs = noise.group_stddevs(
            self._allocation, self._sum_noise_multiplier.value, clip_norms, self._groups.sizes
        )
        return [stddevs[number] for number in self._groups.assignment]

    def noised_means(self, sums: Sequence[Tensor], stddevs: Sequence[Tensor]) -> list[Tensor]:
        """The noised sums over the expected number of units, float32.

        Args:
            sums: sums of contributions, one a variable.
            stddevs: the standard deviation of the noise on each.
        """
        noised = noise.add_noise(
            sums, stddevs, self.key.value, self._num_draws.value, _STREAM_OF_SUMS
        )
        return [total / self.expected_units for total in noised]

    def noised_statistics(self, statistics: Tensor) -> Tensor:
        """The noised sums of the strategy's statistics, of shape `(num_statistics,)`."""
        (noised,) = noise.add_noise(
            [statistics],
            [self._statistics_stddev.value],
            self.key.value,
            self._num_draws.value,
            _STREAM_OF_STATISTICS,
        )
        return noised

    @property
    def augmentation_seed(self) -> Tensor:
        """Two integers that differ from step to step, for random numbers other than noise."""
        draw = backend.gaussian(
            (2,), self.key.value, self._num_draws.value, _STREAM_OF_AUGMENTATION
        )
        return ops.cast(ops.abs(draw) * 2.0**24, "int32")

    def begin_draw(self) -> None:
        """Moves on to noise that was never drawn, before any of it is."""
        self._num_draws.assign(self._num_draws.value + 1)


def _rounded_up(value: float) -> np.float32:
    """The smallest float32 that is at least `value`: noise is never rounded down."""
    rounded = np.float32(value)
    return rounded if float(rounded) >= value else np.nextafter(rounded, np.float32(np.inf))
