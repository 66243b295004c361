"""The runs of a private search: their number is secret, and only the best one is kept.

Runs must be independent of each other, must stay within the bound that was fixed before the search,
and must not be seen or counted from outside. keras-tuner's own searches draw without replacement,
stop when they find nothing new, repeat failed trials, and end after several failures in a row.
Then the number of runs, or the distribution of one, depends on the others, and the theorem does not
hold.
"""

import copy
import dataclasses
import hashlib
import math
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import keras_tuner
import numpy as np

from keras_adaclip.accounting import Ledger, RandomSelection, RunBounds
from keras_adaclip.callbacks import PrivacyCallback
from keras_adaclip.sampling import PoissonDataset
from keras_adaclip.tuners import private_record
from keras_adaclip.tuners.plan_guard import in_words
from keras_adaclip.tuners.private_plans import new_names

# The operating system's randomness: what can be reproduced is no secret.
_RANDOM = secrets.SystemRandom()
_SEEDED = (
    "A run has a `seed`, with which several runs draw the same noise or the same batches, but the "
    "theorem needs independent runs. Nothing is released. Leave `seed` out of `DPOptimizer` and "
    "`PoissonDataset`, and begin another search."
)
_CONTINUED = (
    "The model that `build` returned has not spent the same as the first one: it continues an "
    "earlier run or another training, and runs must be independent. Nothing is released. Build a "
    "new model each time, and begin another search."
)
_WARM_STARTED = (
    "A run has weights as private training of an earlier run has left them, and runs must be "
    "independent. Nothing is released. Begin each run with new weights, or with weights that do "
    "not come from this search, and begin another search."
)
_FATAL = (
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
    if arguments.get("validation_split") or arguments.get("validation_data") is None:
        raise ValueError(
            "Argument `validation_data` must be given: runs are chosen by a score. A "
            "`validation_split` would be a part of the private data, which scores would reveal."
        )
    for each in (*data, *arguments.values()):
        if isinstance(each, PoissonDataset) and each.seed is not None:
            raise ValueError(f"{_SEEDED} Received: PoissonDataset(seed={each.seed})")
        if isinstance(each, PoissonDataset) and each.max_batch_size == "auto":
            raise ValueError(
                "In a private search, all runs must draw alike, and `max_batch_size='auto'` would "
                "be chosen by the first one. Give a number, which the plan of the search has too."
            )
    if arguments.get("verbose", 0) != 0:
        raise ValueError(
            "Argument `verbose` must be 0: printed lines would tell the number of runs and their "
            f"scores. Received: verbose={arguments['verbose']!r}"
        )
    callbacks = arguments.get("callbacks") or []
    for callback in keras.tree.flatten(callbacks):
        if isinstance(callback, PrivacyCallback):
            is_silent = callback.delta is not None and callback.report_path is None
        else:
            is_verbose = bool(getattr(callback, "verbose", False))
            is_silent = not (is_verbose or isinstance(callback, _NOT_SILENT))
        if not is_silent:
            raise ValueError(
                f"{type(callback).__name__} would print or write something in every run, but only "
                "the best run may be seen, and not the number of runs. Leave it out, or make it "
                "silent: `verbose=0`; `PrivacyCallback` with `delta` and without `report_path`."
            )
    # Each run gets copies. A callback that cannot be copied raises here, not in every run.
    return {**arguments, "verbose": 0, "callbacks": copy.deepcopy(callbacks)}


def draw_values(space: keras_tuner.HyperParameters, random: Callable[[], float]) -> dict[str, Any]:
    """Return the hyperparameters of one run, drawn from the distribution that a space declares.

    Args:
        space: The search space.
        random: A function that draws a number between 0 and 1.
    """
    values: dict[str, Any] = {}
    for each in space.space:
        if all(condition.is_active(values) for condition in each.conditions):
            values[each.name] = each.prob_to_value(random())
    return values


@dataclasses.dataclass(frozen=True)
class SearchLoop:
    """Runs a search, and fixes what is released.

    Args:
        hypermodel: The hypermodel.
        space: Its search space.
        objective: The `keras_tuner.Objective` to choose by.
        bounds: The largest cost of a run.
        selection: The distribution of the number of runs.
        record: The record of the search.
        fit_args: The positional arguments of the hypermodel's `fit`.
        fit_kwargs: The named arguments of the hypermodel's `fit`.

    Attributes:
        trained: Digests of the weights that private training has left, after every epoch.
    """

    hypermodel: Any
    space: keras_tuner.HyperParameters
    objective: Any
    bounds: RunBounds
    selection: RandomSelection
    record: private_record.SearchRecord
    fit_args: tuple[Any, ...]
    fit_kwargs: Mapping[str, Any]
    trained: set[str] = dataclasses.field(default_factory=set)

    def run(self) -> None:
        """Run all runs, and end the search."""
        first_ledger = self._checked_build()
        try:
            self.record.begin()
        except FileExistsError:
            return  # Another process was faster.
        try:
            with warnings.catch_warnings():
                # A warning in every run would tell their number.
                warnings.simplefilter("ignore")
                self._run_all(first_ledger)
        finally:
            self.record.unreleased_weights.unlink(missing_ok=True)

    def _run_all(self, first_ledger: Ledger) -> None:
        """Draw the secret number of runs, run them, and fix what is released.

        Args:
            first_ledger: The ledger of every model when `build` returns it.
        """
        num_runs = self.selection.draw(_RANDOM)
        best: dict[str, Any] | None = None
        for _ in range(num_runs):
            hp = self.space.copy()
            hp.values = draw_values(self.space, _RANDOM.random)
            score, model = self._run_one(hp, first_ledger)
            if self.record.outcome != private_record.UNFINISHED:
                return
            is_best = best is None or self.objective.better_than(score, best["score"])
            if math.isfinite(score) and is_best:
                model.save_weights(self.record.unreleased_weights)
                best = {
                    "hyperparameters": hp.get_config(),
                    "score": score,
                    "build_config": model.get_build_config(),
                }
        if best is not None:
            self.record.end(private_record.RELEASED, best)
        else:
            self.record.end(private_record.NO_RUN if num_runs == 0 else private_record.FAILED)

    def _checked_build(self) -> Ledger:
        """Return the ledger of a new model, once the hypermodel is checked, before any run."""
        model = self.hypermodel.build(self.space.copy())
        ledger = getattr(model, "privacy_ledger", None)
        if not isinstance(ledger, Ledger) or not model.compiled:
            raise TypeError(
                "`hypermodel.build` must return a compiled private model, such as "
                f"`keras_adaclip.privatize` makes. Received: a {type(model).__name__}"
            )
        if _has_seed(model):
            raise ValueError(_SEEDED)
        return ledger

    def _run_one(self, hp: keras_tuner.HyperParameters, first_ledger: Ledger) -> tuple[float, Any]:
        """Return the score of one run and its model; the score of a failed run is NaN."""
        # With one global seed for all runs, initial weights would depend on the number of runs
        # before, and without a new session so would the names that Keras gives to layers.
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(_RANDOM.getrandbits(32))
        best_epoch = _BestEpoch(self.objective)
        start = _StartOfRun(self.trained)
        callbacks = [*copy.deepcopy(self.fit_kwargs["callbacks"]), best_epoch, start]
        arguments = {**self.fit_kwargs, "callbacks": callbacks}
        model, score, problem = None, math.nan, None
        try:
            model = self.hypermodel.build(hp)
            start.compare(model)
            if model.privacy_ledger == first_ledger:
                results = self.hypermodel.fit(hp, model, *self.fit_args, **arguments)
                score = best_epoch.score(results)
            else:
                problem = _CONTINUED
        except keras_tuner.errors.FatalError:
            self.record.end(private_record.REFUSED, _FATAL)
            raise
        except Exception:
            # The run loses. Its error may depend on the data, so it is not told.
            score = math.nan
        # Failed runs must keep to the account too.
        if problem is None and model is not None:
            problem = _WARM_STARTED if start.is_warm else self._problem(model)
            if model.privacy_ledger != first_ledger:
                start.keep(model)
        if new := new_names(hp, self.space):
            problem = (
                f"A run has asked for {new}, which the search space does not have, so its "
                "distribution was not fixed before the search. Nothing is released. Declare it in "
                "`declare_hyperparameters` or `hyperparameters`, and begin another search."
            )
        if problem is not None:
            self.record.end(private_record.REFUSED, problem)
        elif model is not None and model.built:
            self._carry(model)
        return score, model

    def _problem(self, model: Any) -> str | None:
        """Return the reason why the search must end after a run; None if there is none."""
        if not self.bounds.covers(model.privacy_ledger):
            return (
                "A run has spent more than the bound that was fixed before the search: "
                f"{in_words(model.privacy_ledger)}. Nothing is released. Let `privacy_plan` (or "
                "`base`) have every step and the least noise that `fit` will use, and begin "
                "another search."
            )
        return _SEEDED if _has_seed(model) else None

    def _carry(self, model: Any) -> None:
        """Add the cost of the search, which contains that of the run, to a model's ledger.

        From here on the model, its files and everything that its weights go into carry that cost.
        """
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        model.optimizer.replace_ledger(self.bounds.selected(self.selection))


class _BestEpoch(keras.callbacks.EarlyStopping):
    """Restores the weights of the best epoch of a run.

    A choice among the epochs of a run costs nothing: the ledger counts every step as released. It
    stays the ledger of the whole run, whichever epoch's weights are restored.

    Args:
        objective: The `keras_tuner.Objective` that decides which epoch is best.
    """

    def __init__(self, objective: Any) -> None:
        super().__init__(
            objective.name, patience=2**31, mode=objective.direction, restore_best_weights=True
        )
        self.best: float | None = None

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


class _StartOfRun(keras.callbacks.Callback):
    """Compares the weights with which a run begins with those that earlier runs have trained.

    Single weights are compared, at the beginning of each epoch too. Frozen ones can be copies,
    but only those that are trained count as trained.

    Args:
        trained: Digests of the weights that the runs of a search have trained.

    Attributes:
        is_warm: Whether a weight is that of an earlier run.
    """

    def __init__(self, trained: set[str]) -> None:
        super().__init__()
        self.is_warm = False
        self._trained, self._earlier = trained, frozenset(trained)
        self._untrained: set[str] = set()

    def __deepcopy__(self, memo: Any) -> "_StartOfRun":
        # A hypermodel may train with copies of its callbacks.
        return self

    def compare(self, model: Any) -> None:
        """Compare the present weights."""
        found = _digests(model.weights)
        self._untrained |= found
        self.is_warm |= not found.isdisjoint(self._earlier)

    def keep(self, model: Any) -> None:
        """Keep the digests of the weights that training has changed since they were compared."""
        self._trained |= _digests(model.trainable_weights) - self._untrained

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Compare the weights, which callbacks may have set."""
        self.compare(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keep what the epoch has left."""
        self.keep(self.model)


def _digests(weights: Iterable[keras.Variable]) -> set[str]:
    """Return digests of weights, without those of zeros and ones, with which many runs begin."""
    values = map(keras.ops.convert_to_numpy, weights)
    told = [value.tobytes() for value in values if not np.isin(value, (0, 1)).all()]
    return {hashlib.sha256(each).hexdigest()[:32] for each in told}


def _has_seed(model: Any) -> bool:
    """Return whether noise or batches of a model come from a seed."""
    return bool(model.used_seeds) or model.optimizer.seed is not None
