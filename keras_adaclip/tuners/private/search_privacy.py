"""What a search for hyperparameters spends, and how it is told."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_adaclip.accounting import (
    Ledger,
    PrivacyReport,
    PrivacySpent,
    RandomSelection,
    RunBounds,
)
from keras_adaclip.noise import fresh_key
from keras_adaclip.optimizers.ledger_variables import Run

PUBLIC_VALIDATION = "validation data are taken to be public"
UNCOVERED_VALIDATION = "the guarantee does not cover the validation data"


@dataclasses.dataclass(frozen=True)
class SearchSpent(PrivacySpent):
    """The privacy of what a search releases; `str()` of it is a statement in words.

    Epsilon, by Rényi divergences, is that of the released run with its selection. Steps are those
    of one run, the longest that may be drawn.

    Args:
        epsilon_of_one_run: epsilon of a run that nobody selected, by the same accountant.
    """

    epsilon_of_one_run: float = 0.0


def carry(model: Any, ledger: Ledger, *, holds_own: bool = False) -> None:
    """Raises a model's ledger by what a search has spent.

    Args:
        model: a compiled private model.
        ledger: what the search has spent.
        holds_own: whether what the model has spent so far is a part of that.
    """
    own = model.optimizer.run
    included = {**own.included, own.identity: own.ledger} if holds_own else {}
    first, second = fresh_key().tolist()
    model.optimizer.include_run(Run(ledger, (first, second), included))


@dataclasses.dataclass(frozen=True)
class SearchPrivacy:
    """The account of a search.

    Args:
        selection: the law of the number of runs.
        bounds: what each run spends at most.
        num_known_trials: the number of runs where it was not drawn in secret; None where it was.
        validation_is_public: whether the data that scores come from need no protection.
        keeps_losers: whether the losing runs stay on the disk.
    """

    selection: RandomSelection
    bounds: RunBounds
    num_known_trials: int | None
    validation_is_public: bool
    keeps_losers: bool

    def epsilon(self, delta: float) -> float:
        """Epsilon of all that the search releases."""
        if self.num_known_trials is None:
            return self.bounds.selection_epsilon(self.selection, delta)
        return self.bounds.epsilon(delta, self.num_known_trials)

    def released_ledger(self) -> Ledger:
        """The ledger of the released model, which carries the cost of the search."""
        if self.num_known_trials is None:
            return self.bounds.selected(self.selection)
        return self.bounds.selected(None, self.num_known_trials)

    def spent(self, delta: float) -> SearchSpent:
        """The privacy of what is released, beside that of one run."""
        spent = PrivacySpent.from_ledger(self.released_ledger(), delta, "rdp")
        values = {field.name: getattr(spent, field.name) for field in dataclasses.fields(spent)}
        values["selection"] = self.in_words()
        return SearchSpent(**values, epsilon_of_one_run=self.bounds.epsilon(delta))

    def report(self, delta: float, group_sizes: Sequence[int]) -> PrivacyReport:
        """The report of the search.

        Args:
            delta: delta of every epsilon.
            group_sizes: for how many units of one person epsilon of one run is given.
        """
        report = PrivacyReport.from_ledger(
            self.bounds.costliest(delta), delta, group_sizes=group_sizes, selection=self.selection
        )
        not_covered = report.not_covered
        if not self.validation_is_public:
            not_covered += ("The validation data, whose scores decided which run is released.",)
        if self.keeps_losers:
            not_covered += (
                "The losing runs, which private_diagnostics=True has kept, and their scores.",
            )
        return dataclasses.replace(
            report,
            tuning=self.in_words(),
            epsilon_with_selection=self.epsilon(delta),
            not_covered=not_covered,
        )

    def in_words(self) -> str:
        """How the released run was selected, and on which data."""
        validation = PUBLIC_VALIDATION if self.validation_is_public else UNCOVERED_VALIDATION
        if self.num_known_trials is None and self.keeps_losers:
            return (
                f"{self.selection}, while the losing runs and their scores are kept as well, which "
                "tell the number: whoever sees them has the epsilon of all runs together; "
                f"{validation}"
            )
        if self.num_known_trials is None:
            return (
                f"{self.selection}, the number kept secret and nothing else released; {validation}"
            )
        return (
            f"the best of {self.num_known_trials} runs, a number that is known, so that the "
            f"guarantee of a random number of runs is gone: epsilon is that of all "
            f"{self.num_known_trials} runs together; {validation}"
        )
