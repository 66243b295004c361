"""A search for hyperparameters whose own cost is counted (Papernot and Steinke 2022)."""

import copy
import json
import math
import os
import warnings
from pathlib import Path
from typing import Any

import keras
import keras_tuner
from keras_tuner.engine.trial import Trial

from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    PrivacyPlan,
    RandomSelection,
    check_integer,
)
from keras_adaclip.tuners.private.account import (
    SearchPrivacy,
    base_bounds,
    calibrated,
    carry,
    check_plans,
    planned_bounds,
)
from keras_adaclip.tuners.private.oracle import PrivateSearchOracle
from keras_adaclip.tuners.private.record import (
    BUILD_CONFIG,
    FAILED,
    NO_RUN,
    RELEASED,
    WEIGHTS,
    SearchRecord,
    search_lock,
)
from keras_adaclip.tuners.private.results import SearchResults
from keras_adaclip.tuners.private.run import (
    CONTINUED,
    FATAL,
    SEEDED,
    RunMonitor,
    check_objective,
    checked_fit_arguments,
    has_seed,
)


class PrivateSearch(SearchResults):
    """Searches for hyperparameters at random, and releases the best run with its true epsilon.

    The number of runs is drawn at random and kept secret, the hyperparameters of each run are drawn
    at random from the search space, and only the best run is released. Its epsilon is then that of
    two or three runs, however many there were.

    The cost of a run must be known before the first one: the hypermodel has a method
    `privacy_plan(hp)`, which returns the `Ledger` of a whole run, or `base` is given. If plans
    differ, the largest Rényi divergence at every order counts.

    Args:
        hypermodel: keras-tuner's, which builds compiled private models; with `privacy_plan(hp)`,
            and for `target_epsilon` with `with_noise_multiplier(noise_multiplier)`, which returns
            such a hypermodel with that noise.
        objective: the score to choose by: a name that begins with `"val_"`, or a
            `keras_tuner.Objective` with such a name.
        mean_trials: float above 1, the mean of the number of runs.
        distribution: distribution of that number: `"geometric"`, `"logarithmic"` or `"poisson"`.
            The last one can draw zero, and then nothing is released.
        base: a `Ledger`, a `LedgerRow` or a `PrivacyPlan` that no run exceeds, instead of
            `privacy_plan`.
        target_epsilon: positive float, epsilon of the whole search, to which the noise of each run
            is calibrated; None leaves the noise to the hypermodel.
        delta: float in (0, 1), the delta of `target_epsilon`.
        validation_is_public: bool, whether `validation_data` needs no protection. Otherwise the
            report says that the guarantee does not cover it.
        private_diagnostics: bool, whether the losing runs and their scores are kept and printed.
            They are not private: whoever sees them has the epsilon of all runs together.
        num_trials: int from 1, a number of runs that is known. The guarantee of a random number is
            gone then: epsilon is that of all runs together, and the report says so.
        hyperparameters: as in keras-tuner: hyperparameters that `build` does not ask for, or that
            have another range.
        directory: folder for the files; None for the working directory.
        project_name: name of this search's folder in it.
        overwrite: whether to delete other files of keras-tuner in that folder; never a search.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if an argument is out of range, the cost of a run cannot be known, the folder
            holds another search or one that `overwrite` would delete, or keras-tuner's distributed
            mode is on.

    Guarantees:
        Epsilon holds for what `best_model`, `get_best_hyperparameters` and `results_summary` give:
        the weights, hyperparameters and score of the best run. The number of runs must stay secret.
        Until the search ends, that number, the scores and the last best weights are in the project
        directory, which belongs to the curator; then everything but the best run is deleted. Each
        run begins with `keras.utils.clear_session` and new global seeds, so that runs are
        independent; a run that continues another one, or whose noise or batches come from a `seed`,
        ends the search without a release. The released model carries the search's epsilon on its
        ledger and in its files; so does every model when its run has ended. What callbacks and
        hypermodels print, write or keep before that is not covered. The duration of the search
        tells the number of runs.

    Example:

    >>> import tempfile
    >>> import keras
    >>> import keras_adaclip as ka
    >>> def build(hp):
    ...     model = ka.PrivateSequential([keras.Input((3,)), keras.layers.Dense(1)])
    ...     rate = hp.Float("learning_rate", 1e-3, 1.0, sampling="log")
    ...     optimizer = ka.optimizers.DPOptimizer(keras.optimizers.SGD(rate), noise_multiplier=1.0)
    ...     model.compile(optimizer, "mean_squared_error")
    ...     return model
    >>> poisson = ka.accounting.Sampling.POISSON
    >>> one_run = ka.accounting.LedgerRow.open(poisson, 256, 60_000, 1.0).advance(3515)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     search = PrivateSearch(
    ...         build, "val_loss", mean_trials=10, base=one_run, directory=folder
    ...     )
    ...     spent = search.privacy_spent(delta=1e-5)
    >>> print(f"{spent.epsilon:.2f}; one run alone {spent.epsilon_of_one_run:.2f}")
    3.17; one run alone 1.56

    Reference:
        Papernot and Steinke 2022, "Hyperparameter tuning with Rényi differential privacy".
    """

    oracle: PrivateSearchOracle

    def __init__(
        self,
        hypermodel: Any,
        objective: str | keras_tuner.Objective,
        mean_trials: float = 10,
        distribution: str = "geometric",
        *,
        base: Ledger | LedgerRow | PrivacyPlan | None = None,
        target_epsilon: float | None = None,
        delta: float | None = None,
        validation_is_public: bool = False,
        private_diagnostics: bool = False,
        num_trials: int | None = None,
        hyperparameters: keras_tuner.HyperParameters | None = None,
        directory: str | os.PathLike[str] | None = None,
        project_name: str | None = None,
        overwrite: bool = False,
    ) -> None:
        if "KERASTUNER_TUNER_ID" in os.environ:
            raise ValueError(
                "A private search runs in one process, which keeps the number of runs secret. "
                "Unset the environment variable KERASTUNER_TUNER_ID. "
                f"Received: KERASTUNER_TUNER_ID={os.environ['KERASTUNER_TUNER_ID']!r}"
            )
        check_objective(objective)
        selection = RandomSelection(mean_trials, distribution)
        if num_trials is not None:
            num_trials = check_integer(num_trials, "num_trials", minimum=1)
        check_plans(hypermodel, base, target_epsilon, delta)
        if overwrite:
            folder = Path(directory or ".") / (project_name or "untitled_project")
            SearchRecord(folder).refuse_to_overwrite()
        oracle = PrivateSearchOracle(
            objective, selection, num_trials, hyperparameters, keeps_losers=private_diagnostics
        )
        oracle.verbose = int(private_diagnostics)
        super().__init__(
            oracle,
            # Any noise will do to find the search space.
            hypermodel if target_epsilon is None else hypermodel.with_noise_multiplier(1.0),
            directory=None if directory is None else os.fspath(directory),
            project_name=project_name,
            overwrite=overwrite,
        )
        space = oracle.get_space()
        if target_epsilon is not None and delta is not None:
            hypermodel = calibrated(hypermodel, space, selection, num_trials, target_epsilon, delta)
            self.hypermodel = hypermodel
        self._delta = delta
        self._objective = oracle.objective
        self._privacy = SearchPrivacy(
            selection,
            planned_bounds(hypermodel, space) if base is None else base_bounds(base),
            num_trials,
            bool(validation_is_public),
            bool(private_diagnostics),
        )
        self._record = SearchRecord(self.project_dir)
        if self._record.has_begun:
            self._record.check(self._settings())
            if self._record.has_ended:
                self._remove_traces()

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """Runs the search, or continues one that was interrupted.

        Whether a search is interrupted must not depend on its runs.

        Args:
            *fit_args: the training data, as in `fit`.
            **fit_kwargs: as in `fit`, with `validation_data`.

        Raises:
            RuntimeError: if nothing can be released, because a run has spent more than planned or
                was not independent of others, or all runs failed; and if another process searches
                in the same folder.
            ValueError: if an argument would tell of losing runs, or there are no validation data.
        """
        fit_kwargs = checked_fit_arguments(fit_args, fit_kwargs, self._privacy.keeps_losers)
        self._require_ours()
        with search_lock(self.project_dir):
            # Another process may have begun or continued the search since this object was made.
            self._require_ours()
            if not self._record.has_ended:
                self._search(*fit_args, **fit_kwargs)
        self._released()

    def _search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        if self._record.has_begun and Path(self.project_dir, "oracle.json").exists():
            # keras-tuner reads that file only when the tuner is made.
            self.oracle.reload()
        first_ledger = self._checked_build()
        if not self._record.has_begun:
            self._record.begin(self._settings(), first_ledger)
        self.oracle.begin()
        self.save()
        with warnings.catch_warnings():
            if not self._privacy.keeps_losers:
                # A warning in every run would tell their number.
                warnings.simplefilter("ignore")
            super().search(*fit_args, **fit_kwargs)
        if self._record.refusal is None:
            self._release()
        self._remove_traces()

    def _checked_build(self) -> Ledger:
        """The ledger of a new model, once the hypermodel is checked and nothing yet is spent."""
        model = self.hypermodel.build(self.oracle.get_space())
        ledger = getattr(model, "privacy_ledger", None)
        if not isinstance(ledger, Ledger) or not model.compiled:
            raise TypeError(
                "`hypermodel.build` must return a compiled private model, such as "
                f"`keras_adaclip.privatize` makes. Received: a {type(model).__name__}"
            )
        if has_seed(model):
            raise ValueError(SEEDED)
        if self._record.has_begun and ledger != self._record.first_ledger:
            raise ValueError(CONTINUED)
        if not self._privacy.bounds.covers(ledger):
            raise ValueError(
                "The model that `hypermodel.build` returns has spent more already than a run may. "
                "Build a new model each time."
            )
        return ledger

    def run_trial(self, trial: Trial, *args: Any, **kwargs: Any) -> dict[str, float]:
        """One run, of which keras-tuner gets the objective alone; infinity if the run failed.

        Raises:
            FatalError: if the run raises one, which ends the search.
            ValueError: if the run continues an earlier one, with private diagnostics only.
        """
        hp = trial.hyperparameters
        num_declared = len(hp.space)
        folder = Path(self.get_trial_dir(trial.trial_id))
        (folder / WEIGHTS).unlink(missing_ok=True)  # of an interrupted run
        # With one global seed for all runs, initial weights would depend on the number of runs
        # before, and without a new session so would the names that Keras gives to layers.
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(self.oracle.random.getrandbits(32))
        monitor = RunMonitor(self._objective, self._privacy.bounds)
        callbacks = [*copy.deepcopy(kwargs.pop("callbacks", None) or []), monitor]
        model = None
        try:
            model = self.hypermodel.build(hp)
            if model.privacy_ledger != self._record.first_ledger:
                self._refuse(CONTINUED)
                raise ValueError(CONTINUED)
            results = self.hypermodel.fit(hp, model, *args, callbacks=callbacks, **kwargs)
            value = self._save_run(model, results, monitor, folder)
        except keras_tuner.errors.FatalError:
            self._refuse(FATAL)
            raise
        except Exception:
            # keras-tuner would print it, and the number of failed runs is a secret too.
            if self._privacy.keeps_losers:
                raise
            value = math.nan
        finally:
            # Failed runs must keep to the account too.
            if model is not None and (problem := monitor.problem(model)) is not None:
                self._refuse(problem)
            if new := ", ".join(repr(each.name) for each in hp.space[num_declared:]):
                self._refuse(
                    f"A run has asked for {new}, which the search space does not have, so its "
                    "distribution was not fixed before the search. Nothing is released. Declare "
                    "it in `declare_hyperparameters` or `hyperparameters`, and begin another "
                    "search."
                )
        # keras-tuner warns of NaN.
        return {self._objective.name: value if math.isfinite(value) else math.inf}

    def _save_run(self, model: Any, results: Any, monitor: RunMonitor, folder: Path) -> float:
        """Saves the best weights of a run, and returns their score."""
        if not isinstance(results, keras.callbacks.History):
            value = results[self._objective.name] if isinstance(results, dict) else results
        elif monitor.best_value is None:
            return math.nan
        else:
            value = monitor.best_value
            monitor.restore_best()
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        # From here on the model, its files and everything that its weights go into carry the cost
        # of the search, which contains that of the run.
        monitor.spent = model.privacy_ledger
        carry(model, self._privacy.released_ledger(), holds_own=True)
        model.save_weights(folder / WEIGHTS)
        (folder / BUILD_CONFIG).write_text(json.dumps(model.get_build_config()), "utf-8")
        return float(value)

    def _refuse(self, reason: str) -> None:
        """Ends the search without a release."""
        self._record.refuse(reason)
        self.oracle.is_refused = True

    def _release(self) -> None:
        """Fixes what is released."""
        best = self.oracle.best_trial()
        if best is None:
            self._record.end(FAILED if self.oracle.trials else NO_RUN)
            return
        self._record.keep_best(self.get_trial_dir(best.trial_id))
        released = {"hyperparameters": best.hyperparameters.get_config(), "score": best.score}
        self._record.end(RELEASED, released)

    def _remove_traces(self) -> None:
        """Deletes everything that tells of losing runs, and of their number."""
        if not self._privacy.keeps_losers:
            self._record.remove_trials()
            self.oracle.forget()
