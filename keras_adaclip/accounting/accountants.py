"""Epsilon of composed events, by `dp_accounting`, with caches for what is needed again.

PLD composes discretized privacy loss distributions by FFT (Koskela et al. 2020; Doroshenko et al.
2022, "Connect the dots"). RDP adds up Rényi divergences (Mironov 2017). The accountants of
`dp_accounting` do the same. Here, the distribution of a release and the composition of all rows
but the running one are computed once instead of at every epoch.

Guarantees:
    Never below what the accountants of `dp_accounting` give, up to rounding in the last digits:

    - PLD uses their interval of 1e-4, made *coarser* by powers of two if the distribution would
      have millions of buckets (for an epsilon of several tens and above, or of several with
      truncated draws). A coarser grid whose
      points lie in the finer one only enlarges epsilon, by less than 1e-4 of it if epsilon is
      below 100. If no grid is possible, the bound of RDP is used: for epsilons of tens of
      thousands, or if delta is below the rounding error. Gaussians of different noise are composed
      exactly, into one.
    - RDP adds the rounding error of a release's divergence. `dp_accounting` takes a divergence
      that was computed as zero or below as a proof of epsilon = 0, however many releases there are.
"""

import contextlib
import functools
import logging
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy

from keras_adaclip.accounting.events import (
    CountedEvents,
    DpEvent,
    DrawnRowsEvent,
    SelectedRunsEvent,
    dp,
    knows_truncation,
)
from keras_adaclip.accounting.kinds import ORDERS, Floats, Orders

Pld = Any  # A privacy loss distribution of `dp_accounting`.
_INTERVAL = 1e-4
_COARSEST_INTERVAL = 0.1
_MAX_BUCKETS = 400_000
# The buckets of a sampled release are computed one by one, those of several rows slowly.
_MAX_BUCKETS_OF_RELEASE, _MAX_BUCKETS_OF_ROWS = 200_000, 10_000
_MOST_COMPOSED_AT_ONCE = 100_000
_MOST_KEPT = 4
# Above this loss, float64 cannot hold exp(-loss), and `dp_accounting` returns a point of the grid.
_UNDERFLOWING_LOSS = 700.0
_LEAST_LOG_PROBABILITY = -600.0
# -log(1e-15), the tails that `dp_accounting` cuts off, and those of mixtures.
_LOG_MASS_OF_TAILS, _LOG_MASS_OF_MIXTURES = 34.5, 50.0
_RDP_ROUNDING = 1e-15
# Integer orders: few and fast, and they converge for any noise.
_ROUGH_ORDERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024)


@functools.lru_cache(maxsize=1024)
def composed_epsilon(
    events: CountedEvents, delta: float, accountant: str, coarseness: int = 1
) -> float:
    """Epsilon of some events.

    Args:
        events: Pairs of an event of sensitivity 1 and its count.
        delta: Delta, between 0 and 1.
        accountant: `"pld"` or `"rdp"`. RDP is always used for fixed-size batches and selected
            runs, for which PLD has no bound.
        coarseness: How much coarser than necessary the grid of PLD is. The result is still an
            upper bound, and faster to compute.

    Returns:
        Epsilon: 0.0 if nothing happened, infinite if something happened without noise.
    """
    if not events:
        return 0.0
    if any(isinstance(event, dp.NonPrivateDpEvent) for event, _ in events):
        return math.inf
    composed = _pld(events, coarseness) if _has_pld(events, accountant) else None
    epsilon = math.inf if composed is None else float(composed.get_epsilon_for_delta(delta))
    if math.isinf(epsilon):
        return epsilon_of_divergences(composed_divergences(events), delta)
    if epsilon > _UNDERFLOWING_LOSS:
        # One more bucket, so that the result of a coarser grid is above that of a finer one.
        epsilon += coarseness * _discretization_interval(_with_one_gaussian(events))
    return epsilon


def composed_deltas(
    events: CountedEvents, epsilons: Floats, accountant: str, coarseness: int = 1
) -> Floats | None:
    """Return delta of some events at each epsilon; None if there is no privacy loss distribution.

    Args:
        events: Pairs of an event of sensitivity 1 and its count.
        epsilons: Epsilons of at least 0, growing.
        accountant: `"pld"` or `"rdp"`, which has none.
        coarseness: As for `composed_epsilon`.
    """
    if not events:
        return np.zeros(len(epsilons))
    composed = _pld(events, coarseness) if _has_pld(events, accountant) else None
    return None if composed is None else np.asarray(composed.get_delta_for_epsilon(epsilons))


