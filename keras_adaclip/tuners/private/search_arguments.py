"""What a private search is given: refused where it would break or tell what must stay secret."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import keras_tuner

from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    PrivacyPlan,
    RunBounds,
    Sampling,
    check_delta,
    check_target_epsilon,
)
from keras_adaclip.callbacks import PrivacyCallback
from keras_adaclip.sampling import PoissonDataset
from keras_adaclip.tuners.private.privacy_plans import CalibratedHyperModel, PlannedHyperModel

_OF_TUNER = ("directory", "project_name", "overwrite", "tuner_id")
_REASONS: Mapping[str, str] = {
    "max_trials": "the number of trials is drawn at random: give its mean, `mean_trials`",
    "max_retries_per_trial": "a failed trial counts, and is never tried again",
    "max_consecutive_failed_trials": "the number of trials must not depend on how they go",
    "executions_per_trial": "a trial is one run, and every run counts",
    "tune_new_entries": "the law of the hyperparameters is fixed before the first trial",
    "allow_new_entries": "the law of the hyperparameters is fixed before the first trial",
}
_PRINTERS = (keras.callbacks.ProgbarLogger, keras.callbacks.TerminateOnNaN)
_WRITERS = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


def checked_objective(objective: Any) -> Any:
    """The objective, which must be one about validation data.

    Raises:
        TypeError: where it is neither a name nor a `keras_tuner.Objective`.
        ValueError: where its name does not begin with `"val_"`.
    """
    if not isinstance(objective, (str, keras_tuner.Objective)):
        raise TypeError(
            "Argument `objective` must be a name or a `keras_tuner.Objective`. "
            f"Received: objective={objective!r}"
        )
    name = objective if isinstance(objective, str) else objective.name
    if not name.startswith("val_"):
        raise ValueError(
            "Argument `objective` must begin with 'val_': a score of the training data carries no "
            f"noise, and choosing by it is not covered by epsilon. Received: objective={name!r}"
        )
    return objective


def check_tuner_arguments(arguments: Mapping[str, Any]) -> None:
    """Says what is wrong with further arguments of the tuner.

    Raises:
        TypeError: where there is one that it does not have.
    """
    for name in arguments:
        if name not in _OF_TUNER:
            reason = _REASONS.get(name, f"it is none of {', '.join(_OF_TUNER)}")
            raise TypeError(f"`PrivateSearch` has no argument `{name}`: {reason}.")


def check_plans(
    hypermodel: Any, base: Any, target_epsilon: float | None, delta: float | None
) -> None:
    """Says where it cannot be known what a run spends.

    Raises:
        TypeError: where the hypermodel lacks a method.
        ValueError: where arguments are missing, or contradict each other.
    """
    if base is None and not isinstance(hypermodel, PlannedHyperModel):
        raise TypeError(
            "What a run spends must be known before the first one. Give the hypermodel a method "
            "`privacy_plan(hp)` that returns the `Ledger` of a whole run, or give `base`, a ledger "
            f"that no run exceeds. Received: a {type(hypermodel).__name__}"
        )
    if delta is not None:
        check_delta(delta)
    if target_epsilon is None:
        return
    check_target_epsilon(target_epsilon)
    if delta is None or base is not None:
        raise ValueError(
            "Argument `target_epsilon` needs `delta`, and plans of the hypermodel instead of "
            f"`base`. Received: delta={delta}, base={base!r}"
        )
    if not isinstance(hypermodel, CalibratedHyperModel):
        raise TypeError(
            "Argument `target_epsilon` needs a hypermodel with a method "
            "`with_noise_multiplier(noise_multiplier)` that returns one with that noise. "
            f"Received: a {type(hypermodel).__name__}"
        )


def base_bounds(base: Any) -> RunBounds:
    """The bound on a run that `base` is.

    Raises:
        TypeError: where it is no ledger, row or plan.
    """
    if isinstance(base, PrivacyPlan):
        sampling = Sampling[base.sampling.upper()]
        row = LedgerRow.open(sampling, base.batch_size, base.num_examples, base.noise_multiplier)
        base = row.advance(base.steps)
    if isinstance(base, LedgerRow):
        base = Ledger((base,))
    if not isinstance(base, Ledger):
        raise TypeError(
            "Argument `base` must be a `Ledger`, a `LedgerRow` or a `PrivacyPlan`. "
            f"Received: a {type(base).__name__}"
        )
    return RunBounds((base,))


def checked_fit_arguments(arguments: dict[str, Any], keeps_losers: bool) -> dict[str, Any]:
    """The arguments of `search`, silent unless losing runs may be seen.

    Raises:
        ValueError: where there are no validation data, they are a part of the training data, or
            something would tell of losing runs.
    """
    if arguments.get("validation_split"):
        raise ValueError(
            "Argument `validation_split` would take the validation data from the private data, of "
            "which they tell. Give `validation_data`."
        )
    if arguments.get("validation_data") is None:
        raise ValueError("Argument `validation_data` must be given: runs are chosen by a score.")
    callbacks = arguments.get("callbacks") or []
    try:
        copy.deepcopy(callbacks)
    except Exception as error:
        raise ValueError(
            "Argument `callbacks` must hold callbacks that can be copied, one for each run."
        ) from error
    if keeps_losers:
        return arguments
    if arguments.get("verbose", 0) != 0:
        raise ValueError(
            "Argument `verbose` must be 0: what is printed would tell how many runs there are, and "
            "their scores. With private_diagnostics=True it may be otherwise. "
            f"Received: verbose={arguments['verbose']!r}"
        )
    for callback in keras.tree.flatten(callbacks):
        if _prints(callback):
            raise ValueError(
                f"{type(callback).__name__} would print something in every run, which tells how "
                "many there are. Make it silent (`verbose=0`; `PrivacyCallback` with `delta`), "
                "leave it out, or set private_diagnostics=True."
            )
        if isinstance(callback, _WRITERS) or getattr(callback, "report_path", None) is not None:
            raise ValueError(
                f"{type(callback).__name__} would write down every run, and only the best one may "
                "be seen. Leave it out, or set private_diagnostics=True."
            )
    return {**arguments, "verbose": 0}


def _prints(callback: Any) -> bool:
    """Whether a callback of this package or of Keras prints something during a run."""
    if isinstance(callback, PrivacyCallback):
        return callback.delta is None
    return isinstance(callback, _PRINTERS) or bool(getattr(callback, "verbose", 0))


def refuse_seeds(data: Iterable[Any]) -> None:
    """Raises where training data draw the same batches in every run.

    Args:
        data: the arguments of `search`.

    Raises:
        ValueError: where a seed is among them.
    """
    for each in data:
        if isinstance(each, PoissonDataset) and each.seed is not None:
            raise ValueError(
                "The training data must have no `seed`: with it all runs draw the same batches, "
                "and the theorem needs independent ones. "
                f"Received: PoissonDataset(seed={each.seed})"
            )
