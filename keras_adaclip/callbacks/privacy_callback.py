"""Epsilon in the logs, and a stop before the budget is exceeded."""

import os
from pathlib import Path
from typing import Any

import keras

from keras_adaclip import accounting
from keras_adaclip._checks import check_between_0_and_1, check_positive, optional
from keras_adaclip._configurable import Printable


class PrivacyCallback(Printable, keras.callbacks.Callback):
    """Reports the privacy spent and stops training before it exceeds a target.

    `epsilon` appears in the logs of every epoch, and so in the progress bar, in `History`,
    `CSVLogger` and TensorBoard. It is exact after the last epoch, and an upper bound after the
    others, less than 1% above what `model.privacy_spent` computes. The number of steps within the
    target is computed when training begins, from all earlier steps of the model too; the steps are
    then counted on the host, `steps_per_execution` at a time.

    Args:
        delta: Float in (0, 1); None means the `delta` of an `AutoDPOptimizer`, or else
            `num_examples ** -1.1` of the largest data set so far, which the first line of `fit`
            says, and never more than was promised. For a federated model, the number of clients
            replaces `num_examples`.
        target_epsilon: Positive float; None means no limit. It holds for the smallest delta that
            was promised for this model, here or by an earlier target, also if `delta` is larger.
        accountant: `"pld"` (tight) or `"rdp"`.
        report_path: File to which `model.privacy_report` is written when training ends, as HTML,
            JSON, Markdown or text by its suffix (`.html`, `.json`, `.md`, `.txt`); None writes
            none. A missing folder is created. Keras does not notify callbacks of a `fit` that was
            interrupted; call `model.privacy_report` then.
        data_description: Which data the model is trained on, in your words, for the report.

    Attributes:
        effective_delta: The delta in use, once training has begun.
        has_stopped: Whether the callback has ended the latest training.

    Raises:
        ValueError: If an argument is out of range; when training begins, if the next step would
            exceed the target.

    Example:

    >>> callback = PrivacyCallback(delta=1e-5, target_epsilon=3.0)
    >>> callback.target_epsilon
    3.0
    """

    def __init__(
        self,
        delta: float | None = None,
        target_epsilon: float | None = None,
        accountant: str = "pld",
        report_path: str | os.PathLike[str] | None = None,
        data_description: str | None = None,
    ) -> None:
        super().__init__()
        if report_path is not None:
            accounting.check_report_path(report_path)
        self.report_path = report_path
        self.data_description = data_description
        self.delta = optional(check_between_0_and_1, "delta", delta)
        self.target_epsilon = optional(check_positive, "target_epsilon", target_epsilon)
        self.accountant = accounting.check_accountant(accountant)
        self._allowed_steps: int | None = None
        self.has_stopped = False

    def prepare(self, model: Any, data: Any) -> None:
        """Choose delta and count the allowed steps; `fit` calls it before training.

        Args:
            model: The private model, with an open ledger.
            data: Its training data.

        Raises:
            ValueError: If `delta` is None and the number of examples (or clients) is unknown or
                one; if the next step would exceed the target.
        """
        if self.report_path is not None:
            # An error now, not after training.
            Path(self.report_path).parent.mkdir(parents=True, exist_ok=True)
        self._steps_per_epoch: int | None = data.steps_per_epoch
        self._epoch_ends_executions = data.epoch_ends_executions(model)
        self._epoch_is_pass = data.epoch_is_pass
        self._num_examples: int = data.num_examples
        delta, ledger = self.delta or model.optimizer.delta, model.privacy_ledger
        self.effective_delta = ledger.budget_delta(delta, data.num_examples)
        if delta and data.num_examples > 0:
            unit = data.unit.label
            accounting.warn_of_large_delta(delta, data.num_examples, stacklevel=7, unit=unit)
        if self.delta and self.target_epsilon is None:  # It only reports.
            self.effective_delta = self.delta
        self._steps_done = self._steps_when_counted = 0
        self.has_stopped = False
        self._counted_ledger = ledger
        self._num_inclusions = model.optimizer.account.num_inclusions
        self._steps_per_execution = int(model.steps_per_execution)
        self._allowed_steps = None
        if self.target_epsilon is not None:
            self._allowed_steps = self._find_allowed_steps(model, self.target_epsilon)
            model.optimizer.promise(self.effective_delta)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Count the allowed steps again if the ledger is not the counted one plus the steps done.

        A callback may have loaded the steps of another run, or a noise schedule has advanced.
        """
        if self.target_epsilon is None:
            return
        self._num_inclusions = self.model.optimizer.account.num_inclusions
        ledger = self.model.privacy_ledger
        ran = self._steps_done - self._steps_when_counted
        if _steps_by_mechanism(ledger) != _steps_by_mechanism(self._counted_ledger.advance(ran)):
            self._counted_ledger, self._steps_when_counted = ledger, self._steps_done
            asked = self.delta or self.model.optimizer.delta
            delta = ledger.budget_delta(asked, self._num_examples)
            self.params["delta"] = self.effective_delta = min(delta, self.effective_delta)
            self._allowed_steps = self._steps_done + self._find_allowed_steps(
                self.model, self.target_epsilon
            )

    def on_train_begin(self, logs: Any = None) -> None:
        """Note delta and target in `History.params`, which Keras shares among the callbacks."""
        self.params["delta"] = self.effective_delta
        # Another callback may have the target.
        if self.target_epsilon is not None or "target_epsilon" not in self.params:
            self.params["target_epsilon"] = self.target_epsilon

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stop if the next execution could exceed the target."""
        if self._allowed_steps is None:
            return
        # Keras passes the number of the last step of a full execution.
        following = batch + 1
        self._steps_done += self._execution_size(following - self._steps_per_execution)
        if self._steps_per_epoch is not None and following >= self._steps_per_epoch:
            following = 0
        if self._steps_done + self._execution_size(following) > self._allowed_steps:
            self._stop()

    def count_again(self) -> None:
        """Count the allowed steps again if another run was loaded in the middle of an epoch.

        `fit` calls it before each execution, after all callbacks.

        Raises:
            ValueError: If the next execution would exceed the target.
        """
        # A counter on the host: reading the ledger would delay the steps.
        if self._num_inclusions != self.model.optimizer.account.num_inclusions:
            self.on_epoch_begin(0)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add `epsilon` to the logs: a quick upper bound, and after the last epoch exact."""
        if self.target_epsilon is not None and self._next_epoch_exceeds(self.target_epsilon):
            self._stop()
        if logs is not None:
            is_last = self.model.stop_training or epoch + 1 == self.params["epochs"]
            epsilon_of = accounting.ledger_epsilon if is_last else accounting.quick_epsilon
            ledger = self.model.privacy_ledger
            logs["epsilon"] = epsilon_of(ledger, self.effective_delta, self.accountant)

    def steps_left(self) -> int | None:
        """Return the number of steps that the target still allows; None if there is no target."""
        if self._allowed_steps is None:
            return None
        self.on_epoch_begin(0)
        return self._allowed_steps - self._steps_done

    def on_train_end(self, logs: Any = None) -> None:
        """Write the report if `report_path` was given."""
        if self.report_path is not None:
            report = self.model.privacy_report(
                self.effective_delta, data_description=self.data_description
            )
            report.save(self.report_path)

    def _stop(self) -> None:
        """End the training."""
        self.has_stopped = self.model.stop_training = True

    def _find_allowed_steps(self, model: Any, target: float) -> int:
        """Return the number of further steps within the target."""
        delta = self.effective_delta
        *past, row = model.privacy_ledger.rows
        allowed = accounting.max_steps_within(past, row, delta, target, self.accountant)
        first = self._execution_size(0)
        if allowed < first:
            spent, after = (
                accounting.ledger_epsilon([*past, row.advance(steps)], delta, self.accountant)
                for steps in (0, first)
            )
            size = "cohort_size" if row.unit is accounting.Unit.CLIENT else "batch_size"
            raise ValueError(
                f"The next {'step' if first == 1 else f'{first} steps'} would bring epsilon from "
                f"{spent:.4g} to {after:.4g}, past the target of {target:g}, so "
                f"{'training ends here' if self._steps_done else 'nothing was trained'}. Raise "
                f"`target_epsilon`, `delta` or the noise multiplier, or lower `{size}`. Received: "
                f"target_epsilon={target}, delta={delta:g}, "
                f"noise_multiplier={row.noise_multiplier:g}"
            )
        return allowed

    def _next_epoch_exceeds(self, target: float) -> bool:
        """Return whether the next epoch's first execution would exceed the target.

        The count of allowed steps does not cover an epoch that opens a pass or has other noise.
        """
        row = self.model.privacy_ledger.rows[-1]
        following = self.model.optimizer.ledger_of_next_epoch()
        if following.rows[-1].mechanism == row.mechanism and not self._epoch_is_pass:
            return False
        rows = following.advance(self._execution_size(0))
        # The exact figure takes long, and is needed close to the target alone.
        return all(
            epsilon(rows, self.effective_delta, self.accountant) > target
            for epsilon in (accounting.quick_epsilon, accounting.ledger_epsilon)
        )

    def _execution_size(self, begin: int) -> int:
        """Return the steps of the execution that begins with step `begin` of an epoch."""
        if self._steps_per_epoch is None or not self._epoch_ends_executions:
            return self._steps_per_execution
        return min(self._steps_per_execution, self._steps_per_epoch - begin)


def _steps_by_mechanism(ledger: accounting.Ledger) -> tuple[Any, dict[Any, int]]:
    """Return the open mechanism, and the number of steps of each mechanism."""
    return ledger.rows[-1].mechanism, {row.mechanism: row.steps for row in ledger if row.steps > 0}
