"""The runs of a private search, and its record: the number of runs is secret, the best one is kept.

Runs must be independent of each other, must stay within the bound that was fixed before the search,
and must not be seen or counted from outside. keras-tuner's own searches draw without replacement,
stop when they find nothing new, repeat failed trials, and end after several failures in a row.
Then the number of runs, or the distribution of one, depends on the others, and the theorem does not
hold.

The project directory holds

    private_search.json      the settings, from the beginning; the outcome and what is released,
                             from the end
    unreleased.weights.h5    during the search: the weights of the best run so far
    best.weights.h5          the weights of the released run
"""

import copy
import hashlib
import json
import math
import os
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import keras
import keras_tuner
import numpy as np
from keras_tuner.errors import FatalError

from keras_adaclip.accounting import Ledger
from keras_adaclip.sampling import PoissonDataset

# The operating system's randomness: what can be reproduced is no secret.
_RANDOM = secrets.SystemRandom()
# States of a search. An unfinished one is under way or was interrupted.
NOT_BEGUN, UNFINISHED, ENDED, FAILED, REFUSED = "new", "unfinished", "ended", "failed", "refused"
_FORMAT, _VERSION = "keras_adaclip.PrivateSearch", 6
_RECORD, _UNRELEASED, _BEST = "private_search.json", "unreleased.weights.h5", "best.weights.h5"
_SEEDED = (
    "A run has a `seed`, with which several runs draw the same noise or the same batches. Nothing "
    "is released. Leave `seed` out of `DPOptimizer` and `PoissonDataset`, and begin another search."
)
_CONTINUED = (
    "A run continues an earlier run: its ledger does not begin like the first one, or a weight is "
    "as private training of an earlier run has left it. Nothing is released. Build a new model for "
    "each run, with weights that do not come from this search, and begin another search."
)
_FATAL = (
    "A run raised a `FatalError`, and repeating it would choose among runs by whether they fail. "
    "Nothing is released. Remove the cause, and begin another search."
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
        is_drawn = isinstance(each, PoissonDataset)
        if is_drawn and (each.seed is not None or each.max_batch_size == "auto"):
            raise ValueError(
                "Runs must draw alike and independently: a `PoissonDataset` needs `seed=None`, and "
                "not `max_batch_size='auto'`, which the first run would choose. "
                f"Received: seed={each.seed}, max_batch_size={each.max_batch_size!r}"
            )
    if arguments.get("verbose", 0) != 0:
        raise ValueError(
            "Argument `verbose` must be 0: printed lines would tell the number of runs and their "
            f"scores. Received: verbose={arguments['verbose']!r}"
        )
    callbacks = arguments.get("callbacks") or []
    for callback in keras.tree.flatten(callbacks):
        loud = [getattr(callback, name, None) for name in ("verbose", "report_path")]
        if any(loud) or isinstance(callback, _NOT_SILENT):
            raise ValueError(
                f"{type(callback).__name__} would print or write something in every run, which "
                "would tell their number. Leave it out, or its `verbose` and `report_path`."
            )
    # Each run gets copies. A callback that cannot be copied raises here, not in every run.
    return {**arguments, "verbose": 0, "callbacks": copy.deepcopy(callbacks)}


def refuse_other_unit(data: tuple[Any, ...], arguments: Mapping[str, Any], planned: int) -> None:
    """Raise if runs would protect another unit than planned: rows, or persons with several.

    Args:
        data: The positional arguments of `search`.
        arguments: Its named arguments.
        planned: The most rows of a person in the plans; 0 for single rows.

    Raises:
        ValueError: If the plans are about another unit.
    """
    sets = [each for each in (*data, *arguments.values()) if isinstance(each, PoissonDataset)]
    of_sets = max((each.rows_per_unit for each in sets), default=None)
    most = arguments.get("max_rows_per_unit") or of_sets
    has_ids = bool(of_sets) or arguments.get("unit_ids") is not None
    if has_ids != (planned > 0) or most not in (None, planned):
        raise ValueError(
            "The plan of a run and its data must protect the same unit. Plan for persons by "
            "`ClippingHyperModel(max_rows_per_unit=k)`, or by rows `LedgerRow(..., "
            "rows_per_unit=k)` in `base` or `privacy_plan`, and give `search` `unit_ids` and the "
            "same `max_rows_per_unit=k`; or leave all of them out. Received: plans for "
            f"{f'persons with up to {planned} rows' if planned else 'single rows'}, unit_ids "
            f"{'given' if has_ids else 'not given'}, max_rows_per_unit={most}"
        )


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


def new_names(hp: keras_tuner.HyperParameters, space: keras_tuner.HyperParameters) -> str:
    """Return the names of hyperparameters that a copy of the space has in addition."""
    return ", ".join(repr(each.name) for each in hp.space[len(space.space) :])


class SearchRecord:
    """The files of one search.

    Args:
        project_dir: The folder.
        settings: The settings of the search, as plain values.

    Raises:
        ValueError: If the search that has begun in the folder has other settings.
    """

    def __init__(self, project_dir: str | os.PathLike[str], settings: dict[str, Any]) -> None:
        self.folder = Path(project_dir)
        self.best_weights = self.folder / _BEST
        self.unreleased_weights = self.folder / _UNRELEASED
        self._file, self._settings = self.folder / _RECORD, settings
        self.read()

    def read(self) -> tuple[str, Any]:
        """Return the state of the search, and the released run or why nothing can be released.

        Raises:
            ValueError: If the search has other settings, or the record is not one of this release.
        """
        if not self._file.exists():
            return NOT_BEGUN, None
        try:
            document = json.loads(self._file.read_text("utf-8"))
        except json.JSONDecodeError:
            document = {}
        if document.get("format") != _FORMAT or document.get("version") != _VERSION:
            raise ValueError(
                f"{str(self._file)!r} is not a record of a private search of this release."
            )
        for name, value in self._settings.items():
            if document["settings"].get(name) != value:
                raise ValueError(
                    f"The search that has begun in {str(self.folder)!r} has another `{name}`. "
                    "Begin another search in another project: the costs of both add up."
                )
        return document["state"], document["released"]

    def begin(self) -> None:
        """Claim the folder for good, before the first run.

        Raises:
            FileExistsError: If a search has begun here, perhaps in another process.
        """
        self._write(self._file, "x", UNFINISHED, None)

    def end(self, state: str, released: Any) -> None:
        """Fix the outcome once and for all, and delete weights that are not released.

        Args:
            state: `ENDED`, `FAILED` or `REFUSED`.
            released: The released run, None without one, or the reason of a refusal.
        """
        if state == ENDED and released is not None:
            self.unreleased_weights.replace(self.best_weights)
        self.unreleased_weights.unlink(missing_ok=True)
        # Replaced as a whole: a process that dies meanwhile leaves a search without an end.
        unfinished = self._file.with_name(f"{_RECORD}.unfinished")
        self._write(unfinished, "w", state, released)
        unfinished.replace(self._file)

    def _write(self, path: Path, mode: str, state: str, released: Any) -> None:
        """Write a record to the disk."""
        document = {"format": _FORMAT, "version": _VERSION, "settings": self._settings}
        document |= {"state": state, "released": released}
        with path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(document, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())


class PrivateRuns:
    """The runs of a search.

    Args:
        search: The `PrivateSearch`.
        data: The positional arguments of the hypermodel's `fit`.
        arguments: Its named arguments.
    """

    def __init__(self, search: Any, data: tuple[Any, ...], arguments: Mapping[str, Any]) -> None:
        self._search, self._record = search, search.record
        self._data, self._arguments = data, arguments
        self._space = search.space
        # Digests of the weights that private training has left, after every epoch.
        self._trained: set[str] = set()

    def run(self) -> None:
        """Run all runs, and end the search, unless another process was faster."""
        first_ledger = self._checked_build()
        try:
            self._record.begin()
        except FileExistsError:
            return
        try:
            with warnings.catch_warnings():
                # A warning in every run would tell their number.
                warnings.simplefilter("ignore")
                self._record.end(*self._run_all(first_ledger))
        except _RefusedError as error:
            self._record.end(REFUSED, str(error))
        except FatalError:
            self._record.end(REFUSED, _FATAL)
            raise
        finally:
            self._record.unreleased_weights.unlink(missing_ok=True)

    def _checked_build(self) -> Ledger:
        """Return the ledger of a new model, once the hypermodel is checked, before any run."""
        model = self._search.hypermodel.build(self._space.copy())
        ledger = getattr(model, "privacy_ledger", None)
        if not isinstance(ledger, Ledger) or not model.compiled:
            raise TypeError(
                "`hypermodel.build` must return a compiled private model, such as "
                f"`keras_adaclip.privatize` makes. Received: a {type(model).__name__}"
            )
        if _has_seed(model):
            raise ValueError(_SEEDED)
        return ledger

    def _run_all(self, first_ledger: Ledger) -> tuple[str, Any]:
        """Draw the secret number of runs, run them, and return the outcome.

        Args:
            first_ledger: The ledger of every model when `build` returns it.
        """
        num_runs, best = self._search.selection.draw(_RANDOM), None
        for _ in range(num_runs):
            hp = self._space.copy()
            hp.values = draw_values(self._space, _RANDOM.random)
            score, model = self._run_one(hp, first_ledger)
            better_than = self._search.oracle.objective.better_than
            if math.isfinite(score) and (best is None or better_than(score, best["score"])):
                model.save_weights(self._record.unreleased_weights)
                best = {"hyperparameters": hp.get_config(), "score": score}
                best["build_config"] = model.get_build_config()
        return (FAILED if num_runs > 0 and best is None else ENDED), best

    def _run_one(self, hp: keras_tuner.HyperParameters, first_ledger: Ledger) -> tuple[float, Any]:
        """Return the score of one run and its model; the score of a failed run is NaN."""
        # With one global seed for all runs, initial weights would depend on the number of runs
        # before, and without a new session so would the names that Keras gives to layers.
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(_RANDOM.getrandbits(32))
        watch = _Watch(self._search.oracle.objective, self._trained)
        callbacks = [*copy.deepcopy(self._arguments["callbacks"]), watch]
        arguments = {**self._arguments, "callbacks": callbacks}
        model, score, hypermodel = None, math.nan, self._search.hypermodel
        try:
            model = hypermodel.build(hp)
            watch.compare(model)
            watch.is_warm |= model.privacy_ledger != first_ledger
            if not watch.is_warm:
                score = watch.score(hypermodel.fit(hp, model, *self._data, **arguments))
        except FatalError:
            raise
        except Exception:
            # The run loses. Its error may depend on the data, so it is not told.
            pass
        if new := new_names(hp, self._space):
            raise _RefusedError(
                f"A run has asked for {new}, which the search space does not have. Nothing is "
                "released. Declare it in `declare_hyperparameters` or `hyperparameters`, and begin "
                "another search."
            )
        if model is not None:  # Failed runs must keep to the account too.
            self._refuse(model, watch)
            if model.privacy_ledger != first_ledger:
                watch.keep(model)
            if model.built:
                self._carry(model)
        return score, model

    def _refuse(self, model: Any, watch: "_Watch") -> None:
        """Raise if a run was not independent of others, or has spent more than planned."""
        if watch.is_warm:
            raise _RefusedError(_CONTINUED)
        if not self._search.bounds.covers(model.privacy_ledger):
            spent = "; ".join(str(row) for row in model.privacy_ledger)
            raise _RefusedError(
                f"A run has spent more than the bound that was fixed before the search: {spent}. "
                "Nothing is released. Let `privacy_plan` (or `base`) hold all steps and the least "
                "noise, and begin another search."
            )
        if _has_seed(model):
            raise _RefusedError(_SEEDED)

    def _carry(self, model: Any) -> None:
        """Add the cost of the search, which contains that of the run, to a model's ledger.

        From here on the model, its files and everything that its weights go into carry that cost.
        """
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        cost = self._search.bounds.selected(self._search.selection)
        model.optimizer.replace_ledger(cost)


class _RefusedError(Exception):
    """A run after which nothing can be released."""


class _Watch(keras.callbacks.EarlyStopping):
    """Watches a run: restores its best epoch, and finds weights that earlier runs have trained.

    A choice among the epochs of a run costs nothing: the ledger counts every step as released. It
    stays the ledger of the whole run, whichever epoch's weights are restored.

    Single weights are compared, at the beginning of each epoch too. Frozen ones can be copies,
    but only those that are trained count as trained.

    Args:
        objective: The `keras_tuner.Objective` that decides which epoch is best.
        trained: Digests of the weights that the runs of a search have trained.

    Attributes:
        is_warm: Whether the run began with the ledger or a weight of an earlier run.
    """

    def __init__(self, objective: Any, trained: set[str]) -> None:
        super().__init__(
            objective.name, patience=2**31, mode=objective.direction, restore_best_weights=True
        )
        self.best: float | None = None
        self.is_warm = False
        self._trained, self._earlier = trained, frozenset(trained)
        self._untrained: set[str] = set()

    def __deepcopy__(self, memo: Any) -> "_Watch":
        # A hypermodel may train with copies of its callbacks.
        return self

    def compare(self, model: Any) -> None:
        """Compare the present weights with those of earlier runs."""
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
        """Keep what the epoch has left, and its weights if the score is finite and the best."""
        self.keep(self.model)
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


def _digests(weights: Iterable[keras.Variable]) -> set[str]:
    """Return digests of weights, without those of zeros and ones, with which many runs begin."""
    values = map(keras.ops.convert_to_numpy, weights)
    distinct = [value.tobytes() for value in values if not np.isin(value, (0, 1)).all()]
    return {hashlib.sha256(each).hexdigest()[:32] for each in distinct}


def _has_seed(model: Any) -> bool:
    """Return whether noise or batches of a model come from a seed."""
    return bool(model.used_seeds) or model.optimizer.seed is not None
