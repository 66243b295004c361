"""The one epoch that a trial trains: where it begins, and what it spends."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_adaclip.accounting import Ledger
from keras_adaclip.tuners.greedy.announced_training import refuse_other_training
from keras_adaclip.tuners.greedy.trial_spending import RunSpending, epoch_row, rows_beyond

_NOT_ITS_EPOCH = (
    "The trial has not trained what it was to: one epoch, with the callbacks that its `fit` was "
    "given. A hypermodel with a `fit` of its own must hand `initial_epoch`, `epochs` and "
    "`callbacks` on to `model.fit`."
)


class TrialEpoch(keras.callbacks.Callback):
    """Sees to it that a trial trains its own epoch, from the right weights, on the account.

    Args:
        epoch: the epoch, from 1.
        clip_norm: the threshold of the trial.
        begin: gives the model, built, the weights to begin from.
        spending: where the epoch is counted before its first step; None counts nothing.
    """

    def __init__(
        self,
        epoch: int,
        clip_norm: float,
        begin: Callable[[Any], None],
        spending: RunSpending | None,
    ) -> None:
        super().__init__()
        self._epoch = epoch
        self._clip_norm = clip_norm
        self._begin = begin
        self._spending = spending
        self._num_begun = self._num_unannounced = 0
        self._known = Ledger()

    def take_over(self, model: Any) -> None:
        """Counts what a model has spent before its trial, and refuses what is not announced.

        Args:
            model: as the hypermodel returned it, which may have trained it.
        """
        if self._spending is not None:
            self._spending.add(model.privacy_ledger)
            self._known = model.privacy_ledger
            refuse_other_training(model, self)

    def on_train_begin(self, logs: Any = None) -> None:
        """Takes the weights to begin from, which others have paid for."""
        self._refuse_unannounced(self.model)
        self._begin(self.model)
        self._known = self.model.privacy_ledger

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Checks that the epoch is the trial's, and counts all of it before it runs."""
        if epoch != self._epoch - 1 or self._num_begun:
            raise ValueError(
                "A trial trains one epoch, and its `fit` began another: a hypermodel with a `fit` "
                "of its own must hand `initial_epoch`, `epochs` and `callbacks` on to "
                f"`model.fit`. Received: epoch {epoch + 1} instead of {self._epoch}"
            )
        optimizer = self.model.optimizer
        # With groups of variables, the threshold is their joint norm.
        joint_norm = float(np.linalg.norm(np.ravel(optimizer.clip_norm)))
        if not math.isclose(joint_norm, self._clip_norm, rel_tol=1e-4):
            raise ValueError(
                "The clipping norm of the trial was changed after the hypermodel returned. "
                f"Received: clip_norm={joint_norm:g} instead of {self._clip_norm:g}"
            )
        self._refuse_unannounced(self.model)
        if self._spending is not None:
            self._refuse_seeds()
            row = epoch_row(optimizer.open_row, self._planned_steps())
            self._spending.add([row])
            self._known = self._known.append(row)
        self._num_begun += 1

    def count_unannounced(self, model: Any) -> None:
        """Counts what ran and was not announced; for the end of a trial, however it ends.

        Args:
            model: the trial's model.
        """
        if self._spending is None:
            return
        rows = rows_beyond(model.privacy_ledger, self._known)
        if not rows:
            return
        # Too late to refuse, never too late to count.
        self._spending.add(rows)
        for row in rows:
            self._known = self._known.append(row)
            self._num_unannounced += row.steps

    def check(self, model: Any) -> None:
        """Raises where the trial's `fit` has not trained its epoch, once it has returned.

        Args:
            model: the trial's model.

        Raises:
            ValueError: where no epoch was begun, or more steps ran than were counted.
        """
        self._refuse_unannounced(model)
        if self._num_begun != 1:
            raise ValueError(
                f"{_NOT_ITS_EPOCH} Received: {self._num_begun} epochs that were announced"
            )

    def _refuse_unannounced(self, model: Any) -> None:
        self.count_unannounced(model)
        if self._num_unannounced:
            raise ValueError(
                f"{_NOT_ITS_EPOCH} Received: {self._num_unannounced} steps that were not announced"
            )

    def _refuse_seeds(self) -> None:
        """Raises where another trial may draw the same examples: their epsilons would not add."""
        seeds = self.model.used_seeds
        if seeds:
            raise ValueError(
                "With `private=True` noise and draws must come from the operating system: trials "
                "that share them cost more than is counted. Leave out the seed of the optimizer "
                f"and that of the `PoissonDataset`. Received: {len(seeds)} seeds"
            )

    def _planned_steps(self) -> int:
        """The steps of the epoch, the last execution counted as a full one."""
        steps = (self.params or {}).get("steps")
        if not steps:
            raise ValueError(
                "The number of steps in an epoch is not known, so a private search cannot count "
                "an epoch before it runs. Give `search(..., steps_per_epoch=...)`, or data of "
                f"known length. Received: steps={steps!r}"
            )
        size = int(getattr(self.model, "steps_per_execution", 1) or 1)
        return math.ceil(steps / size) * size
