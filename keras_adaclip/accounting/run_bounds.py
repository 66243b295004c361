"""All that one run of a search may be, as a bound that every run has to keep.

    e(a) = max_h e_h(a)

with e_h(a) the Rényi divergence at the order a of a run with the hyperparameters h. A run that
draws h from a fixed law, and tells h with its result, has a divergence of at most e(a): the moment
exp((a - 1) e(a)) of such a run is the mean over h of the moments of runs with h.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from keras_adaclip.accounting import _validation, events
from keras_adaclip.accounting.accountants import composed_divergences, epsilon_of_divergences
from keras_adaclip.accounting.ledger import Ledger
from keras_adaclip.accounting.rows import LedgerRow
from keras_adaclip.accounting.selection import RandomSelection, largest_divergences
from keras_adaclip.accounting.selection_cost import KNOWN, SelectionCost

# Sums of the same numbers in another order.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class RunBounds:
    """Ledgers, of which each run of a search spends no more than the largest at every order.

    Args:
        plans: a ledger for each way in which a run may go, with the steps that it would take.

    Raises:
        TypeError: If something else is among them.
        ValueError: If there is none, or some are about examples and others about clients.

    Example:

    >>> from keras_adaclip.accounting import Sampling
    >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0)
    >>> bounds = RunBounds((Ledger((row.advance(3515),)),))
    >>> bounds.covers(Ledger((row.advance(3515),))), bounds.covers(Ledger((row.advance(3516),)))
    (True, False)
    >>> print(f"{bounds.epsilon(delta=1e-5):.2f}, {bounds.epsilon(delta=1e-5, num_runs=10):.2f}")
    1.56, 5.10
    """

    plans: tuple[Ledger, ...]

    def __post_init__(self) -> None:
        for plan in self.plans:
            if not isinstance(plan, Ledger):
                raise TypeError(
                    f"Argument `plans` must hold `Ledger`s. Received: a {type(plan).__name__}"
                )
        plans = tuple(dict.fromkeys(self.plans))
        if not plans:
            raise ValueError("Argument `plans` must hold a `Ledger` at least. Received: plans=()")
        if len({plan.unit for plan in plans if plan.unit is not None}) > 1:
            raise ValueError(
                "Argument `plans` must be about single examples or about whole clients, not both: "
                "what they spend has no epsilon for either."
            )
        object.__setattr__(self, "plans", plans)

    @property
    def neighboring_relation(self) -> str:
        """The relation under which all of it is stated."""
        return events.neighboring_relation(self._rows())

    def covers(self, ledger: Ledger) -> bool:
        """Whether a run that has spent what the ledger says has kept the bound.

        Args:
            ledger: what a run has spent.
        """
        if ledger.steps == 0:
            return True
        relation = self.neighboring_relation
        if events.neighboring_relation((*self._rows(), *ledger)) != relation:
            return False
        if ledger.unit not in {plan.unit for plan in self.plans}:
            return False
        spent = _growing(composed_divergences(events.counted_events(ledger, relation)))
        return bool(np.all(spent <= _growing(self._divergences()) * (1 + _ROUNDING)))

    def epsilon(self, delta: float, num_runs: int = 1) -> float:
        """Epsilon of a known number of runs, all of which may be seen.

        Args:
            delta: Delta, between 0 and 1.
            num_runs: How many runs.

        Returns:
            Epsilon, an upper bound by Rényi divergences.
        """
        num_runs = _validation.check_integer(num_runs, "num_runs")
        if num_runs == 0:
            return 0.0
        return epsilon_of_divergences(
            num_runs * self._divergences(), _validation.check_delta(delta)
        )

    def selection_epsilon(self, selection: RandomSelection, delta: float) -> float:
        """Epsilon of the best of a random number of runs.

        Args:
            selection: the law of the number of runs.
            delta: delta of the selection.
        """
        return selection.epsilon_of_runs(self.plans, delta)

    def selected(self, selection: RandomSelection | None, num_runs: int = 0) -> Ledger:
        """The ledger of a model that was released as the best of several runs.

        Args:
            selection: the law of the number of runs; None where the number is known.
            num_runs: that number.

        Returns:
            One row with the cost of the selection, and the steps of the longest run; none where no
            run takes a step.
        """
        rows = tuple(row for row in self._rows() if row.steps > 0)
        if not rows:
            return Ledger()
        divergences = self._divergences()
        if selection is None:
            law, mean_trials, divergences = KNOWN, float(num_runs), num_runs * divergences
        else:
            law, mean_trials = selection.distribution, selection.mean_trials
            divergences = selection.divergences(divergences)
        cost = SelectionCost(
            law,
            mean_trials,
            frozenset(sampling for row in rows for sampling in row.samplings),
            tuple(divergences.tolist()),
        )
        least_noise = min(rows, key=lambda row: row.noise_multiplier)
        return Ledger(
            (
                LedgerRow(
                    least_noise.sampling,
                    least_noise.expected_batch_size,
                    least_noise.num_examples,
                    steps_per_release=1,
                    steps=max(plan.steps for plan in self.plans),
                    releases=1,
                    steps_in_release=1,
                    noise_multiplier=least_noise.noise_multiplier,
                    unit=least_noise.unit,
                    selection=cost,
                ),
            )
        )

    def costliest(self, delta: float) -> Ledger:
        """The plan with the largest epsilon by itself.

        Args:
            delta: delta of each plan.
        """
        return max(self.plans, key=lambda plan: RunBounds((plan,)).epsilon(delta))

    def to_list(self) -> list[dict[str, list[Any]]]:
        """The plans as plain values, for a JSON file; `from_list` reads them."""
        listed = []
        for plan in self.plans:
            num_rows = max(2, sum(row.num_table_rows for row in plan))
            integers, noise_multipliers = plan.to_arrays(num_rows)
            listed.append(
                {"integers": integers.tolist(), "noise_multipliers": noise_multipliers.tolist()}
            )
        return listed

    @classmethod
    def from_list(cls, plans: Iterable[dict[str, list[Any]]]) -> Self:
        """The inverse of `to_list`.

        Args:
            plans: what `to_list` returned.
        """
        return cls(
            tuple(Ledger.from_arrays(plan["integers"], plan["noise_multipliers"]) for plan in plans)
        )

    def _rows(self) -> tuple[LedgerRow, ...]:
        return tuple(row for plan in self.plans for row in plan)

    def _divergences(self) -> npt.NDArray[np.float64]:
        relation = self.neighboring_relation
        return largest_divergences([events.counted_events(plan, relation) for plan in self.plans])


def _growing(divergences: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Upper bounds at the orders, made finite where a larger order has a finite one.

    Where the series of `dp_accounting` does not converge, it says infinity, at a few orders and
    not the same ones for all noise: then less at every order would not look like less. Rényi
    divergences grow with the order, so that a bound at a later order bounds an earlier one.
    """
    return np.minimum.accumulate(divergences[::-1])[::-1]
