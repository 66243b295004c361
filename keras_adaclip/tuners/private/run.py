"""One run of a private search: its arguments, its score, and what ends the search.

Runs must be independent of each other, must stay within the bound that was fixed before the search,
and must not be seen or counted from outside.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

import keras

from keras_adaclip.accounting import Ledger, RunBounds
from keras_adaclip.callbacks import PrivacyCallback
from keras_adaclip.sampling import PoissonDataset
from keras_adaclip.schedules import Schedule

SEEDED = (
    "A run has a `seed`, with which several runs draw the same noise or the same batches, but the "
    "theorem needs independent runs. Nothing is released. Leave `seed` out of `DPOptimizer` and "
    "`PoissonDataset`, and begin another search."
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
# Callbacks that print a line or write a file in every run.
_NOT_SILENT = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
    keras.callbacks.TerminateOnNaN,
)


def checked_fit_arguments(data: tuple[Any, ...], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the named arguments of `search`, made silent.

    Args:
        data: The positional arguments of `search`.
        arguments: Its named arguments.

    Raises:
        ValueError: If there are no validation data, they are a part of the training data, every
            run would draw the same batches, or the number of runs could be seen.
    """
    if arguments.get("validation_split"):
        raise ValueError(
            "Argument `validation_split` would take the validation data from the private data, "
            "which the scores would then reveal. Give `validation_data`."
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
    if arguments.get("verbose", 0) != 0:
        raise ValueError(
            "Argument `verbose` must be 0: printed lines would tell the number of runs and their "
            f"scores. Received: verbose={arguments['verbose']!r}"
        )
    callbacks = arguments.get("callbacks") or []
    for callback in keras.tree.flatten(callbacks):
        _check_silent(callback)
    # Each run gets copies. A callback that cannot be copied raises here, not in every run.
    return {**arguments, "verbose": 0, "callbacks": copy.deepcopy(callbacks)}


def _check_silent(callback: Any) -> None:
    """Raise `ValueError` if a callback prints a line or writes a file in every run."""
    if isinstance(callback, PrivacyCallback):
        is_silent = callback.delta is not None and callback.report_path is None
    else:
        is_silent = not isinstance(callback, _NOT_SILENT) and not getattr(callback, "verbose", 0)
    if not is_silent:
        raise ValueError(
            f"{type(callback).__name__} would print or write something in every run, but only the "
            "best run may be seen, and not the number of runs. Leave it out, or make it silent: "
            "`verbose=0`; `PrivacyCallback` with `delta` and without `report_path`."
        )


class RunMonitor(keras.callbacks.EarlyStopping):
    """Restores the weights of the best epoch, and stops a run before it exceeds the bound.

    A choice among the epochs of a run costs nothing: the ledger counts every step as released. It
    stays the ledger of the whole run, whichever epoch's weights are restored.

    Args:
        objective: The `keras_tuner.Objective` that decides which epoch is best.
        bounds: The largest cost of a run.

    Attributes:
        refusal: The reason why the run was stopped; None if it was not.

    Raises:
        ValueError: When training begins, if its steps would exceed the bound.
    """

    def __init__(self, objective: Any, bounds: RunBounds) -> None:
        super().__init__(
            objective.name, patience=2**31, mode=objective.direction, restore_best_weights=True
        )
        self._bounds = bounds
        self.best: float | None = None
        self.refusal: str | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Compare the coming steps with the bound."""
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        if not steps or not epochs or isinstance(self.model.optimizer.noise_multiplier, Schedule):
            return
        planned = self.model.privacy_ledger.advance(steps * max(0, epochs - epoch))
        if not self._bounds.covers(planned):
            self.refusal = _overspent(planned, "would spend")
            raise ValueError(self.refusal)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keep the weights if the score is finite and no epoch was better."""
        if math.isfinite((logs or {}).get(self.monitor, math.nan)):
            super().on_epoch_end(epoch, logs)

    def score(self, results: Any) -> float:
        """Return the score of a run; NaN if it has none.

        Args:
            results: The result of the hypermodel's `fit`: a `History`, metrics by name, or a
                number.
        """
        if isinstance(results, keras.callbacks.History):
            results = self.best
        elif isinstance(results, Mapping):
            results = results[self.monitor]
        return math.nan if results is None else float(results)

    def problem(self, model: Any) -> str | None:
        """Return the reason why the search must end after this run; None if there is none.

        Args:
            model: The model of the run.
        """
        if self.refusal is not None:
            return self.refusal
        if not self._bounds.covers(model.privacy_ledger):
            return _overspent(model.privacy_ledger, "has spent")
        return SEEDED if has_seed(model) else None


def has_seed(model: Any) -> bool:
    """Return whether noise or batches of a model come from a seed."""
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
