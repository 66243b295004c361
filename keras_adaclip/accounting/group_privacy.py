"""Epsilon for a person who owns several examples.

A person with k examples moves the sum of a step by as many clipping norms as examples of theirs
were drawn: Binomial(k, q) with Poisson sampling, k at most with full releases. The first is a
mixture of Gaussians, whose privacy loss `dp_accounting` knows (Ganesh 2024, "Tight group-level
DP guarantees for DP-SGD with sampling via mixture of Gaussians mechanisms"), the second a Gaussian
with a k-th of the noise. Older versions of `dp_accounting` do not know the first; then the
property of every (epsilon, delta) serves, k epsilon with a larger delta, which is much more:

    epsilon_k = k epsilon(d),   delta = d (e^(k epsilon(d)) - 1) / (e^epsilon(d) - 1)
"""

import functools
import math
from collections.abc import Iterable

import numpy as np
from dp_accounting import DpEvent, NonPrivateDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import stats

from keras_adaclip.accounting import _validation
from keras_adaclip.accounting.accountants import (
    composed_epsilon,
    knows_pld,
    self_composed,
)
from keras_adaclip.accounting.events import CountedEvents, counted_events
from keras_adaclip.accounting.rows import LedgerRow

_KNOWS_MIXTURES = hasattr(privacy_loss_distribution, "from_mixture_gaussian_mechanism")
# Steps of the search for the delta of one example, and where it ends.
_LEAST_LOG_DELTA = -230.0
_PRECISION = 1e-3
# Distributions are on a grid of so many points in a release's range of losses. A coarse one takes
# a tenth of the time, and enlarges epsilon by some thousandths of it, more where very many steps
# each cost next to nothing: then the fine one is taken.
_INTERVAL, _FINE_INTERVAL, _MOST_BUCKETS = 1e-3, 1e-4, 10_000
_WORTH_REFINING = 0.9
# Where one release can lose more than this, a person is not protected anyhow.
_LARGEST_LOSS = 500.0
_MOST_MIXTURES, _LARGEST_GROUP = 8, 100_000


def group_epsilon(rows: Iterable[LedgerRow], delta: float, group_size: int) -> float:
    """Epsilon of what has run, for all examples of a person together.

    Args:
        rows: A `Ledger`, or rows of one.
        delta: Delta, between 0 and 1.
        group_size: The most examples that a person owns, up to 100,000.

    Returns:
        Epsilon, an upper bound, by privacy loss distributions; infinite if a step ran without
        noise. The property of every (epsilon, delta) is taken where more than eight mechanisms ran,
        or something of which there are Rényi divergences only.

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
    delta = _validation.check_delta(delta)
    group_size = _validation.check_integer(
        group_size, "group_size", minimum=1, maximum=_LARGEST_GROUP
    )
    events = counted_events(rows)
    alone = composed_epsilon(events, delta, "pld")
    if group_size == 1 or math.isinf(alone) or not events:
        return alone
    bounds = [by_group_property(events, delta, group_size)]
    is_known = _KNOWS_MIXTURES and knows_pld(events)
    if is_known and len(events) <= _MOST_MIXTURES:
        bounds.append(by_mixtures(events, delta, group_size))
        if bounds[1] > _WORTH_REFINING * bounds[0]:
            bounds.append(by_mixtures(events, delta, group_size, _FINE_INTERVAL))
    # Any of them holds; none is below what one example has.
    return max(alone, min(bounds))


@functools.lru_cache(maxsize=64)
def by_mixtures(
    events: CountedEvents, delta: float, group_size: int, least_interval: float = _INTERVAL
) -> float:
    """By the distribution of how many of a person's examples are drawn; infinite where too large.

    Args:
        events: Pairs of an event and its count.
        delta: Delta.
        group_size: The most examples that a person owns.
        least_interval: The interval of the grid, unless that makes too many points.
    """
    losses = [_largest_loss(event, count, group_size) for event, count in events]
    if max(losses) > _LARGEST_LOSS:
        return math.inf
    needed = max(max(losses) / _MOST_BUCKETS, least_interval)
    interval = math.ldexp(least_interval, math.ceil(math.log2(needed / least_interval)))
    composed = privacy_loss_distribution.identity(value_discretization_interval=interval)
    for event, count in events:
        composed = composed.compose(_repeated_pld(event, count, group_size, interval))
    return float(composed.get_epsilon_for_delta(delta))


@functools.lru_cache(maxsize=64)
def by_group_property(events: CountedEvents, delta: float, group_size: int) -> float:
    """By the property of every (epsilon, delta), whatever ran; arguments as of `by_mixtures`."""

    def epsilon_and_delta(log_delta: float) -> tuple[float, float]:
        alone = composed_epsilon(events, math.exp(log_delta), "pld")
        # The sum of e^(i epsilon) for i from 0 to k - 1.
        log_sum = float(np.logaddexp.reduce(alone * np.arange(group_size)))
        return group_size * alone, log_delta + log_sum

    low, high = _LEAST_LOG_DELTA, math.log(delta)
    if epsilon_and_delta(low)[1] > math.log(delta):
        return math.inf
    while high - low > _PRECISION:
        middle = (low + high) / 2
        is_enough = epsilon_and_delta(middle)[1] <= math.log(delta)
        low, high = (middle, high) if is_enough else (low, middle)
    return epsilon_and_delta(low)[0]


def _taken_apart(event: DpEvent) -> tuple[float, float]:
    """Noise multiplier and sampling probability of an event of a ledger's row."""
    if isinstance(event, PoissonSampledDpEvent):
        return event.event.noise_multiplier, event.sampling_probability
    if isinstance(event, NonPrivateDpEvent):
        return 0.0, 1.0
    return event.noise_multiplier, 1.0


def _largest_loss(event: DpEvent, count: int, group_size: int) -> float:
    """About the loss of one release, or of all full ones, at ten standard deviations."""
    noise, sampling_probability = _taken_apart(event)
    if noise == 0.0:
        return math.inf
    if sampling_probability == 1.0:
        noise /= math.sqrt(count)
    return group_size**2 / (2 * noise**2) + 10 * group_size / noise


def _repeated_pld(
    event: DpEvent, count: int, group_size: int, interval: float
) -> PrivacyLossDistribution:
    """The privacy loss of so many releases for a person's examples together."""
    noise, sampling_probability = _taken_apart(event)
    if sampling_probability == 1.0:
        # A Gaussian composed with itself is a Gaussian with less noise.
        return privacy_loss_distribution.from_gaussian_mechanism(
            noise / (group_size * math.sqrt(count)), value_discretization_interval=interval
        )
    drawn = np.arange(group_size + 1)
    released = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        noise,
        drawn,
        stats.binom.pmf(drawn, group_size, sampling_probability),
        value_discretization_interval=interval,
    )
    return self_composed(released, count)