def _has_pld(events: CountedEvents, accountant: str) -> bool:
    """Return whether events have a privacy loss distribution that the accountant uses."""
    without = (dp.NonPrivateDpEvent, dp.SampledWithoutReplacementDpEvent, SelectedRunsEvent)
    return accountant == "pld" and not any(isinstance(event, without) for event, _ in events)


def _is_truncated(event: DpEvent) -> bool:
    """Return whether an event is a truncated Poisson draw."""
    return knows_truncation() and isinstance(event, dp.TruncatedSubsampledGaussianDpEvent)


def knows_mixtures() -> bool:
    """Return whether the installed `dp_accounting` knows mixtures of Gaussians."""
    return hasattr(dp.pld.privacy_loss_distribution, "from_mixture_gaussian_mechanism")


def rough_epsilon(events: CountedEvents, delta: float) -> float:
    """Return an upper bound on epsilon in milliseconds, as the start of a search."""
    divergences = composed_divergences(events, _ROUGH_ORDERS)
    return epsilon_of_divergences(divergences, delta, _ROUGH_ORDERS)


def composed_divergences(events: CountedEvents, orders: Orders = ORDERS) -> Floats:
    """Return Rényi divergences of events at each order, infinite if one ran without noise."""
    if any(isinstance(event, dp.NonPrivateDpEvent) for event, _ in events):
        return np.full(len(orders), math.inf)
    none = np.zeros(len(orders))
    return sum((count * _release_rdp(event, orders) for event, count in events), start=none)


def epsilon_of_divergences(divergences: Floats, delta: float, orders: Orders = ORDERS) -> float:
    """Epsilon for Rényi divergences at some orders; 0.0 if all are zero."""
    divergences = np.where(np.isnan(divergences), math.inf, divergences)
    if not divergences.any():
        return 0.0
    if not np.isfinite(divergences).any():
        return math.inf
    return float(dp.rdp.rdp_privacy_accountant.compute_epsilon(orders, divergences, delta)[0])


@functools.lru_cache(maxsize=4096)
def _release_rdp(event: DpEvent, orders: Orders) -> Floats:
    """Return Rényi divergences of one release. Shape: `(len(orders),)`."""
    if isinstance(event, SelectedRunsEvent):
        # Divergences grow with the order, so the one at the next order is an upper bound.
        return np.array(event.divergences)[np.searchsorted(ORDERS, orders)]
    if _is_truncated(event):
        return _truncated_rdp(event, orders)
    if isinstance(event, DrawnRowsEvent):
        split, together = (
            count * _release_rdp(each, orders) for each, count in _bounds_of_rows(event)
        )
        return np.minimum(split, together)
    is_fixed_size = isinstance(event, dp.SampledWithoutReplacementDpEvent)
    relation = (
        dp.NeighboringRelation.REPLACE_ONE
        if is_fixed_size
        else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    try:
        accountant = dp.rdp.rdp_privacy_accountant.RdpAccountant(orders, relation)
        with _without_warnings_of_orders():
            divergence = np.asarray(accountant.compose(event).rdp, dtype=np.float64)
    except ValueError:
        # Older versions stop if rounding makes a difference negative. The bound holds without
        # the orders in question.
        if len(orders) == 1:
            return np.array([math.inf])
        divergence = np.concatenate([_release_rdp(event, (order,)) for order in orders])
    if is_fixed_size:
        # The bound for sampling without replacement is loose for large batches. The bound without
        # amplification holds too, whichever unit is replaced.
        noise = event.event.noise_multiplier
        divergence = np.minimum(divergence, np.array(orders) / (2.0 * noise**2))
    if not isinstance(event, dp.GaussianDpEvent):
        divergence = np.maximum(divergence, 0.0) + _RDP_ROUNDING
    divergence.flags.writeable = False
    return divergence


def _truncated_rdp(event: DpEvent, orders: Orders) -> Floats:
    """Return Rényi divergences of one truncated Poisson draw. Shape: `(len(orders),)`.

    The other units fill the batch with some probability. If they do not, the unit is drawn with the
    probability q and moves the sum by C. If they do, it takes the place of another with at most the
    probability q, and moves the sum by 2 C. A distribution against one with a share of 1 - q in
    common is at most 1 / (1 - q) times as dense as against that share, which covers zero-out:

        exp((a - 1) D) <= exp((a - 1) D(q, z)) + filled exp((a - 1) (D(q, z / 2) - log(1 - q)))
    """
    noise, probability = event.noise_multiplier, event.sampling_probability
    once, twice = (
        _release_rdp(dp.PoissonSampledDpEvent(probability, dp.GaussianDpEvent(each)), orders)
        for each in (noise, noise / 2)
    )
    filled = max(_log_probability_of_filling(event), _LEAST_LOG_PROBABILITY)
    exponents = np.array(orders) - 1.0
    replaced = filled + exponents * (twice - math.log1p(-probability))
    return np.logaddexp(exponents * once, replaced) / exponents


def _log_probability_of_filling(event: DpEvent) -> float:
    """Return the logarithm of the probability that the other units fill a truncated draw."""
    most, others = event.truncated_batch_size, event.dataset_size - 1
    return float(scipy.stats.binom.logsf(most - 1, others, event.sampling_probability))


def _bounds_of_rows(event: DrawnRowsEvent) -> tuple[tuple[DpEvent, int], ...]:
    """Return two events with counts, each of which costs at least as much as a draw of rows.

    The noise is the sum of k parts with a k-th of its variance. Who sees each row with its own part
    sees more than their sum: k draws of one row with the noise z / sqrt(k). And a person moves the
    sum no further than k, with the probability that any of their rows is drawn.
    """
    q, noise, num_rows = event.sampling_probability, event.noise_multiplier, event.num_rows
    any_drawn = -math.expm1(num_rows * math.log1p(-q))
    split = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(noise / math.sqrt(num_rows)))
    together = dp.PoissonSampledDpEvent(any_drawn, dp.GaussianDpEvent(noise / num_rows))
    return (split, num_rows), (together, 1)


