"""Epsilon of composed events, by `dp_accounting`, with what is worth keeping kept.

PLD composes discretized privacy loss distributions by FFT (Koskela et al. 2020; Doroshenko et al.
2022, "Connect the dots"); RDP adds up Rényi divergences (Mironov 2017). Both are what the
accountants of `dp_accounting` do with the same events, taken apart here so that a release's
distribution, and the composition of all rows but the running one, are computed once and not at
every epoch.

Guarantees:
    Never below what `dp_accounting`'s own accountants give, up to rounding in the last digits:

    - PLD uses their interval of 1e-4, made *coarser* by powers of two where the distribution
      would have millions of buckets (from an epsilon of some tens on). Coarser grids that lie in
      the finer one only enlarge epsilon, by less than 1e-4 of it while it is below 100. Where no
      grid will do, RDP's bound is taken: for epsilons of ten thousands, or a delta so small that
      rounding alone exceeds it. Gaussians of different noise are composed exactly, into one.
    - RDP adds the rounding error of a release's divergence back. `dp_accounting` takes a
      divergence that came out as zero or below for a proof of epsilon = 0, however many releases
      there are.
"""

import contextlib
import functools
import logging
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.rdp import rdp_privacy_accountant

from keras_adaclip.accounting.events import CountedEvents, SelectedRunsEvent
from keras_adaclip.accounting.selection_cost import ORDERS

_INTERVAL = 1e-4
_COARSEST_INTERVAL = 0.1
_MAX_BUCKETS = 400_000
_MAX_BUCKETS_OF_RELEASE = 200_000  # those of a sampled release are computed one by one
_MOST_COMPOSED_AT_ONCE = 100_000
_MOST_KEPT = 4
# Above this loss exp(-loss) is lost to float64 and `dp_accounting` returns a point of the grid.
_UNDERFLOWING_LOSS = 700.0
_LOG_MASS_OF_TAILS = 34.5  # -log(1e-15), the tails that dp_accounting cuts off
_RDP_ROUNDING = 1e-15
# Whole orders: few, quick, and they converge for any noise.
_ROUGH_ORDERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024)


@functools.lru_cache(maxsize=1024)
def composed_epsilon(
    events: CountedEvents, delta: float, accountant: str, coarseness: int = 1
) -> float:
    """Epsilon of some events.

    Args:
        events: Pairs of an event of sensitivity 1 and its count.
        delta: Delta, between 0 and 1.
        accountant: `"pld"` or `"rdp"`. PLD has no bound for fixed-size batches and for selected
            runs: RDP's is taken.
        coarseness: How much coarser PLD's grid is made than it need be: an upper bound still, and
            quicker to search with.

    Returns:
        Epsilon: 0.0 if nothing happened, infinite if something happened without noise.
    """
    if not events:
        return 0.0
    if any(isinstance(event, NonPrivateDpEvent) for event, _ in events):
        return math.inf
    if accountant == "rdp" or not knows_pld(events):
        return _rdp_epsilon(events, delta, ORDERS)
    return _pld_epsilon(_with_one_gaussian(events), delta, coarseness)


def knows_pld(events: CountedEvents) -> bool:
    """Whether privacy loss distributions of the events are known."""
    unknown = (SampledWithoutReplacementDpEvent, SelectedRunsEvent)
    return not any(isinstance(event, unknown) for event, _ in events)


def rough_epsilon(events: CountedEvents, delta: float) -> float:
    """An upper bound of epsilon that takes milliseconds: where to start a search from."""
    if any(isinstance(event, NonPrivateDpEvent) for event, _ in events):
        return math.inf
    return _rdp_epsilon(events, delta, _ROUGH_ORDERS) if events else 0.0


