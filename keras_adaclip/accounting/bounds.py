"""Upper bound on the privacy cost of one run of a search, which every run must keep.

    e(a) = max_h e_h(a)

with e_h(a) the Rényi divergence at order a of a run with the hyperparameters h. A run that draws h
from a fixed law, and releases h with its result, has a divergence of at most e(a): the moment
exp((a - 1) e(a)) of such a run is the mean over h of the moments of runs with h.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from keras_adaclip._checks import check_integer
from keras_adaclip.accounting import events
from keras_adaclip.accounting.accountants import composed_divergences, epsilon_of_divergences
from keras_adaclip.accounting.epsilon import check_delta
from keras_adaclip.accounting.ledger import Ledger
from keras_adaclip.accounting.row import KNOWN, LedgerRow, SelectionCost
from keras_adaclip.accounting.selection import RandomSelection, growing, largest_divergences

# Sums of the same numbers in another order differ by this share.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class RunBounds:
    """Planned ledgers. Each run of a search spends at most the largest of them at every order.

    Args:
        plans: a ledger for each kind of run, with all steps that the run would take.

    Raises:
        TypeError: If one of the plans is not a `Ledger`.
        ValueError: If there is no plan, or some are about examples and others about clients.

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
                "together they have no epsilon for either."
            )
        object.__setattr__(self, "plans", plans)

    @property
    def neighboring_relation(self) -> str:
        """The relation under which the bound is stated."""
        return events.neighboring_relation(self._rows())

    def covers(self, ledger: Ledger) -> bool:
        """Whether a run with this ledger has kept the bound.

        Args:
            ledger: what the run has spent.
        """
        if ledger.steps == 0:
            return True
        relation = self.neighboring_relation
        if events.neighboring_relation((*self._rows(), *ledger)) != relation:
            return False
        if ledger.unit not in {plan.unit for plan in self.plans}:
            return False
        # The series of `dp_accounting` does not converge at some orders, which depend on the noise.
        # The divergence there is infinite, so less noise might not look like more. `growing`
        # replaces it by a finite bound at a later order.
        spent = growing(composed_divergences(events.counted_events(ledger, relation)))
        return bool(np.all(spent <= growing(self._divergences()) * (1 + _ROUNDING)))

    def epsilon(self, delta: float, num_runs: int = 1) -> float:
        """Epsilon of a known number of runs, all of which may be seen.

        Args:
            delta: Delta, between 0 and 1.
            num_runs: The number of runs.

        Returns:
            Epsilon, an upper bound by Rényi divergences.
        """
        num_runs = check_integer("num_runs", num_runs)
        if num_runs == 0:
            return 0.0
        return epsilon_of_divergences(num_runs * self._divergences(), check_delta(delta))

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
            selection: the law of the number of runs; None if the number is known.
            num_runs: the number of runs, if it is known.

        Returns:
            One row with the cost of the selection and the steps of the longest run; no row if no
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
        released = dataclasses.replace(
            least_noise,
            steps_per_release=1,
            steps=max(plan.steps for plan in self.plans),
            releases=1,
            steps_in_release=1,
            selection=cost,
        )
        return Ledger((released,))

    def costliest(self, delta: float) -> Ledger:
        """The plan with the largest epsilon by itself.

        Args:
            delta: delta of each plan.
        """
        return max(self.plans, key=lambda plan: RunBounds((plan,)).epsilon(delta))

    def to_list(self) -> list[dict[str, list[Any]]]:
        """The plans as plain values for a JSON file, which `from_list` reads."""
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
            plans: the plain values.
        """
        return cls(
            tuple(Ledger.from_arrays(plan["integers"], plan["noise_multipliers"]) for plan in plans)
        )

    def _rows(self) -> tuple[LedgerRow, ...]:
        return tuple(row for plan in self.plans for row in plan)

    def _divergences(self) -> npt.NDArray[np.float64]:
        relation = self.neighboring_relation
        return largest_divergences([events.counted_events(plan, relation) for plan in self.plans])
