"""One run of a private search: what it is given, and what ends the search.

Runs must be independent of each other, must stay within the bound that was fixed before the search,
and must not be seen or counted from outside.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

import keras
import keras_tuner
import numpy as np

from keras_adaclip.accounting import Ledger, RunBounds
from keras_adaclip.callbacks import PrivacyCallback
from keras_adaclip.sampling import PoissonDataset
from keras_adaclip.schedules import Schedule
from keras_adaclip.training import weight_digests

SEEDED = (
    "A run has a `seed`, with which several runs draw the same noise or the same batches, but the "
    "theorem needs independent runs. Leave `seed` out of `DPOptimizer` and `PoissonDataset`."
)
CONTINUED = (
    "The model that `build` returned has not spent the same as the first one: it continues an "
    "earlier run or another training, and runs must be independent. Nothing is released. Build a "
    "new model each time, and begin another search."
)
FATAL = (
    "A run raised a `FatalError`, which ends the search: repeating the run would choose among runs "
    "by whether they fail. Nothing is released. Remove the cause, and begin another search."
)
_WRITERS = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def check_objective(objective: Any) -> None:
    """Checks that the objective is a score of validation data.

    Raises:
        ValueError: if its name does not begin with `"val_"`.
    """
    name = getattr(objective, "name", objective)
    if not isinstance(name, str) or not name.startswith("val_"):
        raise ValueError(
            "Argument `objective` must be a name that begins with 'val_', or a "
            "`keras_tuner.Objective` of such a name: a score of the training data carries no "
            f"noise, and epsilon does not cover a choice by it. Received: objective={objective!r}"
        )


def checked_fit_arguments(
    data: tuple[Any, ...], arguments: Mapping[str, Any], keeps_losers: bool
) -> dict[str, Any]:
    """The named arguments of `search`, silent unless losing runs may be seen.

    Args:
        data: the positional arguments of `search`.
        arguments: its named arguments.
        keeps_losers: whether losing runs may be seen.

    Raises:
        ValueError: if there are no validation data, they are a part of the training data, every
            run would draw the same batches, or something would tell of losing runs.
    """
    if arguments.get("validation_split"):
        raise ValueError(
            "Argument `validation_split` would take the validation data from the private data, and "
            "scores would tell of those. Give `validation_data`."
        )
    if arguments.get("validation_data") is None:
        raise ValueError("Argument `validation_data` must be given: runs are chosen by a score.")
    for each in (*data, *arguments.values()):
        if isinstance(each, PoissonDataset) and each.seed is not None:
            raise ValueError(
                "The training data must have no `seed`: with it all runs draw the same batches, "
                "but the theorem needs independent runs. "
                f"Received: PoissonDataset(seed={each.seed})"
            )
    callbacks = arguments.get("callbacks") or []
    # Each run gets copies: callbacks that cannot be copied raise here, and not in every run.
    copy.deepcopy(callbacks)
    if keeps_losers:
        return dict(arguments)
    if arguments.get("verbose", 0) != 0:
        raise ValueError(
            "Argument `verbose` must be 0: printed lines would tell the number of runs and their "
            "scores. With private_diagnostics=True it can have other values. "
            f"Received: verbose={arguments['verbose']!r}"
        )
    for callback in keras.tree.flatten(callbacks):
        _check_callback(callback)
    return {**arguments, "verbose": 0}


def _check_callback(callback: Any) -> None:
    """Checks that a callback neither prints a run nor writes it down."""
    if isinstance(callback, PrivacyCallback):
        prints = callback.delta is None
    else:
        printers = (keras.callbacks.ProgbarLogger, keras.callbacks.TerminateOnNaN)
        prints = isinstance(callback, printers) or bool(getattr(callback, "verbose", 0))
    if prints:
        raise ValueError(
            f"{type(callback).__name__} would print something in every run, which tells the number "
            "of runs. Make it silent (`verbose=0`; `PrivacyCallback` with `delta`), leave it out, "
            "or set private_diagnostics=True."
        )
    if isinstance(callback, _WRITERS) or getattr(callback, "report_path", None) is not None:
        raise ValueError(
            f"{type(callback).__name__} would write every run to the disk, but only the best one "
            "may be seen. Leave it out, or set private_diagnostics=True."
        )


class RunMonitor(keras.callbacks.Callback):
    """Keeps the weights of the best epoch, and stops a run before it exceeds the bound.

    A choice among the epochs of a run costs nothing: the ledger counts every step as released. It
    stays the ledger of the whole run, whichever epoch's weights are kept.

    Args:
        objective: keras-tuner's, which decides which epoch is best.
        bounds: the largest cost of a run.

    Attributes:
        best_value: the objective of the best epoch; None if no epoch has a finite one.
        refusal: the reason why the run was stopped; None if it was not.
        spent: the ledger of the run, set when its model gets the cost of the search; None before.

    Raises:
        ValueError: when training begins, if its steps would exceed the bound.
    """

    def __init__(self, objective: keras_tuner.Objective, bounds: RunBounds) -> None:
        super().__init__()
        self._objective = objective
        self._bounds = bounds
        self._weights: list[np.ndarray] | None = None
        self._is_first_epoch = True
        self.best_value: float | None = None
        self.refusal: str | None = None
        self.spent: Ledger | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Compares the coming steps with the bound, once the ledger is open."""
        if not self._is_first_epoch:
            return
        self._is_first_epoch = False
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        if not steps or not epochs or isinstance(self.model.optimizer.noise_multiplier, Schedule):
            return
        planned = self.model.privacy_ledger.advance(steps * max(0, epochs - epoch))
        if not self._bounds.covers(planned):
            self.refusal = _overspent(planned, "would spend")
            raise ValueError(self.refusal)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keeps the weights if no epoch was better."""
        if logs is None or not self._objective.has_value(logs):
            return
        value = float(self._objective.get_value(logs))
        if not math.isfinite(value):
            return
        if self.best_value is None or self._objective.better_than(value, self.best_value):
            self.best_value = value
            self._weights = self.model.get_weights()

    def restore_best(self) -> None:
        """Gives the model the weights of its best epoch; its ledger stays."""
        if self._weights is not None:
            self.model.set_weights(self._weights)
            weight_digests.remember(self.model.weights)

    def problem(self, model: Any) -> str | None:
        """The reason why the search must end after this run; None if there is none.

        Args:
            model: the model of the run.
        """
        spent = model.privacy_ledger if self.spent is None else self.spent
        if self.refusal is not None:
            return self.refusal
        if not self._bounds.covers(spent):
            return _overspent(spent, "has spent")
        if has_seed(model):
            return SEEDED
        return None


def has_seed(model: Any) -> bool:
    """Whether noise or batches of a model come from a seed."""
    return bool(model.used_seeds) or model.optimizer.seed is not None


def _overspent(ledger: Ledger, verb: str) -> str:
    rows = "; ".join(
        f"{row.steps} steps of {row.sampling.label} sampling, batches of "
        f"{row.expected_batch_size} of {row.num_examples}, noise multiplier "
        f"{row.noise_multiplier:g}"
        for row in ledger
        if row.steps > 0
    )
    return (
        f"A run {verb} more than the bound that was fixed before the search: {rows}. Nothing is "
        "released. Let `privacy_plan` (or `base`) have every step and the least noise that `fit` "
        "will use, and begin another search."
    )
