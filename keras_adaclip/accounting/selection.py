"""Epsilon of releasing the best of a random number of runs (Papernot and Steinke 2022).

If K runs are trained on the same data for a fixed K, and the best is kept, the Rényi divergence is
K times that of one run. If K is drawn from a distribution with a long enough tail, and only the
best run is released, the cost is about that of two or three runs, whatever was chosen:

    geometric      P[K = k] = (1 - g)^(k - 1) g, mean 1 / g
    logarithmic    P[K = k] proportional to (1 - g)^k / k, mean (1 / g - 1) / log(1 / g)
    poisson        P[K = k] = e^-m m^k / k!, mean m; K may be zero, and then nothing is released

Let e(a) be the Rényi divergence of one run at order a. That of the best of K runs is at most

    e(a) + (1 + s) min_b {(1 - 1 / b) e(b) + log(1 / g) / b} + log(mean) / (a - 1)

with s = 1 for the geometric and s = 0 for the logarithmic distribution (theorem 2). For the Poisson
distribution, with d(epsilon) the delta of one run (theorem 6), it is at most

    e(a) + m d(log(1 + 1 / (a - 1))) + log(m) / (a - 1)

`dp_accounting` has the same theorems for events. Here they are written for divergences, because
the largest divergence of several runs at every order does not belong to an event.

Guarantees:
    Epsilon holds for the weights of the best run, while its number stays unknown, under the
    neighbouring relation of one run. The number of runs must be drawn at random and stay secret.
    Runs must be independent of each other, and the distribution of their hyperparameters must not
    depend on earlier runs. The mechanism of each run must be the given one, or one that costs less
    at every order. Scores must come from data that need no protection.

Reference:
    Papernot and Steinke 2022, "Hyperparameter tuning with Rényi differential privacy".
"""

import dataclasses
import math
import random
import secrets
from collections.abc import Iterable

import numpy as np
import scipy

from keras_adaclip import _checks
from keras_adaclip.accounting.accountants import composed_divergences, epsilon_of_divergences
from keras_adaclip.accounting.epsilon import warn_of_large_delta
from keras_adaclip.accounting.events import (
    PlannedRun,
    counted_events,
    dp,
    neighboring_relation,
    rows_per_unit,
)
from keras_adaclip.accounting.kinds import (
    DISTRIBUTIONS,
    ORDERS,
    Floats,
    SelectionCost,
    selection_in_words,
)
from keras_adaclip.accounting.ledger import Ledger
from keras_adaclip.accounting.row import LedgerRow

# The largest share by which `dp_accounting` lowers the parameter of the logarithmic distribution.
_SLACK = 1e-9
_LEAST_LOG_STOP = -690.0
# Sums of the same numbers in another order differ by this share.
_ROUNDING = 1e-9
_ORDERS = np.array(ORDERS, dtype=np.float64)


@dataclasses.dataclass(frozen=True)
class RandomSelection:
    """The best of a random number of runs.

    Args:
        mean_trials: The mean of the number of runs, above 1; for `"poisson"` at least 1.
        distribution: The distribution of that number: `"geometric"`, `"logarithmic"` or
            `"poisson"`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.

    Example:

    >>> from keras_adaclip.accounting import LedgerRow, Sampling
    >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0).advance(3515)
    >>> for distribution in ("logarithmic", "geometric", "poisson"):
    ...     selection = RandomSelection(mean_trials=10, distribution=distribution)
    ...     print(f"{selection.epsilon([row], delta=1e-5):.2f}")
    2.69
    3.17
    3.32
    """

    mean_trials: float
    distribution: str = "geometric"

    def __post_init__(self) -> None:
        mean_trials = _checks.check_real("mean_trials", self.mean_trials)
        _checks.check_choice("distribution", self.distribution, DISTRIBUTIONS)
        # The first two with mean 1 would always give one run, which would be no secret.
        is_poisson = self.distribution == "poisson"
        if mean_trials < 1.0 or (mean_trials == 1.0 and not is_poisson):
            least = "at least" if is_poisson else "above"
            raise ValueError(
                f"Argument `mean_trials` must be {least} 1 with the {self.distribution} law. "
                f"Received: mean_trials={self.mean_trials}"
            )
        object.__setattr__(self, "mean_trials", mean_trials)

    def draw(self, source: random.Random | None = None) -> int:
        """Draw a number of runs.

        Args:
            source: The source of randomness. None means the operating system, which the guarantee
                needs: a number that can be reproduced is no secret.

        Returns:
            The number of runs, at least 1, or at least 0 for the Poisson distribution.
        """
        source = secrets.SystemRandom() if source is None else source
        generator = np.random.default_rng(source.getrandbits(128))
        if self.distribution == "poisson":
            return int(generator.poisson(self.mean_trials))
        stop = stop_probability(self.mean_trials, self.distribution)
        if self.distribution == "logarithmic":
            return int(generator.logseries(1.0 - stop))
        return int(generator.geometric(stop))

    def epsilon(self, rows: Iterable[LedgerRow], delta: float) -> float:
        """Epsilon of the selection, if each run has the given ledger.

        Args:
            rows: A `Ledger`, or rows of one: what the released run has spent. Every other run must
                have spent the same, or less at every order.
            delta: Delta, between 0 and 1.

        Returns:
            Epsilon, an upper bound by Rényi divergences.
        """
        return self.epsilon_of(composed_divergences(counted_events(rows)), delta)

    def epsilon_of(self, divergences: Floats, delta: float) -> float:
        """Epsilon of the selection, if each run has these Rényi divergences.

        Args:
            divergences: One for each order of the accountants.
            delta: Delta, between 0 and 1.
        """
        delta = _checks.check_between_0_and_1("delta", delta)
        return epsilon_of_divergences(self.divergences(divergences), delta)

    def divergences(self, divergences: Floats) -> Floats:
        """Return the Rényi divergences of the selection.

        Args:
            divergences: Those of each run, one for each order of the accountants.

        Returns:
            Upper bounds at the same orders, not below those of one run.
        """
        # Only runs without any divergence cost nothing. Runs with epsilon = 0 at some delta do cost
        # something together, because their deltas add up.
        if not divergences.any() or not np.isfinite(divergences).any():
            return divergences
        share_of_mean = math.log(self.mean_trials) / (_ORDERS - 1.0)
        if self.distribution == "poisson":
            deltas = [
                dp.rdp.rdp_privacy_accountant.compute_delta(
                    ORDERS, divergences, math.log1p(1 / (order - 1))
                )
                for order in ORDERS
            ]
            selected = divergences + self.mean_trials * np.array(deltas)[:, 0] + share_of_mean
        else:
            shape = 1.0 if self.distribution == "geometric" else 0.0
            stop = stop_probability(self.mean_trials, self.distribution)
            second = np.min((1.0 - 1.0 / _ORDERS) * divergences - math.log(stop) / _ORDERS)
            selected = growing(divergences + (1.0 + shape) * second + share_of_mean)
        return np.maximum(divergences, selected)

    def __str__(self) -> str:
        return selection_in_words(self.distribution, self.mean_trials)


