"""Statistics of each unit that lie between -1/2 and 1/2, and what they cost.

    z_D = (z^-2 - K (2 s)^-2)^(-1/2)

for total noise multiplier z and K summed statistics, each noised with standard deviation s: a unit
that comes or goes moves each of them by at most 1/2, and the sum of squares of all sensitivities
over their noises is that of one Gaussian mechanism with z.

Source: Andrew et al. 2021, "Differentially private learning with adaptive clipping", section 2.1.
"""

import math
import warnings


def split(
    noise_multiplier: float,
    stddev: float,
    num_statistics: int,
    strategy: str,
    argument: str,
) -> float:
    """The noise multiplier that is left for the sum.

    Args:
        noise_multiplier: the total, z; positive.
        stddev: standard deviation of the noise on each statistic, in units.
        num_statistics: number of statistics, K.
        strategy: name of the strategy, for the messages.
        argument: its argument that sets the standard deviation.

    Raises:
        ValueError: where nothing is left.

    Example:

    >>> round(split(1.0, 12.8, 1, "QuantileClipping", "count_noise_stddev"), 6)
    1.000764
    """
    root = math.sqrt(num_statistics)
    if noise_multiplier * root >= 2.0 * stddev:
        least = noise_multiplier * root / 2.0
        groups = "" if num_statistics == 1 else f" of {num_statistics} groups"
        raise ValueError(
            f"The noise multiplier {noise_multiplier:g} leaves nothing for the statistics{groups} "
            f"of `{strategy}`, whose noise has standard deviation {stddev:g}: that must be more "
            f"than {least:g}. Raise `{argument}` above {least:g}; where it is None, raise "
            f"`batch_size` (of clients, `cohort_size`) above {20.0 * least:g}. "
            f"Received: noise_multiplier={noise_multiplier}, {argument}={stddev}"
        )
    of_sum = float((noise_multiplier**-2 - num_statistics * (2.0 * stddev) ** -2) ** -0.5)
    if of_sum >= 2.0 * noise_multiplier:
        warnings.warn(
            f"The statistics of `{strategy}` take much of the budget: the sum is noised with "
            f"{of_sum:.3g} instead of {noise_multiplier:.3g}. Raise `{argument}` "
            f"(now {stddev:g}).",
            stacklevel=3,
        )
    return of_sum
