"""What `fit` does around its steps, as callbacks: plan, ledger, checks, and how the run ended."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras

from keras_adaclip import accounting, backend
from keras_adaclip.accounting import LedgerRow, Sampling, Unit, rounded_up
from keras_adaclip.backend import keras_losses
from keras_adaclip.examination import refuse_other_weights
from keras_adaclip.training.processes import refuse_disagreement

_MOST_STEPS = 10_000_000


class RunOfSteps(keras.callbacks.Callback):
    """Keeps the ledger in step with the epochs, and prints what a run spends and why it ended.

    `fit` calls it before all other callbacks. The ledger opens when the first epoch begins: a
    callback such as `BackupAndRestore` loads a checkpoint when training begins. If an epoch is a
    pass over the data, the next epoch begins a new pass even if the last one was cut short. A noise
    schedule advances with every epoch.

    The plan is one line: the steps, the sampling, the noise, and epsilon at the end of the run. For
    batches that are not drawn at random, it also says what Poisson sampling of the same rows would
    cost. With `verbose=0`, nothing is printed. `History.ended_early` holds the reason of an early
    end, and is None if all steps ran.

    Args:
        data: The training data.
        num_epochs: Number of epochs of the run.
        is_pass: Whether each epoch begins a new pass over the data.
        budgets: The callbacks that limit the number of steps, and can end the run at a target; the
            printed plan is about the first.
    """

    def __init__(self, data: Any, num_epochs: int, is_pass: bool, budgets: Sequence[Any]) -> None:
        super().__init__()
        self._data, self._num_epochs, self._is_pass = data, num_epochs, is_pass
        self._budgets = budgets
        self._budget, self._is_open = next(iter(budgets), None), False
        # How many units of a step are announced to be left out; None once the count was compared.
        self._left_out: float | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Print the plan of the run."""
        optimizer, data, num_epochs = self.model.optimizer, self._data, self._num_epochs
        # Read once: on JAX, each look at `self.model` writes the state of training back.
        self._reports_metrics = self.model._private_state.reports_metrics
        self._before = tuple(row for row in optimizer.ledger if row.steps > 0)
        self._num_steps = num_epochs * (data.steps_per_epoch or 0)
        if not 0 < self._num_steps <= _MOST_STEPS:  # Unknown, or as good as endless.
            self._num_steps, num_epochs = 0, min(num_epochs, 1)
        self._rows = optimizer.planned_rows(num_epochs, self._is_pass)
        release, self._temperature = optimizer.planned_release, None
        self._releases = () if release is None else (release,)
        if self.params["verbose"] and self._rows:
            print(f"Private training: {self._mechanism()}. {self._cost()}. {self._protected()}.")
            state = self.model._private_state
            if num_wrong := data.num_not_finite(state.handles_missing):
                print(
                    f"{num_wrong:,} of {data.num_examples:,} examples hold NaN or "
                    "infinity. They contribute nothing, whatever the loss looks like. Fill the "
                    "gaps or leave these rows out. (This count is not private.)"
                )
            self._left_out = num_wrong * data.expected_batch_size / data.num_examples
            for remark in state.remarks:
                print(remark)
            state.remarks.clear()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Open the ledger, or set the noise of the epoch and open its pass."""
        self._epoch = epoch + 1
        if self._is_open:
            self.model.optimizer.begin_epoch(is_pass=self._is_pass)
        else:
            self._is_open = True
            self.model._begin_steps(self._data, self._budgets, self.params["epochs"] - epoch)
        refuse_disagreement(self.model, self._data)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Take figures of the training rows out of the logs, which callbacks share, if asked to."""
        if not self._reports_metrics:
            for name in [name for name in logs or () if not name.startswith("val_")]:
                del logs[name]

    def on_test_begin(self, logs: Any = None) -> None:
        """Make the release that follows the last step, before the last validation.

        Later callbacks then save and evaluate the model as it will be.
        """
        is_last = self.model.stop_training or self._epoch == self.params["epochs"]
        if self._releases and is_last and all(map(self._fits, self._budgets)):
            self._temperature, self._releases = self.model._calibrate(self._data), ()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Let the host see the steps, before a callback sets the variables back.

        After the first epoch, print how many units were left out, if it is more than was announced.
        """
        self.on_train_batch_end(0, logs)
        _ = self.model.optimizer.ledger
        self.on_test_begin()
        if self._left_out is None:
            return
        announced = self._left_out * (self._data.steps_per_epoch or 1)
        found = int(backend.array_of(keras_losses.loss_tracker(self.model).left_out))
        self._left_out = None
        if found > announced + 5.0 * math.sqrt(announced):
            print(
                f"\nThe steps of this epoch left out {found:,} {self._data.unit.label}s whose loss "
                "or gradient was not finite. Look for labels outside of the outputs, ids outside "
                "of a table, and gaps in the data. (This count is not private.)"
            )

    def on_train_end(self, logs: Any = None) -> None:
        """Print why the run ended early, and put it into `History.ended_early`."""
        self.on_train_batch_end(0, logs)
        steps = self.model.optimizer.ledger.steps - sum(row.steps for row in self._before)
        steps -= self._temperature is not None
        budget, ending = next((each for each in self._budgets if each.has_stopped), None), None
        if budget is not None and not 0 < self._num_steps <= steps:
            self._budget = budget
            ending = self._ending(steps, budget)
            if self.params["verbose"]:
                print(ending)
        if self._temperature is not None and self.params["verbose"]:
            print(f"Logits divided by {self._temperature:.3g}: confidence is about the accuracy.")
        # Without an epoch, Keras has set no history.
        if getattr(self.model, "history", None) is not None:
            self.model.history.ended_early = ending

    def _mechanism(self) -> str:
        """Return the steps of the run, their sampling and their noise, in words."""
        data, sampling = self._data, self._data.sampling
        steps = _counted(self._num_steps) if self._num_steps else "an unknown number of steps"
        batches = "cohorts" if data.unit is Unit.CLIENT else "batches"
        if sampling.is_amplified:
            label = sampling.label.replace("_", " ").replace("poisson", "Poisson")
            batches = f"{label.replace('fixed', 'fixed-size')} {batches}"
        drawn = f"{steps} on {batches} of {data.expected_batch_size:,}"
        if data.max_batch_size:
            drawn += f" (at most {data.max_batch_size:,})"
        parts = [f"{drawn} from {data.num_examples:,} {data.unit.label}s"]
        if not sampling.is_amplified:
            released = "pass" if sampling.is_counted_in_passes else "step"
            parts.append(f"each {released} accounted as a full release")
        noise = [f"{row.noise_multiplier:.4g}" for row in (self._rows[0], self._rows[-1])]
        parts.append(f"noise multiplier {' to '.join(dict.fromkeys(noise))}")
        return ", ".join(filter(None, [*parts, self.model.optimizer.plan_in_words]))

    def _cost(self) -> str:
        """Return epsilon at the end of the run, and what would make it smaller."""
        data, epsilon = self._data, self._epsilon([*self._rows, *self._releases])
        when = "at the end" if self._num_steps else f"after {_counted(self._rows[0].steps)}"
        budget: Any = self._budget
        target = None if budget is None else budget.target_epsilon
        if target is not None and target < epsilon < 1.01 * target:
            # The quick bound is up to 1% too large.
            rows = (*self._before, *self._rows, *self._releases)
            epsilon = accounting.ledger_epsilon(rows, self._delta, budget.accountant)
        if math.isinf(epsilon):
            return f"Epsilon {when}: infinite. Training without noise is not private"
        words = f"Epsilon {when}: {rounded_up(epsilon, 3)} at {self._delta_in_words()}"
        # Epsilon may have been that of a person, and is that of a row now.
        if self._before and (before := self._epsilon([])) <= epsilon:
            words += f", {rounded_up(before, 3)} of it spent before"
        if not data.sampling.is_amplified and data.expected_batch_size < data.num_examples:
            remedy = "give `fit` arrays or a `keras_adaclip.sampling.PoissonDataset`"
            if data.sampling is Sampling.SHUFFLE:
                remedy = "leave `sampling='shuffle'` out"
            sampling = Sampling.POISSON
            poisson = self._epsilon(
                dataclasses.replace(row.emptied(), sampling=sampling).advance(row.steps)
                for row in self._rows
            )
            words += (
                ", where Poisson sampling of the same rows would take "
                f"{rounded_up(poisson, 3)} ({remedy})"
            )
        if target is not None and epsilon > target:
            words += f". Training ends before epsilon passes {target:g}"
        return words

    def _protected(self) -> str:
        """Return whom epsilon protects at the end of the run."""
        rows = (*self._before, *self._rows)
        most, label = accounting.rows_per_unit(rows), accounting.unit_label(rows)
        words = f"This protects one {accounting.unit_in_words(label, most)}"
        if not most and any(row.rows_per_unit for row in rows):
            words += ", and no person with several, since some steps are without `unit_ids`"
        return words

    def _ending(self, steps: int, budget: Any) -> str:
        """Return how far the run came, and what would let all of its steps run.

        Args:
            steps: Number of steps that ran.
            budget: The callback that ended it.
        """
        target, total = budget.target_epsilon, self._num_steps
        spent = self.model.privacy_spent(self._delta, budget.accountant).epsilon
        together = int(self.model.steps_per_execution)
        more = "one more" if together == 1 else f"{together} more (`steps_per_execution`)"
        words = (
            f"at epsilon {rounded_up(spent, 4)}: {more} would pass the target of {target:g} at "
            f"{self._delta_in_words()}."
        )
        if total == 0:
            return f"Training ended after {_counted(steps)} {words}"
        options = f"`target_epsilon={rounded_up(self._epsilon(self._rows), 3)}`"
        if (noise := self._noise_within(target)) is not None:
            options = f"`noise_multiplier={rounded_up(noise, 4)}` or {options}"
        return (
            f"Training ended after {steps:,} of {total:,} steps (epoch {self._epoch} of "
            f"{self.params['epochs']}) "
            f"{words} All {total:,} steps fit with {options}."
        )

    def _noise_within(self, target: float) -> float | None:
        """Return the noise multiplier with which all steps fit the target; None if none does."""

        def epsilon(noise: float) -> float:
            """Return epsilon at the end of the run with this noise."""
            rows = (dataclasses.replace(row, noise_multiplier=noise) for row in self._rows)
            return self._epsilon(rows)

        if len({row.noise_multiplier for row in self._rows}) > 1:  # A schedule.
            return None
        try:
            return accounting.least_noise_multiplier(epsilon, target)
        except ValueError:
            return None

    def _fits(self, budget: Any) -> bool:
        """Return whether what follows the last step stays within a budget."""
        target, delta = budget.target_epsilon, budget.effective_delta
        rows = (*self.model.optimizer.ledger, *self._releases)
        return target is None or accounting.ledger_epsilon(rows, delta, budget.accountant) <= target

    def _epsilon(self, rows: Iterable[LedgerRow]) -> float:
        """Return a quick upper bound on epsilon of all earlier steps and some rows."""
        rows = (*self._before, *rows)
        accountant = "pld" if self._budget is None else self._budget.accountant
        return accounting.quick_epsilon(rows, self._delta, accountant)

    @property
    def _num_examples(self) -> int:
        """The number of units of the largest data set so far."""
        return max(self._data.num_examples, self.model.optimizer.ledger.num_examples, 2)

    @property
    def _delta(self) -> float:
        """The delta of every epsilon here."""
        if self._budget is not None:
            return float(self._budget.effective_delta)
        return accounting.default_delta(self._num_examples)

    def _delta_in_words(self) -> str:
        """Return the delta, and where it comes from if nobody has chosen it."""
        words = f"delta {self._delta:.3g}"
        if self._delta == accounting.default_delta(self._num_examples):
            return f"{words} ({self._num_examples:,} ** -1.1)"
        asked = self._budget and (self._budget.delta or self.model.optimizer.delta)
        is_held = self._delta < (asked or self._delta)
        return f"{words} (promised before, so that it stays)" if is_held else words


class StepCheck(keras.callbacks.Callback):
    """Checks before each execution of steps, after all other callbacks, that training may continue.

    Args:
        budgets: The callbacks that raise if training must stop.
    """

    def __init__(self, budgets: Sequence[Any]) -> None:
        super().__init__()
        self._budgets = budgets

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Run the checks; give a forked process its own identity and keys."""
        if batch == 0:  # A callback may have frozen or thawed a layer.
            refuse_other_weights(self.model)
        self.model.optimizer.account.renew_after_fork()
        for budget in self._budgets:
            budget.count_again()


class BarOfStepsThatRan(keras.callbacks.ProgbarLogger):
    """Keras's progress bar, which shows the steps that ran also if an epoch ends early."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Close the bar of the epoch."""
        if self.target is None or self.seen >= self.target:
            super().on_epoch_end(epoch, logs)
        else:
            self.progbar.update(self.seen, list((logs or {}).items()), finalize=True)


def _counted(steps: int) -> str:
    """Return a number of steps in words."""
    return f"{steps:,} step{'s' if steps > 1 else ''}"
