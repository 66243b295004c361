"""Comparison of a trial's ledger with its plan, while the trial runs."""

from collections.abc import Iterable
from typing import Any

import keras
import keras_tuner

from keras_adaclip.accounting import Ledger, LedgerRow


class PlanGuard(keras.callbacks.Callback):
    """Compares the ledger with the plan when an epoch begins, and when training ends.

    They differ if trials share weights, if the data have another number of rows, or if another
    callback trains or changes the noise.

    Args:
        planned: The row of a trial before it has run.
        steps_per_epoch: The number of steps of an epoch.
        delta: The delta of the search; None if it has none.
        accountant: The accountant of the search.

    Attributes:
        target_epsilon: None: the guard has no target, and `fit` plans with its delta.
        has_stopped: False: the guard raises instead.
    """

    target_epsilon: float | None = None
    has_stopped = False

    def __init__(
        self, planned: LedgerRow, steps_per_epoch: int, delta: float | None, accountant: str
    ) -> None:
        super().__init__()
        self.delta = self.effective_delta = delta
        self.accountant = accountant
        self._planned = planned
        self._steps_per_epoch = steps_per_epoch
        self._epochs_done = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Raise `FatalValueError` if the ledger, or the row of this epoch, is not as planned."""
        self._epochs_done = epoch + 1
        self._check_ledger(epoch)
        row = self.model.optimizer.open_row
        if row.mechanism != self._planned.mechanism:
            raise keras_tuner.errors.FatalValueError(
                f"Epoch {epoch + 1} of this trial was about to run with other data, noise or "
                "batches than planned, so its epsilon might exceed the target. Give as many rows "
                "as `num_examples`, and let only the hypermodel choose optimizer, noise and "
                f"batches. Received: {in_words([row])}; planned: {in_words([self._planned])}"
            )

    def on_train_end(self, logs: Any = None) -> None:
        """Raise `FatalValueError` if the ledger has more than the epochs that ran."""
        self._check_ledger(self._epochs_done)

    def _check_ledger(self, epochs: int) -> None:
        """Raise `FatalValueError` if the ledger has more than this number of epochs."""
        planned = Ledger((self._planned.advance(epochs * self._steps_per_epoch),))
        ledger = self.model.privacy_ledger
        if not ledger.is_covered_by(planned):
            raise keras_tuner.errors.FatalValueError(
                f"After {epochs} epochs this trial has spent more than planned, so its epsilon may "
                "exceed the target. Every call of `build_model` must return a model with new "
                "weights that were never trained on the data, and only the search may train it or "
                f"change its noise. Received: {in_words(ledger)}"
            )


def in_words(rows: Iterable[LedgerRow]) -> str:
    """Return steps, noise, sampling and batches of rows, for messages."""
    return "; ".join(
        f"{row.steps} steps, noise_multiplier={row.noise_multiplier:g}, "
        f"sampling={row.sampling.label!r}, batch size {row.expected_batch_size}"
        f"{f' (at most {row.max_batch_size})' if row.max_batch_size else ''} of "
        f"{row.num_examples} rows"
        for row in rows
    )