def growing(divergences: Floats) -> Floats:
    """Return divergences tightened by the fact that they grow with the order.

    A bound at a later order also bounds an earlier one.
    """
    return np.minimum.accumulate(divergences[::-1])[::-1]


def stop_probability(mean_trials: float, distribution: str) -> float:
    """Return the parameter g of the distribution with this mean, not rounded up."""
    if distribution == "geometric":
        return 1.0 / mean_trials

    def excess(log_stop: float) -> float:
        """Return by how much the logarithm of the mean exceeds that of the wanted one."""
        return math.log(math.expm1(log_stop) / log_stop) - log_stop - math.log(mean_trials)

    found = scipy.optimize.brentq(excess, _LEAST_LOG_STOP, -1e-16, xtol=_SLACK / 10)
    return math.exp(found) * (1.0 - _SLACK)


def selection_epsilon(
    noise_multiplier: float,
    num_examples: int,
    batch_size: int,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    delta: float,
    mean_trials: float = 10.0,
    distribution: str = "geometric",
    sampling: str = "poisson",
    steps_per_epoch: int | None = None,
) -> float:
    """Epsilon of releasing the best of a random number of runs, as planned.

    Args:
        noise_multiplier: As of `compute_epsilon`, for every run.
        num_examples: Number of units in the data, which counts as public.
        batch_size: Expected number of units a step.
        epochs: Number of epochs of a run.
        steps: Number of steps of a run; give this or `epochs`.
        delta: Delta of the whole search, between 0 and 1.
        mean_trials: The mean of the number of runs.
        distribution: `"geometric"`, `"logarithmic"` or `"poisson"`.
        sampling: As of `compute_epsilon`.
        steps_per_epoch: As of `compute_epsilon`.

    Returns:
        Epsilon, an upper bound by Rényi divergences. Compare it with the epsilon of a run by RDP.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.

    Example:

    >>> epsilon = selection_epsilon(
    ...     1.0, 60_000, 256, steps=3515, delta=1e-5, mean_trials=10, distribution="geometric"
    ... )
    >>> print(f"{epsilon:.2f}, where one run costs 1.56")
    3.17, where one run costs 1.56
    """
    selection = RandomSelection(mean_trials, distribution)
    run = PlannedRun.of(num_examples, batch_size, epochs, steps, sampling, steps_per_epoch)
    warn_of_large_delta(_checks.check_between_0_and_1("delta", delta), num_examples)
    return selection.epsilon_of(composed_divergences(run.events(noise_multiplier)), delta)


