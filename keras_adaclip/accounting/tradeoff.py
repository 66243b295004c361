"""What an attacker can find out about one unit: the trade-off curve of a training run.

A mechanism that is (epsilon, delta)-private bounds every test of whether a unit was in the data,
with a true positive rate t and a false positive rate f, by two lines:

    t <= e^epsilon f + delta,    t <= 1 - e^-epsilon (1 - delta - f)

A privacy loss distribution gives delta at every epsilon from 0 on, the larger of both orders of
neighbours. Below all of these lines lies the curve, which is concave and symmetric. A point between
two lines lies below either, so a finite number of lines can only raise the curve.

References:
    Dong, Roth and Su 2022, "Gaussian differential privacy"; Gomez et al. 2026, "Gaussian DP for
    reporting differential privacy guarantees in machine learning", on mu and its gap; Kairouz, Oh
    and Viswanath 2015, "The composition theorem for differential privacy", on a single pair.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import scipy

from keras_adaclip._checks import check_between
from keras_adaclip.accounting.accountants import composed_deltas, composed_epsilon
from keras_adaclip.accounting.events import CountedEvents
from keras_adaclip.accounting.kinds import Floats

# Above this, float64 cannot hold e^epsilon.
_LARGEST_EPSILON = 700.0
_EPSILONS = np.concatenate([[0.0], np.geomspace(1e-4, _LARGEST_EPSILON, 4_000)])
# Mu is too large by at most the distance between two of these points, about 1e-4.
_NUM_POINTS = 100_001


@dataclasses.dataclass(frozen=True, eq=False)
class TradeoffCurve:
    """The most that a test of whether one unit was in the training data can achieve.

    Every figure is an upper bound: no attacker does better, whatever they know of all other units.
    True positives are members that the test takes for members, false positives are others.

    Args:
        epsilons: Epsilons of at least 0, growing. An infinite one says nothing.
        deltas: For each epsilon a delta with which the mechanism is (epsilon, delta)-private.
        basis: `"pld"` if the curve follows from a privacy loss distribution, `"pair"` if it follows
            from a single pair of epsilon and delta. It is then that of the worst mechanism with
            this pair, often far above the true one.

    Attributes:
        mu_range: Mu is about false positive rates and shares of missed members of at least this.

    Example:

    >>> from keras_adaclip.accounting import LedgerRow, PrivacySpent, Sampling
    >>> row = LedgerRow.open(Sampling.STREAM, 256, 60_000, noise_multiplier=2.0).advance(1)
    >>> curve = PrivacySpent.from_ledger([row], delta=1e-5).tradeoff()
    >>> print(f"{curve.true_positive_rate(0.01):.4f}, {curve.best_guess():.4f}, {curve.mu:.2f}")
    0.0339, 0.5987, 0.50
    """

    epsilons: Sequence[float] | Floats = dataclasses.field(repr=False)
    deltas: Sequence[float] | Floats = dataclasses.field(repr=False)
    basis: str = "pair"
    mu_range: ClassVar[float] = 1e-6

    def true_positive_rate(self, false_positive_rate: Any) -> Any:
        """Return the largest true positive rate of a test with a false positive rate.

        Args:
            false_positive_rate: A number between 0 and 1, or an array of them.

        Returns:
            A float, or an array of the same shape.

        Raises:
            TypeError: If a rate is not a number.
            ValueError: If a rate does not lie between 0 and 1.
        """
        rates = np.asarray(false_positive_rate)
        for rate in (false_positive_rate,) if rates.ndim == 0 else (rates.min(), rates.max()):
            check_between("false_positive_rate", rate, 0.0, 1.0)
        slopes, intercepts = self._lines
        # The flattest line is the last. Each holds from where it crosses the one before.
        turns = np.maximum.accumulate((np.diff(intercepts) / -np.diff(slopes))[::-1])
        number = len(slopes) - 1 - np.searchsorted(turns, rates)
        found = np.minimum(slopes[number] * rates + intercepts[number], 1.0)
        return found if rates.ndim else float(found)

    def best_guess(self, prior: float = 0.5) -> float:
        """Return the largest probability of a right guess whether a unit was in the data.

        Args:
            prior: The probability before the attack that it was, between 0 and 1.

        Raises:
            TypeError: If the prior is not a number.
            ValueError: If it does not lie between 0 and 1.
        """
        prior = check_between("prior", prior, 0.0, 1.0)
        # The most by which true positives exceed false ones, each counted `ratio` times. It is
        # convex in the ratio, and known where the ratio is the slope of a line.
        ratio = (1.0 - prior) / prior if prior > 0.0 else math.inf
        return float(1.0 - prior + prior * np.interp(ratio, *self._lines))

    @property
    def advantage(self) -> float:
        """The most by which a test's true positive rate exceeds its false positive rate."""
        return float(np.interp(1.0, *self._lines))

    def posterior(self, prior: float, false_positive_rate: float = 0.01) -> float:
        """Return the largest share of members among those whom a test takes for members.

        It is that of all tests with exactly this false positive rate, and falls with the rate: a
        test that accuses fewer can be right more often, up to always.

        Args:
            prior: The share of members among those tested, between 0 and 1.
            false_positive_rate: The share of others whom the test accuses, between 0 and 1.

        Returns:
            A share between `prior` and 1.

        Raises:
            TypeError: If an argument is not a number.
            ValueError: If one does not lie between 0 and 1.
        """
        prior = check_between("prior", prior, 0.0, 1.0)
        found = prior * self.true_positive_rate(false_positive_rate)
        accused = found + (1.0 - prior) * false_positive_rate
        return float(found / accused) if accused > 0.0 else prior

    @functools.cached_property
    def mu(self) -> float:
        """The least mu of Gaussian differential privacy with a curve above this one.

        The curve of telling N(0, 1) from N(mu, 1). It lies above where the false positive rate and
        the share of missed members are both at least `mu_range`. Rounded up by at most 1e-4;
        infinite if there is no such place.
        """
        if self.advantage == 0.0:
            return 0.0
        normal, rates = self._points
        found = self.true_positive_rate(rates)
        # The curve is highest at the end of each interval, and ends where too few are missed.
        ends = scipy.special.ndtri(np.minimum(found[1:], 1.0 - self.mu_range))
        inside = found[:-1] <= 1.0 - self.mu_range
        return float(np.max(ends - normal[:-1], where=inside, initial=0.0)) or math.inf

    @property
    def mu_gap(self) -> float:
        """The most by which the true positive rate of `mu`'s curve exceeds this one's."""
        if not 0.0 < self.mu < math.inf:
            return 0.0
        normal, rates = self._points
        found = self.true_positive_rate(rates)
        gaps = scipy.special.ndtr(normal + self.mu) - found
        return float(np.max(gaps, where=found <= 1.0 - self.mu_range, initial=0.0))

    @property
    def _points(self) -> tuple[Floats, Floats]:
        """Normal quantiles of false positive rates, and the rates."""
        most = scipy.special.ndtri(1.0 - self.mu_range)
        normal = np.linspace(-most, most, _NUM_POINTS)
        return normal, scipy.special.ndtr(normal)

    @functools.cached_property
    def _lines(self) -> tuple[Floats, Floats]:
        """Slopes, growing, and intercepts of lines above the curve."""
        epsilons, deltas = np.asarray(self.epsilons, float), np.asarray(self.deltas, float)
        finite = epsilons <= _LARGEST_EPSILON
        epsilons, deltas = epsilons[finite], np.clip(deltas[finite], 0.0, 1.0)
        flat = epsilons > 0.0
        reflected = np.exp(-epsilons[flat])[::-1]
        slopes = np.concatenate([[0.0], reflected, np.exp(epsilons)])
        return slopes, np.concatenate([[1.0], 1.0 - reflected * (1.0 - deltas[flat][::-1]), deltas])


@functools.lru_cache(maxsize=64)
def composed_tradeoff(
    events: CountedEvents, delta: float, accountant: str = "pld", coarseness: int = 1
) -> TradeoffCurve:
    """Return the trade-off curve of some events.

    Args:
        events: Pairs of an event of sensitivity 1 and its count.
        delta: Delta of the pair from which the curve follows if there is no privacy loss
            distribution.
        accountant: `"pld"` or `"rdp"`, which gives a pair.
        coarseness: As for `composed_epsilon`.
    """
    deltas = composed_deltas(events, _EPSILONS, accountant, coarseness)
    if deltas is not None:
        return TradeoffCurve(_EPSILONS, deltas, "pld")
    return TradeoffCurve((composed_epsilon(events, delta, accountant),), (delta,))
