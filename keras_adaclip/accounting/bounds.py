"""Upper bound on the privacy cost of one run of a search, which every run must keep.

    e(a) = max_h e_h(a)

with e_h(a) the Rényi divergence at order a of a run with the hyperparameters h. A run that draws h
from a fixed distribution, and releases h with its result, has a divergence of at most e(a): the
moment exp((a - 1) e(a)) of such a run is the mean over h of the moments of runs with h.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, Self

import numpy as np

from keras_adaclip._checks import check_between_0_and_1
from keras_adaclip.accounting import events
from keras_adaclip.accounting.accountants import composed_divergences, epsilon_of_divergences
from keras_adaclip.accounting.kinds import Floats, SelectionCost
from keras_adaclip.accounting.ledger import Ledger
from keras_adaclip.accounting.row import LedgerRow
from keras_adaclip.accounting.selection import RandomSelection, growing

# Sums of the same numbers in another order differ by this share.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True)
class RunBounds:
    """Planned ledgers. Each run of a search spends at most the largest of them at every order.

    Args:
        plans: A `Ledger` for each kind of run, with all steps that the run would take.

    Raises:
        TypeError: If a plan is no `Ledger`.
        ValueError: If there is no plan, or some are about examples and others about clients.

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

    @property
    def neighboring_relation(self) -> str:
        """The relation under which the bound is stated."""
        return events.neighboring_relation(self._rows())

    def covers(self, ledger: Ledger) -> bool:
        """Whether a run with this ledger has kept the bound.

        Args:
            ledger: What the run has spent.
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

    def epsilon(self, delta: float) -> float:
        """Epsilon of one run.

        Args:
            delta: Delta, between 0 and 1.

        Returns:
            Epsilon, an upper bound by Rényi divergences.
        """
        return epsilon_of_divergences(self._divergences(), check_between_0_and_1("delta", delta))

    def selection_epsilon(self, selection: RandomSelection, delta: float) -> float:
        """Epsilon of the best of a random number of runs.

        Args:
            selection: The distribution of the number of runs.
            delta: Delta of the selection.

        Returns:
            Epsilon, an upper bound by Rényi divergences.
        """
        divergences = selection.divergences(self._divergences())
        return epsilon_of_divergences(divergences, check_between_0_and_1("delta", delta))

    def selected(self, selection: RandomSelection) -> Ledger:
        """The ledger of a model that was released as the best of several runs.

        Args:
            selection: The distribution of the number of runs.

        Returns:
            One row with the cost of the selection and the steps of the longest run; no row if no
            run takes a step.
        """
        rows = tuple(row for row in self._rows() if row.steps > 0)
        if not rows:
            return Ledger()
        divergences = selection.divergences(self._divergences())
        cost = SelectionCost(
            selection.distribution,
            selection.mean_trials,
            frozenset(sampling for row in rows for sampling in row.samplings),
            tuple(divergences.tolist()),
        )
        least_noise = min(rows, key=lambda row: row.noise_multiplier)
        steps = max(plan.steps for plan in self.plans)
        released = dataclasses.replace(
            least_noise.emptied(), steps=steps, releases=1, selection=cost
        )
        return Ledger((released,))

    def to_list(self) -> list[Any]:
        """The plans as plain values for a JSON file, which `from_list` reads."""
        return [plan.to_array().tolist() for plan in self.plans]

    @classmethod
    def from_list(cls, plans: Iterable[Any]) -> Self:
        """The inverse of `to_list`.

        Args:
            plans: The plain values.
        """
        return cls(tuple(Ledger.from_array(plan) for plan in plans))

    def _rows(self) -> tuple[LedgerRow, ...]:
        """Return the rows of all plans."""
        return tuple(row for plan in self.plans for row in plan)

    def _divergences(self) -> Floats:
        """Return the largest divergence among the plans at each order."""
        relation = self.neighboring_relation
        counted = [events.counted_events(plan, relation) for plan in self.plans]
        return np.max([composed_divergences(each) for each in counted], axis=0)