def _drawn(event: DrawnRowsEvent) -> tuple[Floats, Floats]:
    """Return the numbers of a person's rows that may be drawn, and their log probabilities."""
    drawn = np.arange(event.num_rows + 1.0)
    return drawn, scipy.stats.binom.logpmf(drawn, event.num_rows, event.sampling_probability)


@contextlib.contextmanager
def _without_warnings_of_orders() -> Iterator[None]:
    """Silence `dp_accounting` about excluded orders, which only make epsilon larger."""

    def is_about_something_else(record: logging.LogRecord) -> bool:
        """Return whether the record is not about an excluded order."""
        return "Excluding this order" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(is_about_something_else)
    try:
        yield
    finally:
        logger.removeFilter(is_about_something_else)


def _with_one_gaussian(events: CountedEvents) -> CountedEvents:
    """Return the events with all Gaussians composed into one, the last event.

    With z for a noise multiplier, `1 / z**2` of the composition is the sum over the Gaussians.
    """
    gaussians = [(event, count) for event, count in events if isinstance(event, dp.GaussianDpEvent)]
    if not gaussians:
        return events
    precision = sum(count / event.noise_multiplier**2 for event, count in gaussians)
    others = [each for each in events if not isinstance(each[0], dp.GaussianDpEvent)]
    return (*others, (dp.GaussianDpEvent(1 / math.sqrt(precision)), 1))


def _pld(events: CountedEvents, coarseness: int) -> Pld | None:
    """Return the distribution of all events; None if no grid is possible."""
    events = _with_one_gaussian(events)
    interval = coarseness * _discretization_interval(events)
    if interval > _COARSEST_INTERVAL:
        return None
    return (_composed_pld if coarseness == 1 else _extended_pld)(events, interval)


def _discretization_interval(events: CountedEvents) -> float:
    """Return the interval of `dp_accounting` times a power of two, for the range of losses."""
    # The bounds on draws of several rows are too rough here. The range of one decides.
    others = tuple(each for each in events if not isinstance(each[0], DrawnRowsEvent))
    divergence = composed_divergences(others, _ROUGH_ORDERS)
    tails = _LOG_MASS_OF_TAILS / (np.array(_ROUGH_ORDERS) - 1)
    # The losses of the composition lie between about minus and plus this bound.
    loss_range = 2 * float(np.min(divergence + tails))
    of_release = max(_interval_of_release(event) for event, _ in events)
    needed = max(loss_range / _MAX_BUCKETS, of_release, _INTERVAL)
    if not math.isfinite(needed):
        return math.inf
    return math.ldexp(_INTERVAL, math.ceil(math.log2(needed / _INTERVAL)))


