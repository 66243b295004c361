"""Epsilon of releasing the best of a random number of runs (Papernot and Steinke 2022).

Training K times on the same data and keeping the best costs K times the Rényi divergence, or more
than that in epsilon, if K is fixed and every score counts. If K is drawn at random from a law with
a long enough tail, and nothing but the best run ever leaves, it costs about two or three runs,
whatever was chosen:

    geometric      P[K = k] = (1 - g)^(k - 1) g, mean 1 / g
    logarithmic    P[K = k] proportional to (1 - g)^k / k
    poisson        P[K = k] = e^-m m^k / k!, where K may be zero, and then nothing is released

The theorems are 2 (the first two laws) and 6 (the third) of the paper. `dp_accounting` has them as
`RepeatAndSelectDpEvent`, and `random_counts` has them for the largest divergences of several runs.

Guarantees:
    Epsilon holds for the best run's weights and its number being unknown, under the relation that
    one run's epsilon holds under, provided that the number of runs is drawn from the law and
    stays secret, runs are independent of each other, the hyperparameters of each are drawn from a
    law that does not look at earlier runs, the mechanism of each is the one given here (or one
    that costs less at every order), and scores come from data that need no protection.

Reference:
    Papernot and Steinke 2022, "Hyperparameter tuning with Rényi differential privacy".
"""

import dataclasses
import random
import secrets
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from keras_adaclip.accounting import _validation, events
from keras_adaclip.accounting.accountants import composed_divergences, epsilon_of_divergences
from keras_adaclip.accounting.epsilon import checked_plan
from keras_adaclip.accounting.events import CountedEvents
from keras_adaclip.accounting.random_counts import drawn_count, selected_divergences
from keras_adaclip.accounting.rows import LedgerRow
from keras_adaclip.accounting.selection_cost import DISTRIBUTIONS


@dataclasses.dataclass(frozen=True)
class RandomSelection:
    """The best of a number of runs that was drawn at random.

    Args:
        mean_trials: the mean of that number, from 1; above 1 for the first two laws.
        distribution: its law: `"geometric"`, `"logarithmic"` or `"poisson"`.

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
        mean_trials = _validation.check_real(self.mean_trials, "mean_trials")
        if self.distribution not in DISTRIBUTIONS:
            raise ValueError(
                f"Argument `distribution` must be one of {', '.join(map(repr, DISTRIBUTIONS))}. "
                f"Received: distribution={self.distribution!r}"
            )
        # One trial for certain is no law of the first two kinds.
        is_poisson = self.distribution == "poisson"
        if mean_trials < 1.0 or (mean_trials == 1.0 and not is_poisson):
            least = "at least" if is_poisson else "above"
            raise ValueError(
                f"Argument `mean_trials` must be {least} 1 with the {self.distribution} law. "
                f"Received: mean_trials={self.mean_trials}"
            )
        object.__setattr__(self, "mean_trials", mean_trials)

    def draw(self, source: random.Random | None = None) -> int:
        """A number of runs, drawn from the law.

        Args:
            source: Where the randomness comes from; None means the operating system, as the
                guarantee needs: a number that can be found out again is not secret.

        Returns:
            The number of runs, from 1; from 0 by Poisson's law.
        """
        source = secrets.SystemRandom() if source is None else source
        return drawn_count(self.mean_trials, self.distribution, source)

    def epsilon(self, rows: Iterable[LedgerRow], delta: float) -> float:
        """Epsilon of the selection, if each run is what a ledger says.

        Args:
            rows: A `Ledger`, or rows of one: what the released run has spent. Every other run must
                have spent the same, or less at every order.
            delta: Delta, between 0 and 1.

        Returns:
            Epsilon, an upper bound by Rényi divergences.
        """
        return self.epsilon_of_runs([tuple(rows)], delta)

    def epsilon_of_runs(self, runs: Iterable[Iterable[LedgerRow]], delta: float) -> float:
        """Epsilon of the selection, if each run is one of several, drawn from a fixed law.

        Args:
            runs: Ledgers, or rows of each: all that a run may be. What counts is the largest
                divergence among them at each order.
            delta: Delta, between 0 and 1.

        Returns:
            Epsilon, an upper bound by Rényi divergences.
        """
        ledgers = [tuple(rows) for rows in runs]
        relation = events.neighboring_relation(row for rows in ledgers for row in rows)
        return self._epsilon(
            [events.counted_events(rows, relation) for rows in ledgers],
            _validation.check_delta(delta),
        )

    def epsilon_of_events(self, counted: CountedEvents, delta: float) -> float:
        """Epsilon of the selection, if each run has these events; see `epsilon`.

        Args:
            counted: events of `dp_accounting`, each with how often it happened in a run.
            delta: delta of the selection.
        """
        return self._epsilon([counted], delta)

    def _epsilon(self, runs: Sequence[CountedEvents], delta: float) -> float:
        return epsilon_of_divergences(self.divergences(largest_divergences(runs)), delta)

    def divergences(self, divergences: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Rényi divergences of the selection.

        Args:
            divergences: Those of each run, at the orders of the accountants.

        Returns:
            Upper bounds at the same orders, not below those of one run.
        """
        # (0, delta)-DP of a run is no (0, delta)-DP of the best: the deltas of all runs add up.
        if not divergences.any() or not np.isfinite(divergences).any():
            return divergences
        selected = selected_divergences(divergences, self.mean_trials, self.distribution)
        return np.maximum(divergences, selected)

    def __str__(self) -> str:
        return (
            f"the best of a number of runs drawn from the {self.distribution} law with mean "
            f"{self.mean_trials:g}"
        )


def largest_divergences(runs: Sequence[CountedEvents]) -> npt.NDArray[np.float64]:
    """The largest Rényi divergence among some runs at each order; zeros where there is none."""
    return np.max([composed_divergences(run) for run in runs] or [composed_divergences(())], axis=0)


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
        noise_multiplier: As of `compute_epsilon`, of every run.
        num_examples: Number of units in the data, taken to be public.
        batch_size: Expected number of units a step.
        epochs: Number of epochs of a run.
        steps: Number of steps of a run; give this or `epochs`.
        delta: Delta of the whole, between 0 and 1.
        mean_trials: The mean of the number of runs.
        distribution: `"geometric"`, `"logarithmic"` or `"poisson"`.
        sampling: As of `compute_epsilon`.
        steps_per_epoch: As of `compute_epsilon`.

    Returns:
        Epsilon, an upper bound by Rényi divergences. Compare it with a run's epsilon by the same
        accountant.

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
    events, delta = checked_plan(
        noise_multiplier, num_examples, batch_size, epochs, steps, delta, sampling, steps_per_epoch
    )
    return selection.epsilon_of_events(events, delta)