@dataclasses.dataclass(frozen=True)
class RunBounds:
    """Planned ledgers. Each run of a search spends at most the largest of them at every order.

        e(a) = max_h e_h(a)

    with e_h(a) the Rényi divergence at order a of a run with the hyperparameters h. A run that
    draws h from a fixed distribution, and releases h with its result, has a divergence of at most
    e(a): the moment exp((a - 1) e(a)) of such a run is the mean over h of the moments of runs with
    h.

    Args:
        plans: A `Ledger` for each kind of run, with all steps that the run would take.

    Raises:
        TypeError: If a plan is no `Ledger`.
        ValueError: If there is no plan, or they are not about the same unit: examples, clients, or
            persons with several rows.

    Example:

    >>> from keras_adaclip.accounting import Sampling
    >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0)
    >>> bounds = RunBounds((Ledger((row.advance(3515),)),))
    >>> bounds.covers(Ledger((row.advance(3515),))), bounds.covers(Ledger((row.advance(3516),)))
    (True, False)
    >>> print(f"{bounds.epsilon(delta=1e-5):.2f}")
    1.56
    """

    plans: tuple[Ledger, ...]

    def __post_init__(self) -> None:
        if not self.plans:
            raise ValueError("Argument `plans` must hold at least one `Ledger`. Received: plans=()")
        if not all(isinstance(plan, Ledger) for plan in self.plans):
            raise TypeError(f"Argument `plans` must hold `Ledger`s. Received: plans={self.plans!r}")
        # A plan is what was spent, whoever spent it.
        plans = dict.fromkeys(plan.owned_by(0) for plan in self.plans)
        object.__setattr__(self, "plans", tuple(plans))
        Ledger(self._rows())  # Refuses examples beside clients.
        if len({row.rows_per_unit > 0 for row in self._rows() if row.steps > 0}) > 1:
            raise ValueError(
                "Either all runs of a search or none must say whose the rows are (`unit_ids`), "
                "with those that a base model has taken: the best run protects what all of them "
                "protect. Give all of them ids, or none."
            )

    @property
    def neighboring_relation(self) -> str:
        """The relation under which the bound is stated."""
        return neighboring_relation(self._rows())

    @property
    def rows_per_unit(self) -> int:
        """The most rows of a person whom the bound is about; 0 if it is about other units."""
        return rows_per_unit(self._rows())

    def covers(self, ledger: Ledger) -> bool:
        """Return whether a run with this ledger has kept the bound.

        Args:
            ledger: What the run has spent.
        """
        if ledger.steps == 0:
            return True
        relation = self.neighboring_relation
        if neighboring_relation((*self._rows(), *ledger)) != relation:
            return False
        if ledger.unit not in {plan.unit for plan in self.plans}:
            return False
        # The best run protects persons only if each run does, and so many of their rows.
        most = self.rows_per_unit
        if not min(1, most) <= rows_per_unit(ledger) <= most:
            return False
        # The series of `dp_accounting` does not converge at some orders, which depend on the noise.
        # The divergence there is infinite, so less noise might not look like more. `growing`
        # replaces it by a finite bound at a later order.
        spent = growing(composed_divergences(counted_events(ledger, relation)))
        return bool(np.all(spent <= growing(self.divergences) * (1 + _ROUNDING)))

    def epsilon(self, delta: float) -> float:
        """Epsilon of one run.

        Args:
            delta: Delta, between 0 and 1.

        Returns:
            Epsilon, an upper bound by Rényi divergences.
        """
        delta = _checks.check_between_0_and_1("delta", delta)
        return epsilon_of_divergences(self.divergences, delta)

    def selection_epsilon(self, selection: RandomSelection, delta: float) -> float:
        """Epsilon of the best of a random number of runs.

        Args:
            selection: The distribution of the number of runs.
            delta: Delta of the selection.

        Returns:
            Epsilon, an upper bound by Rényi divergences.
        """
        return selection.epsilon_of(self.divergences, delta)

    def selected(self, selection: RandomSelection) -> Ledger:
        """Return the ledger of a model that was released as the best of several runs.

        Args:
            selection: The distribution of the number of runs.

        Returns:
            One row with the cost of the selection and the steps of the longest run; no row if no
            run takes a step.
        """
        rows = tuple(row for row in self._rows() if row.steps > 0)
        if not rows:
            return Ledger()
        divergences = selection.divergences(self.divergences)
        cost = SelectionCost(
            selection.distribution,
            selection.mean_trials,
            frozenset(sampling for row in rows for sampling in row.samplings),
            tuple(divergences.tolist()),
        )
        least_noise = min(rows, key=lambda row: row.noise_multiplier)
        steps = max(plan.steps for plan in self.plans)
        released = dataclasses.replace(
            least_noise.emptied(),
            steps=steps,
            releases=1,
            selection=cost,
            rows_per_unit=rows_per_unit(rows),
        )
        return Ledger((released,))

    def to_list(self) -> list[str]:
        """Return the plans as texts for a JSON file."""
        return [plan.to_json() for plan in self.plans]

    def _rows(self) -> tuple[LedgerRow, ...]:
        """Return the rows of all plans."""
        return tuple(row for plan in self.plans for row in plan)

    @property
    def divergences(self) -> Floats:
        """The largest divergence among the plans at each order of the accountants."""
        relation = self.neighboring_relation
        counted = [counted_events(plan, relation) for plan in self.plans]
        return np.max([composed_divergences(each) for each in counted], axis=0)
