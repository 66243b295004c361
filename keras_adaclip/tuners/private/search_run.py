"""What watches one run of a private search."""

import math
from typing import Any

import keras
import numpy as np

from keras_adaclip.accounting import Ledger, RunBounds
from keras_adaclip.models import weight_digests
from keras_adaclip.schedules import Schedule


class SearchRun(keras.callbacks.Callback):
    """Keeps the best epoch's weights, and stops a run that would spend too much before it does.

    Choosing among a run's epochs by public data costs nothing: the ledger counts every step as
    released. It stays that of the whole run, whichever epoch's weights are kept.

    Args:
        objective: keras-tuner's, which says what the best epoch is.
        bounds: what a run may spend.

    Attributes:
        best_value: the objective of the best epoch; None where no epoch has a finite one.
        refusal: why the run was stopped; None where it was not.
        spent: what the run has spent, once its model carries the cost of the search; None before.

    Raises:
        ValueError: when training begins, where its steps and noise are known to exceed the bounds.
    """

    def __init__(self, objective: Any, bounds: RunBounds) -> None:
        super().__init__()
        self._objective = objective
        self._bounds = bounds
        self._weights: list[np.ndarray] | None = None
        self._is_first_epoch = True
        self.best_value: float | None = None
        self.refusal: str | None = None
        self.spent: Ledger | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Compares what is about to run with the bounds, once the ledger is open."""
        if not self._is_first_epoch:
            return
        self._is_first_epoch = False
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        if not steps or not epochs or isinstance(self.model.optimizer.noise_multiplier, Schedule):
            return
        planned = self.model.privacy_ledger.advance(steps * max(0, epochs - epoch))
        if not self._bounds.covers(planned):
            self.refusal = overspent(planned, "would spend")
            raise ValueError(self.refusal)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keeps the weights, if no epoch was better."""
        if logs is None or not self._objective.has_value(logs):
            return
        value = float(self._objective.get_value(logs))
        if not math.isfinite(value):
            return
        if self.best_value is None or self._objective.better_than(value, self.best_value):
            self.best_value = value
            self._weights = self.model.get_weights()

    def restore_best(self) -> None:
        """Gives the model the weights of its best epoch; its ledger is left as it is."""
        if self._weights is not None:
            self.model.set_weights(self._weights)
            weight_digests.remember(self.model.weights)


def overspent(ledger: Ledger, verb: str) -> str:
    """Why a run that spends more than was said ends the search."""
    rows = "; ".join(
        f"{row.steps} steps of {row.sampling.label} sampling, batches of "
        f"{row.expected_batch_size} of {row.num_examples}, noise multiplier "
        f"{row.noise_multiplier:g}"
        for row in ledger
        if row.steps > 0
    )
    return (
        f"A run {verb} more than the bound that was fixed before the search: {rows}. Nothing is "
        "released. Let `privacy_plan` (or `base`) tell every step and the least noise that `fit` "
        "will use, and begin another search."
    )