def _interval_of_release(event: DpEvent) -> float:
    """Return the interval that divides the losses of a sampled release into the most buckets.

    The largest loss is that at ten standard deviations of the noise, or for several rows that
    beyond which the mass is negligible.
    """
    if isinstance(event, DrawnRowsEvent):
        drawn, log_probabilities = _drawn(event)
        noise = event.noise_multiplier
        tails = np.sqrt(2 * np.maximum(_LOG_MASS_OF_MIXTURES + log_probabilities, 0.0))
        sums = drawn * np.max((drawn + tails * noise)[tails > 0]) - drawn**2 / 2
        largest = scipy.special.logsumexp(log_probabilities + sums / noise**2)
        return float(max(0.0, largest)) / _MAX_BUCKETS_OF_ROWS
    if _is_truncated(event):
        noise_multiplier = event.noise_multiplier / 2  # Of the replacement of a unit by another.
    elif isinstance(event, dp.PoissonSampledDpEvent):
        noise_multiplier = event.event.noise_multiplier
    else:
        return 0.0
    loss = 10 / noise_multiplier + 0.5 / noise_multiplier**2
    return max(0.0, loss + math.log(event.sampling_probability)) / _MAX_BUCKETS_OF_RELEASE


# Compositions of the first events of a run, the latest last.
_kept_plds: dict[tuple[CountedEvents, float], Pld] = {}


def _composed_pld(events: CountedEvents, interval: float) -> Pld:
    """Return the distribution of all events. The latest compositions are kept."""
    composed = dp.pld.privacy_loss_distribution.identity(value_discretization_interval=interval)
    # A loop, because a ledger has more rows than Python allows nested calls.
    start = next((n for n in range(len(events), 0, -1) if (events[:n], interval) in _kept_plds), 0)
    for number in range(start, len(events) + 1):
        if number > start:
            event, count = events[number - 1]
            composed = composed.compose(self_composed(_release_pld(event, interval), count))
        composed = _kept_plds.pop((events[:number], interval), composed)
        _kept_plds[events[:number], interval] = composed
        if len(_kept_plds) > _MOST_KEPT:
            del _kept_plds[next(iter(_kept_plds))]
    return composed


def _extended_pld(events: CountedEvents, interval: float) -> Pld:
    """Return the distribution of all events, extended from that of an earlier epoch if it is kept.

    Each extension cuts off tails, and their probability counts as infinite loss. Exact figures are
    never extended, so that they do not depend on what was computed before.
    """
    *before, (event, count) = events
    for (kept, grid), composed in reversed(_kept_plds.items()):
        *kept_before, (kept_event, kept_count) = kept or ((None, 0),)
        if (grid, kept_before, kept_event) == (interval, before, event) and kept_count < count:
            portion = _portion_pld(event, interval, count - kept_count)
            composed = _kept_plds[events, interval] = composed.compose(portion)
            del _kept_plds[kept, grid]
            return composed
    return _composed_pld(events, interval)


def self_composed(pld: Pld, count: int) -> Pld:
    """Return the distribution of `count` releases, composed in portions if there are very many.

    `dp_accounting` computes the number of buckets to the power of `count` as an exact integer,
    which takes forever for several millions.
    """
    portions, rest = divmod(count, _MOST_COMPOSED_AT_ONCE)
    if portions == 0:
        return pld if count == 1 else pld.self_compose(count)
    composed = pld.self_compose(_MOST_COMPOSED_AT_ONCE).self_compose(portions)
    return composed.compose(pld.self_compose(rest)) if rest else composed


@functools.lru_cache(maxsize=2)
def _portion_pld(event: DpEvent, interval: float, count: int) -> Pld:
    """Return the distribution of some releases of one event."""
    return self_composed(_release_pld(event, interval), count)


@functools.lru_cache(maxsize=8)
def _release_pld(event: DpEvent, interval: float) -> Pld:
    """Return the privacy loss distribution of one release."""
    distributions = dp.pld.privacy_loss_distribution
    if isinstance(event, DrawnRowsEvent):
        if not knows_mixtures():
            split, count = _bounds_of_rows(event)[0]
            return self_composed(_release_pld(split, interval), count)
        drawn, log_probabilities = _drawn(event)
        return distributions.from_mixture_gaussian_mechanism(
            event.noise_multiplier,
            drawn,
            np.exp(log_probabilities),
            value_discretization_interval=interval,
        )
    is_truncated = _is_truncated(event)
    # Where float64 holds this probability barely or not at all, `dp_accounting` fails.
    if is_truncated and _log_probability_of_filling(event) > _LEAST_LOG_PROBABILITY:
        return distributions.from_truncated_subsampled_gaussian_mechanism(
            event.dataset_size,
            event.sampling_probability,
            event.truncated_batch_size,
            event.noise_multiplier,
            value_discretization_interval=interval,
        )
    sampling_probability = event.sampling_probability if is_truncated else 1.0
    if isinstance(event, dp.PoissonSampledDpEvent):
        sampling_probability, event = event.sampling_probability, event.event
    return distributions.from_gaussian_mechanism(
        event.noise_multiplier,
        value_discretization_interval=interval,
        sampling_prob=sampling_probability,
    )