def _with_one_gaussian(events: CountedEvents) -> CountedEvents:
    """The events, Gaussians of different noise composed into one: their `1 / z**2` add up."""
    gaussians = [(event, count) for event, count in events if isinstance(event, GaussianDpEvent)]
    if len(gaussians) < 2:
        return events
    precision = sum(count / event.noise_multiplier**2 for event, count in gaussians)
    # In the place of the latest one: what is composed before a running row stays the same.
    latest = gaussians[-1][0]
    composed = (GaussianDpEvent(1 / math.sqrt(precision)), 1)
    return tuple(
        composed if event == latest else (event, count)
        for event, count in events
        if event == latest or not isinstance(event, GaussianDpEvent)
    )


def _pld_epsilon(events: CountedEvents, delta: float, coarseness: int) -> float:
    interval = coarseness * _discretization_interval(events)
    epsilon = math.inf
    if interval <= _COARSEST_INTERVAL:
        epsilon = float(_composed_pld(events, interval).get_epsilon_for_delta(delta))
    if math.isinf(epsilon):
        return _rdp_epsilon(events, delta, ORDERS)
    if epsilon > _UNDERFLOWING_LOSS:
        # One bucket more, so that the answer of a coarser grid stays above that of a finer one.
        epsilon += interval
    return epsilon


def composed_divergences(events: CountedEvents) -> npt.NDArray[np.float64]:
    """Rényi divergences of some events at each of `ORDERS`, infinite where noise is missing."""
    if any(isinstance(event, NonPrivateDpEvent) for event, _ in events):
        return np.full(len(ORDERS), math.inf)
    none = np.zeros(len(ORDERS))
    return sum((count * _release_rdp(event, ORDERS) for event, count in events), start=none)


def epsilon_of_divergences(divergences: npt.NDArray[np.float64], delta: float) -> float:
    """Epsilon of what has these Rényi divergences at `ORDERS`; 0.0 where all are zero."""
    if not divergences.any():
        return 0.0
    if not np.isfinite(divergences).any():
        return math.inf
    return float(rdp_privacy_accountant.compute_epsilon(ORDERS, divergences, delta)[0])


def _rdp_epsilon(events: CountedEvents, delta: float, orders: tuple[float, ...]) -> float:
    divergence = sum(count * _release_rdp(event, orders) for event, count in events)
    return float(rdp_privacy_accountant.compute_epsilon(orders, divergence, delta)[0])


@functools.lru_cache(maxsize=4096)
def _release_rdp(event: DpEvent, orders: tuple[float, ...]) -> npt.NDArray[np.float64]:
    """Rényi divergences of one release. Shape: `(len(orders),)`."""
    if isinstance(event, SelectedRunsEvent):
        # Divergences grow with the order: that at the next one bounds those between.
        return np.array(event.divergences)[np.searchsorted(ORDERS, orders)]
    if isinstance(event, SampledWithoutReplacementDpEvent):
        relation = NeighboringRelation.REPLACE_ONE
    else:
        relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    try:
        accountant = rdp_privacy_accountant.RdpAccountant(orders, relation)
        with _quiet_about_orders():
            divergence = np.asarray(accountant.compose(event).rdp, dtype=np.float64)
    except ValueError:
        # Older versions stop where rounding makes a difference negative. Without the orders in
        # question the bound holds all the same.
        if len(orders) == 1:
            return np.array([math.inf])
        divergence = np.concatenate([_release_rdp(event, (order,)) for order in orders])
    if isinstance(event, SampledWithoutReplacementDpEvent):
        # The bound for sampling without replacement is loose for large batches. Without any
        # amplification, whichever unit is replaced, this one holds.
        noise = event.event.noise_multiplier
        divergence = np.minimum(divergence, np.array(orders) / (2.0 * noise**2))
    if not isinstance(event, GaussianDpEvent):
        divergence = np.maximum(divergence, 0.0) + _RDP_ROUNDING
    divergence.flags.writeable = False
    return divergence


@contextlib.contextmanager
def _quiet_about_orders() -> Iterator[None]:
    """Without `dp_accounting`'s warnings of orders that it leaves out, where epsilon only grows."""

    def is_about_something_else(record: logging.LogRecord) -> bool:
        return "Excluding this order" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(is_about_something_else)
    try:
        yield
    finally:
        logger.removeFilter(is_about_something_else)


