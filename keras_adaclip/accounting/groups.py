"""Epsilon for a person who owns several examples, and epsilon as the shift of one Gaussian.

A person with k examples moves the sum of a step by as many clipping norms as examples of theirs
were drawn: Binomial(k, q) with Poisson sampling, at most k with full releases. Poisson sampling is
then a mixture of Gaussians, whose privacy loss `dp_accounting` knows (Ganesh 2024, "Tight
group-level DP guarantees for DP-SGD with sampling via mixture of Gaussians mechanisms"); a full
release is a Gaussian with a k-th of the noise. For other mechanisms, the group property of any
(epsilon, delta) gives a much larger bound:

    epsilon_k = k epsilon(d),   delta = d (e^(k epsilon(d)) - 1) / (e^epsilon(d) - 1)
"""

import math
from collections.abc import Iterable

import numpy as np
import scipy

from keras_adaclip import _checks
from keras_adaclip.accounting.accountants import composed_epsilon
from keras_adaclip.accounting.events import MOST_ROWS, CountedEvents, counted_events, dp
from keras_adaclip.accounting.row import LedgerRow

# The search for the delta of one example ends here, and has this precision.
_LEAST_LOG_DELTA = -230.0
_PRECISION = 1e-3
_MOST_MIXTURES = 8
_LEAST_LOG_MU, _MOST_LOG_MU = math.log(1e-12), math.log(1e6)


def group_epsilon(rows: Iterable[LedgerRow], delta: float, group_size: int) -> float:
    """Epsilon of what has run, for all examples of a person together.

    Args:
        rows: A `Ledger`, or rows of one.
        delta: Delta, between 0 and 1.
        group_size: The most examples that a person owns, up to 100,000.

    Returns:
        Epsilon, an upper bound, by privacy loss distributions; infinite if a step ran without
        noise. The group property is used if more than eight mechanisms ran, draws were truncated,
        or only Rényi divergences of a mechanism are known.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.

    Example:

    >>> from keras_adaclip.accounting import Sampling
    >>> row = LedgerRow.open(Sampling.SHUFFLE, 256, 60_000, noise_multiplier=20.0).advance(235)
    >>> for group_size in (1, 2, 4):
    ...     print(f"{group_epsilon([row], 1e-5, group_size):.3f}")
    0.160
    0.341
    0.726
    """
    delta = _checks.check_between_0_and_1("delta", delta)
    group_size = _checks.check_integer("group_size", group_size, minimum=1, maximum=MOST_ROWS)
    rows = tuple(rows)
    events = counted_events(rows, group_size=1)
    alone = composed_epsilon(events, delta, "pld")
    if group_size == 1 or math.isinf(alone) or not events:
        return alone
    are_known = all(
        isinstance(event, (dp.PoissonSampledDpEvent, dp.GaussianDpEvent)) for event, _ in events
    )
    if not are_known or len(events) > _MOST_MIXTURES:
        return max(alone, _by_group_property(events, delta, group_size))
    return composed_epsilon(counted_events(rows, group_size=group_size), delta, "pld")


def _by_group_property(events: CountedEvents, delta: float, group_size: int) -> float:
    """Return a bound by the property of any (epsilon, delta); arguments as of `group_epsilon`."""

    def excess(log_delta: float) -> float:
        """Return by how much the group's log delta exceeds the wanted one."""
        alone = composed_epsilon(events, math.exp(log_delta), "pld")
        # The sum of e^(i epsilon) for i from 0 to k - 1.
        log_sum = float(np.logaddexp.reduce(alone * np.arange(group_size)))
        return log_delta + log_sum - math.log(delta)

    if excess(_LEAST_LOG_DELTA) > 0.0:
        return math.inf
    root = scipy.optimize.brentq(excess, _LEAST_LOG_DELTA, math.log(delta), xtol=_PRECISION)
    # Below the root the group's delta is small enough.
    return group_size * composed_epsilon(events, math.exp(root - 2 * _PRECISION), "pld")


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the shift of the Gaussian mechanism that has exactly this epsilon at this delta.

        delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)

    for telling N(0, 1) from N(mu, 1) (Dong, Roth and Su 2022, "Gaussian differential privacy",
    corollary 2.13; Balle and Wang 2018). A single number to compare runs by. It is no bound at
    other deltas, unless all releases were full, whose composition is a Gaussian.

    Args:
        epsilon: Epsilon, at least 0; infinite gives infinity.
        delta: Delta, between 0 and 1.

    Returns:
        Mu: the shift in standard deviations between neighbouring data sets.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.

    Example:

    >>> print(f"{gaussian_mu(3.0, 1e-5):.3f}")
    0.719
    """
    delta = _checks.check_between_0_and_1("delta", delta)
    if epsilon == math.inf:
        return math.inf
    epsilon = _checks.check_nonnegative("epsilon", epsilon)

    def excess(log_mu: float) -> float:
        """Return by how much the log delta of a Gaussian exceeds that of the argument."""
        return _log_delta(epsilon, math.exp(log_mu)) - math.log(delta)

    if excess(_LEAST_LOG_MU) >= 0.0:
        return 0.0
    if excess(_MOST_LOG_MU) <= 0.0:
        return math.inf
    return math.exp(scipy.optimize.brentq(excess, _LEAST_LOG_MU, _MOST_LOG_MU, xtol=1e-10))


def _log_delta(epsilon: float, mu: float) -> float:
    """Return log delta(epsilon) of the Gaussian mechanism with shift mu."""
    upper = scipy.special.log_ndtr(mu / 2 - epsilon / mu)
    lower = epsilon + scipy.special.log_ndtr(-mu / 2 - epsilon / mu)
    if not lower < upper:
        return -math.inf
    return float(upper + math.log1p(-math.exp(lower - upper)))
