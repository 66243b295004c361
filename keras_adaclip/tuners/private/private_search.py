"""A search for hyperparameters whose own cost is counted (Papernot and Steinke 2022)."""

import warnings
from pathlib import Path
from typing import Any

import keras_tuner

from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    PrivacyPlan,
    RandomSelection,
    RunBounds,
    check_integer,
    least_noise_multiplier,
)
from keras_adaclip.tuners.private.privacy_plans import planned_bounds
from keras_adaclip.tuners.private.private_search_oracle import PrivateSearchOracle
from keras_adaclip.tuners.private.search_arguments import (
    base_bounds,
    check_plans,
    check_tuner_arguments,
    checked_fit_arguments,
    checked_objective,
    refuse_seeds,
)
from keras_adaclip.tuners.private.search_lock import SearchLock
from keras_adaclip.tuners.private.search_privacy import SearchPrivacy
from keras_adaclip.tuners.private.search_record import (
    FAILED,
    NO_RUN,
    RELEASED,
    SearchRecord,
    refuse_to_overwrite,
)
from keras_adaclip.tuners.private.search_results import ALL_FAILED, SearchResults
from keras_adaclip.tuners.private.search_runs import SearchRuns


class PrivateSearch(SearchRuns, SearchResults):
    """Searches for hyperparameters at random, and releases the best run with its true epsilon.

    The number of runs is drawn from a law and kept secret, the hyperparameters of each are drawn
    at random from the search space, and nothing leaves but the best run. Then its epsilon is that
    of two or three runs, however many there were.

    What a run spends must be known before the first one: the hypermodel has a method
    `privacy_plan(hp)`, which returns the `Ledger` of a whole run, or `base` is given. Where plans
    differ, the largest Rényi divergence at every order counts.

    Args:
        hypermodel: keras-tuner's, which builds compiled private models; with `privacy_plan(hp)`,
            and for `target_epsilon` with `with_noise_multiplier(noise_multiplier)`, which returns
            such a hypermodel with that noise.
        objective: what to choose by, a name that begins with `"val_"` or a
            `keras_tuner.Objective` of such a name.
        mean_trials: float above 1, the mean of the number of runs.
        distribution: its law: `"geometric"`, `"logarithmic"` or `"poisson"`. By the last one there
            may be no run at all, and nothing is released.
        base: a `Ledger`, a `LedgerRow` or a `PrivacyPlan` that no run exceeds, instead of
            `privacy_plan`.
        target_epsilon: positive float, epsilon of the whole search, to which the noise of each run
            is calibrated; None leaves the noise to the hypermodel.
        delta: float in (0, 1), the delta that `target_epsilon` goes with.
        validation_is_public: bool, whether `validation_data` needs no protection. Otherwise the
            report says that the guarantee does not cover them.
        private_diagnostics: bool, whether the losing runs and their scores are kept and printed.
            They are not private: who sees them has the epsilon of all runs together.
        num_trials: int from 1, a number of runs that is known. The guarantee of a random number is
            gone then: epsilon is that of all runs together, and the report says so.
        seed: int that fixes the number of runs and all hyperparameters. Who can draw the number
            again knows it: as `num_trials`.
        hyperparameters: as of keras-tuner: hyperparameters that `build` does not ask for, or that
            are to have another range.
        **kwargs: `directory`, `project_name`, `overwrite` and `tuner_id`, as of keras-tuner.

    Raises:
        TypeError: where an argument is not of its kind.
        ValueError: where an argument is out of range, what a run spends cannot be known, or the
            project holds another search, or one that `overwrite` would delete.

    Guarantees:
        Epsilon holds for what `best_model`, `get_best_hyperparameters` and `results_summary`
        give: the best run's weights, hyperparameters and score. It needs the number of runs to
        stay secret. Until the search ends, that number, the scores and the last best weights
        stand in the project directory, which is the curator's; then all but the best run is
        deleted. Each run begins with `keras.utils.clear_session` and global seeds of its own, so
        that runs are independent; one that goes on from another, or whose noise or batches came
        from a `seed`, ends the search with nothing released. The released model carries the
        search's epsilon on its ledger, in its files too; so does every model when its run has
        ended. What callbacks and hypermodels print, write or keep before that is not covered. How
        long the search took tells how many runs there were.

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
    >>> print(f"{spent.epsilon:.2f}, where one run costs {spent.epsilon_of_one_run:.2f}")
    3.17, where one run costs 1.56

    Reference:
        Papernot and Steinke 2022, "Hyperparameter tuning with Rényi differential privacy".
    """

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
        seed: int | None = None,
        hyperparameters: keras_tuner.HyperParameters | None = None,
        **kwargs: Any,
    ) -> None:
        check_tuner_arguments(kwargs)
        objective = checked_objective(objective)
        selection = RandomSelection(mean_trials, distribution)
        if num_trials is not None:
            num_trials = check_integer(num_trials, "num_trials", minimum=1)
        if seed is not None:
            seed = check_integer(seed, "seed")
        check_plans(hypermodel, base, target_epsilon, delta)
        self._delta = delta
        self._private_diagnostics = bool(private_diagnostics)
        self._oracle = PrivateSearchOracle(
            objective,
            selection,
            num_trials=num_trials,
            seed=seed,
            hyperparameters=hyperparameters,
            keeps_losers=self._private_diagnostics,
        )
        self._objective = self._oracle.objective
        self._oracle.verbose = int(self._private_diagnostics)
        to_build = hypermodel
        if target_epsilon is not None:
            # Any noise will do to find the search space.
            to_build = hypermodel.with_noise_multiplier(1.0)
        if kwargs.get("overwrite"):
            refuse_to_overwrite(kwargs.get("directory"), kwargs.get("project_name"))
        super().__init__(self._oracle, to_build, **kwargs)
        known = PrivateSearchOracle.known_number(selection, num_trials, seed)
        self._privacy = SearchPrivacy(
            selection,
            self._bounds_of_runs(hypermodel, base, target_epsilon, delta, selection, known),
            known,
            bool(validation_is_public),
            self._private_diagnostics,
        )
        self._settings = self._described(seed)
        self._record = SearchRecord(self.project_dir)
        if self._record.has_begun:
            self._record.check(self._settings)
            if self._record.has_ended and not self._is_worker_of_chief:
                self._remove_traces()

    def _bounds_of_runs(
        self,
        hypermodel: Any,
        base: Ledger | LedgerRow | PrivacyPlan | None,
        target_epsilon: float | None,
        delta: float | None,
        selection: RandomSelection,
        num_known_trials: int | None,
    ) -> RunBounds:
        """What a run spends at most; sets the noise where it is calibrated."""
        space = self._oracle.get_space()
        if base is not None:
            return base_bounds(base)
        if target_epsilon is None or delta is None:
            return planned_bounds(hypermodel, space)

        def epsilon(noise_multiplier: float) -> float:
            bounds = planned_bounds(hypermodel.with_noise_multiplier(noise_multiplier), space)
            return SearchPrivacy(selection, bounds, num_known_trials, True, False).epsilon(delta)

        self.hypermodel = hypermodel.with_noise_multiplier(
            least_noise_multiplier(epsilon, target_epsilon)
        )
        return planned_bounds(self.hypermodel, space)

    def _described(self, seed: int | None) -> dict[str, Any]:
        """What an interrupted search must go on with."""
        privacy = self._privacy
        return {
            "mean_trials": privacy.selection.mean_trials,
            "distribution": privacy.selection.distribution,
            "objective": [self._objective.name, self._objective.direction],
            "base": privacy.bounds.to_list(),
            "num_trials": privacy.num_known_trials,
            "seed": seed,
            "validation_is_public": privacy.validation_is_public,
            "private_diagnostics": self._private_diagnostics,
        }

    @property
    def _is_worker_of_chief(self) -> bool:
        # keras-tuner puts a client in the place of a worker's oracle.
        return self.oracle is not self._oracle

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """Runs the search, or goes on with one that was interrupted.

        Whether a search is interrupted must not depend on how its runs go.

        Args:
            *fit_args: the training data, as of `fit`.
            **fit_kwargs: as of `fit`, with `validation_data`.

        Raises:
            RuntimeError: where nothing can be released: a run has spent more than was said, was
                not independent of others, or the best run failed, and so all did; and where
                another process searches in the same folder.
            ValueError: where an argument would tell of losing runs, or there are no validation
                data.
        """
        fit_kwargs = checked_fit_arguments(fit_kwargs, self._private_diagnostics)
        refuse_seeds([*fit_args, *fit_kwargs.values()])
        self._require_ours()
        if self._is_worker_of_chief:
            self._search_quietly(*fit_args, **fit_kwargs)
            self._require_ours()
            return
        with SearchLock(self.project_dir):
            # Another process may have begun, or gone on, since this object was made.
            self._require_ours()
            if self._record.has_ended:
                return
            if self._record.has_begun and Path(self.project_dir, "oracle.json").exists():
                # keras-tuner reads it where it finds a file of this tuner's name, and not later.
                self._oracle.reload()
            first_ledger = self._checked_build()
            if not self._record.has_begun:
                self._record.begin(self._settings, first_ledger)
            self._oracle.begin(self._record)
            self.save()
            self._search_quietly(*fit_args, **fit_kwargs)
            self._end()
        self._require_ours()

    def _search_quietly(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """keras-tuner's search, without what comes once a run, and could be counted."""
        if self._private_diagnostics:
            super().search(*fit_args, **fit_kwargs)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            super().search(*fit_args, **fit_kwargs)

    def _end(self) -> None:
        """Fixes what is released, and deletes the rest."""
        if self._record.refusal is None:
            best = self._oracle.best_trial()
            if best is not None:
                self._record.keep_best(self.get_trial_dir(best.trial_id))
                released = {
                    "hyperparameters": best.hyperparameters.get_config(),
                    "score": best.score,
                }
                self._record.end(RELEASED, released)
            else:
                self._record.end(FAILED if self._oracle.has_run else NO_RUN, None)
        self._remove_traces()
        if self._record.refusal is None and self._record.result()[0] == FAILED:
            raise RuntimeError(ALL_FAILED)

    def _remove_traces(self) -> None:
        if not self._private_diagnostics:
            self._record.remove_trials()
            self._oracle.forget()