# Compositions of some first events of a run, the latest last.
_kept_plds: dict[tuple[CountedEvents, float], PrivacyLossDistribution] = {}


def _composed_pld(events: CountedEvents, interval: float) -> PrivacyLossDistribution:
    """The distribution of all events; that of all but the last one is kept too."""
    # A loop: a ledger has more rows than Python allows calls inside of calls.
    start = next((n for n in range(len(events), 0, -1) if (events[:n], interval) in _kept_plds), 0)
    if start > 0:
        composed = _kept_plds[events[:start], interval]
    else:
        composed = privacy_loss_distribution.identity(value_discretization_interval=interval)
    for index, (event, count) in enumerate(events[start:], start=start):
        composed = composed.compose(_repeated_pld(event, count, interval))
        if index >= len(events) - 2:
            _kept_plds[events[: index + 1], interval] = composed
    while len(_kept_plds) > _MOST_KEPT:
        del _kept_plds[next(iter(_kept_plds))]
    return composed


def _repeated_pld(event: DpEvent, count: int, interval: float) -> PrivacyLossDistribution:
    """The distribution of `count` releases of one kind."""
    if isinstance(event, GaussianDpEvent):
        # A Gaussian composed with itself is a Gaussian with less noise.
        return _release_pld(GaussianDpEvent(event.noise_multiplier / math.sqrt(count)), interval)
    return self_composed(_release_pld(event, interval), count)


def self_composed(pld: PrivacyLossDistribution, count: int) -> PrivacyLossDistribution:
    """The distribution of `count` releases, in portions where there are very many of them.

    `dp_accounting` raises the number of buckets to the power `count`, in whole numbers of any
    length, which takes forever from some millions on.
    """
    portions, rest = divmod(count, _MOST_COMPOSED_AT_ONCE)
    if portions == 0:
        return pld.self_compose(count)
    composed = pld.self_compose(_MOST_COMPOSED_AT_ONCE).self_compose(portions)
    return composed.compose(pld.self_compose(rest)) if rest else composed


@functools.lru_cache(maxsize=8)
def _release_pld(event: DpEvent, interval: float) -> PrivacyLossDistribution:
    """The privacy loss distribution of one release."""
    sampling_probability = 1.0
    if isinstance(event, PoissonSampledDpEvent):
        sampling_probability, event = event.sampling_probability, event.event
    return privacy_loss_distribution.from_gaussian_mechanism(
        event.noise_multiplier,
        value_discretization_interval=interval,
        sampling_prob=sampling_probability,
    )


def _discretization_interval(events: CountedEvents) -> float:
    """The interval of `dp_accounting`, times a power of two that grows with the range of losses."""
    divergence = sum(count * _release_rdp(event, _ROUGH_ORDERS) for event, count in events)
    tails = _LOG_MASS_OF_TAILS / (np.array(_ROUGH_ORDERS) - 1)
    # The losses of the composition reach from about minus to plus this bound.
    loss_range = 2 * float(np.min(divergence + tails))
    release_range = max(_release_loss_range(event) for event, _ in events)
    needed = max(loss_range / _MAX_BUCKETS, release_range / _MAX_BUCKETS_OF_RELEASE, _INTERVAL)
    if not math.isfinite(needed):
        return math.inf
    return math.ldexp(_INTERVAL, math.ceil(math.log2(needed / _INTERVAL)))


def _release_loss_range(event: DpEvent) -> float:
    """The largest loss of one sampled release, at ten standard deviations of the noise."""
    if not isinstance(event, PoissonSampledDpEvent):
        return 0.0
    noise_multiplier = event.event.noise_multiplier
    loss = 10 / noise_multiplier + 0.5 / noise_multiplier**2
    return max(0.0, loss + math.log(event.sampling_probability))
