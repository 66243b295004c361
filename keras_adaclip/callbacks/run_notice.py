"""What a run is about to spend, said before its first step, and why it ended before its last."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from keras_adaclip import accounting
from keras_adaclip.accounting import LedgerRow, Sampling, rounded_up
from keras_adaclip.callbacks.privacy_callback import PrivacyCallback

_MOST_STEPS = 10_000_000
_DRAWN = {
    Sampling.POISSON: "Poisson ",
    Sampling.TRUNCATED_POISSON: "truncated Poisson ",
    Sampling.FIXED: "fixed-size ",
}


class RunNotice(keras.callbacks.Callback):
    """Prints the plan of a run when training begins, and why the run ended early if it did.

    The plan is one line: the steps, the sampling, the noise, and epsilon at the end of the run. For
    batches that are not drawn at random, it also says what Poisson sampling of the same rows would
    cost. With `verbose=0`, nothing is printed. `History.ended_early` holds the reason of an early
    end, and is None if all steps ran.

    Args:
        data: The training data.
        num_epochs: Number of epochs of the run.
        is_pass: Whether each epoch begins a new pass over the data.
        budgets: The `PrivacyCallback`s of the run; the plan is about the first one.
    """

    def __init__(
        self, data: Any, num_epochs: int, is_pass: bool, budgets: Sequence[PrivacyCallback]
    ) -> None:
        super().__init__()
        self._data = data
        self._num_epochs = num_epochs
        self._is_pass = is_pass
        self._budgets = budgets
        self._budget = budgets[0] if budgets else None

    def on_train_begin(self, logs: Any = None) -> None:
        """Print the plan of the run."""
        optimizer, num_epochs = self.model.optimizer, self._num_epochs
        self._before = tuple(row for row in optimizer.ledger if row.steps > 0)
        self._num_steps = num_epochs * (self._data.steps_per_epoch or 0)
        if not 0 < self._num_steps <= _MOST_STEPS:  # Unknown, or as good as endless.
            self._num_steps, num_epochs = 0, min(num_epochs, 1)
        self._rows = optimizer.planned_rows(num_epochs, self._is_pass)
        if self.params["verbose"] and self._rows:
            print(f"Private training: {self._mechanism()}. {self._cost()}")
            self._warn_of_missing_values()

    def on_train_end(self, logs: Any = None) -> None:
        """Print why the run ended early, and put it into `History.ended_early`."""
        steps = self.model.optimizer.ledger.steps - sum(row.steps for row in self._before)
        budget, ending = next((each for each in self._budgets if each.has_stopped), None), None
        if budget is not None and not 0 < self._num_steps <= steps:
            self._budget = budget
            ending = self._ending(steps, budget)
            if self.params["verbose"]:
                print(ending)
        # Without an epoch, Keras has set no history.
        if getattr(self.model, "history", None) is not None:
            self.model.history.ended_early = ending

    def _warn_of_missing_values(self) -> None:
        """Print how many examples cannot contribute, which the loss would not show."""
        data = self._data
        if data.num_not_finite:
            print(
                f"{data.num_not_finite:,} of {data.num_examples:,} examples hold NaN or infinity. "
                "They contribute nothing, whatever the loss looks like. Fill the gaps or leave "
                "these rows out. (This count is not private.)"
            )

    def _mechanism(self) -> str:
        """Return the steps of the run, their sampling and their noise, in words."""
        data, first, last = self._data, self._rows[0], self._rows[-1]
        unit, batches = data.unit.label, "batches"
        if data.unit is accounting.Unit.CLIENT:
            batches = "cohorts"
        steps = _counted(self._num_steps) if self._num_steps else "an unknown number of steps"
        drawn = f"{_DRAWN.get(data.sampling, '')}{batches} of {data.expected_batch_size:,}"
        if data.max_batch_size:
            drawn = f"{drawn} (at most {data.max_batch_size:,})"
        parts = [f"{steps} on {drawn} from {data.num_examples:,} {unit}s"]
        if data.sampling not in _DRAWN:
            released = "pass" if data.sampling.is_counted_in_passes else "step"
            parts.append(f"each {released} accounted as a full release")
        noise = [f"{row.noise_multiplier:.4g}" for row in (first, last)]
        parts.append(f"noise multiplier {' to '.join(dict.fromkeys(noise))}")
        if self.model.optimizer.plan_in_words:
            parts.append(self.model.optimizer.plan_in_words)
        return ", ".join(parts)

    def _cost(self) -> str:
        """Return epsilon at the end of the run, and what would make it smaller."""
        epsilon = self._epsilon(self._rows)
        when = "at the end" if self._num_steps else f"after {_counted(self._rows[0].steps)}"
        if math.isinf(epsilon):
            return f"Epsilon {when}: infinite. Training without noise is not private."
        words = [f"Epsilon {when}: {rounded_up(epsilon, 3)} at {self._delta_in_words}"]
        if self._before:
            words.append(f", {rounded_up(self._epsilon([]), 3)} of it spent before")
        data = self._data
        if data.sampling not in _DRAWN and data.expected_batch_size < data.num_examples:
            poisson = self._epsilon([self._as_poisson(row) for row in self._rows])
            remedy = "give `fit` arrays or a `keras_adaclip.sampling.PoissonDataset`"
            if data.sampling is Sampling.SHUFFLE:
                remedy = "leave `sampling='shuffle'` out"
            words.append(
                ", where Poisson sampling of the same rows would take "
                f"{rounded_up(poisson, 3)} ({remedy})"
            )
        target = None if self._budget is None else self._budget.target_epsilon
        if target is not None and epsilon > target:
            words.append(f". Training ends before epsilon passes {target:g}")
        return f"{''.join(words)}."

    def _ending(self, steps: int, budget: PrivacyCallback) -> str:
        """Return how far the run came, and what would let all of its steps run.

        Args:
            steps: Number of steps that ran.
            budget: The callback that ended it.
        """
        target: Any = budget.target_epsilon
        spent = self.model.privacy_spent(self._delta, budget.accountant).epsilon
        words = (
            f"at epsilon {rounded_up(spent, 4)}: one more would pass the target of {target:g} at "
            f"{self._delta_in_words}."
        )
        if self._num_steps == 0:
            return f"Training ended after {_counted(steps)} {words}"
        num_epochs = self.params["epochs"]
        epoch = math.ceil(steps / self._data.steps_per_epoch) + num_epochs - self._num_epochs
        options = [f"`target_epsilon={rounded_up(self._epsilon(self._rows), 3)}`"]
        noises = {row.noise_multiplier for row in self._rows}
        with_noise = self._noise_within(target) if len(noises) == 1 else None
        if with_noise is not None:
            options.insert(0, f"`noise_multiplier={rounded_up(with_noise, 4)}`")
        return (
            f"Training ended after {steps:,} of {self._num_steps:,} steps (epoch {epoch} of "
            f"{num_epochs}) {words} All {self._num_steps:,} steps fit with {' or '.join(options)}."
        )

    def _noise_within(self, target: float) -> float | None:
        """Return the noise multiplier with which all steps fit the target; None if none does."""

        def epsilon(noise: float) -> float:
            """Return epsilon at the end of the run with this noise."""
            rows = [dataclasses.replace(row, noise_multiplier=noise) for row in self._rows]
            return self._epsilon(rows)

        try:
            return accounting.least_noise_multiplier(epsilon, target)
        except ValueError:
            return None

    def _epsilon(self, rows: Iterable[LedgerRow]) -> float:
        """Return a quick upper bound on epsilon of all earlier steps and some rows."""
        rows = (*self._before, *rows)
        accountant = "pld" if self._budget is None else self._budget.accountant
        relation = accounting.rows_relation(rows)
        return accounting.quick_epsilon(rows, self._delta, accountant, relation)

    @staticmethod
    def _as_poisson(row: LedgerRow) -> LedgerRow:
        """Return the row, if each unit had been drawn independently at each step."""
        size, num_examples = row.expected_batch_size, row.num_examples
        poisson = LedgerRow.open(Sampling.POISSON, size, num_examples, row.noise_multiplier)
        return poisson.advance(row.steps)

    @property
    def _delta(self) -> float:
        """The delta of every epsilon here."""
        if self._budget is not None:
            return self._budget.effective_delta
        return accounting.default_delta(self._num_examples)

    @property
    def _delta_in_words(self) -> str:
        """The delta, and where it comes from if nobody has chosen it."""
        words, num_examples = f"delta {self._delta:.3g}", self._num_examples
        if self._delta == accounting.default_delta(num_examples):
            return f"{words} ({num_examples:,} ** -1.1)"
        asked = self._budget and (self._budget.delta or self.model.optimizer.delta)
        is_held = self._delta < (asked or self._delta)
        return f"{words} (promised before, so that it stays)" if is_held else words

    @property
    def _num_examples(self) -> int:
        """The number of units of the largest data set so far."""
        return max(self._data.num_examples, self.model.optimizer.ledger.num_examples, 2)


def _counted(steps: int) -> str:
    """Return a number of steps in words."""
    return f"{steps:,} step{'s' if steps > 1 else ''}"


class BarOfStepsThatRan(keras.callbacks.ProgbarLogger):
    """Keras's progress bar, which shows the steps that ran also if an epoch ends early."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Close the bar of the epoch."""
        if self.target is None or self.seen >= self.target:
            super().on_epoch_end(epoch, logs)
        else:
            self.progbar.update(self.seen, list((logs or {}).items()), finalize=True)
