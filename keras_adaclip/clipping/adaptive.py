"""Clipping norms that adapt to noised statistics of the units, and the cost of the statistics.

    z_D = (z^-2 - K (2 s)^-2)^(-1/2)

is the noise multiplier of the sum, for total noise multiplier z and K statistics between -1/2 and
1/2, each summed and noised with standard deviation s. Adding or removing a unit moves each sum by
at most 1/2, so sum and statistics together are one Gaussian mechanism with noise multiplier z.

Source: Andrew et al. 2021, "Differentially private learning with adaptive clipping", section 2.1.
"""

import math
import warnings
from typing import ClassVar

from keras_adaclip.clipping.strategy import ClippingStrategy


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
