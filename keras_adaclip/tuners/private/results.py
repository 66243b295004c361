"""The release of a private search, and its cost in words."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras_tuner
from keras_tuner.engine.trial import Trial

from keras_adaclip.accounting import PrivacyReport, rounded_up
from keras_adaclip.tuners.private.account import SearchPrivacy, SearchSpent, carry
from keras_adaclip.tuners.private.record import BUILD_CONFIG, FAILED, WEIGHTS, SearchRecord

_ALL_FAILED = (
    "The best run failed, so all of them did: nothing is released. The errors are not told, since "
    "they may depend on the data. Train one model of the hypermodel on made-up data, or begin "
    "another search with private_diagnostics=True, whose files tell."
)


class SearchResults(keras_tuner.Tuner):
    """The results of a search that has ended, and its account: a part of `PrivateSearch`."""

    _record: SearchRecord
    _privacy: SearchPrivacy
    _objective: keras_tuner.Objective
    _delta: float | None

    def best_model(self) -> Any:
        """The released model, which carries the cost of the search on its ledger.

        Returns:
            The model, with the weights of its best epoch; None if the number of runs was drawn as
            zero, so that there is nothing to release.

        Raises:
            RuntimeError: if the search has not ended, or nothing can be released.
        """
        if (released := self._released()) is None:
            return None
        hp = keras_tuner.HyperParameters.from_config(released["hyperparameters"])
        return self._loaded(hp, self._record.best_folder)

    def load_model(self, trial: Trial) -> Any:
        """The model of a trial, if `private_diagnostics` has kept it.

        It carries the cost of all runs together besides that of the search: whoever has the model
        of a losing run knows more than the best one.
        """
        model = self._loaded(trial.hyperparameters, Path(self.get_trial_dir(trial.trial_id)))
        carry(model, self._privacy.bounds.selected(None, len(self.oracle.trials)))
        return model

    def get_best_models(self, num_models: int = 1) -> list[Any]:
        """The released model in a list, which is empty if nothing is released.

        Args:
            num_models: 1; more with `private_diagnostics`.
        """
        if not self._is_one(num_models=num_models):
            return super().get_best_models(num_models)
        model = self.best_model()
        return [] if model is None else [model]

    def get_best_hyperparameters(self, num_trials: int = 1) -> list[keras_tuner.HyperParameters]:
        """The released run's hyperparameters in a list, which is empty if nothing is released.

        Args:
            num_trials: 1; more with `private_diagnostics`.
        """
        if not self._is_one(num_trials=num_trials):
            return super().get_best_hyperparameters(num_trials)
        if (released := self._released()) is None:
            return []
        return [keras_tuner.HyperParameters.from_config(released["hyperparameters"])]

    @property
    def best_score(self) -> float | None:
        """The released run's score; None if nothing is released."""
        released = self._released()
        return None if released is None else float(released["score"])

    def privacy_spent(self, delta: float) -> SearchSpent:
        """The privacy that the search spends, known before the first run.

        Args:
            delta: float in (0, 1), well below one over the number of examples.

        Returns:
            Epsilon of the released run with its selection, and that of one run beside it.
        """
        self._require_ours()
        return self._privacy.spent(delta)

    def privacy_report(self, delta: float, group_sizes: Sequence[int] = ()) -> PrivacyReport:
        """The report of the search, with the selection.

        Args:
            delta: delta of every epsilon, in (0, 1).
            group_sizes: numbers of examples of one person for which epsilon of one run is given;
                each takes seconds.

        Returns:
            The report: the costliest run, and the selection. Released models have their own.
        """
        self._require_ours()
        return self._privacy.report(delta, group_sizes)

    def results_summary(
        self,
        num_trials: int = 1,
        *,
        delta: float | None = None,
        print_fn: Callable[[str], Any] = print,
    ) -> None:
        """Prints what the search has released, and its cost.

        Args:
            num_trials: 1; with more, and `private_diagnostics`, keras-tuner's summary follows.
            delta: delta of the epsilons; None means that of the constructor, or leaves them out.
            print_fn: function that takes each line.
        """
        is_one = self._is_one(num_trials=num_trials)
        released = self._released()
        delta = self._delta if delta is None else delta
        print_fn(f"Private search: {self._privacy}.")
        if delta is not None:
            spent = self.privacy_spent(delta)
            print_fn(
                f"epsilon = {rounded_up(spent.epsilon)} at delta = {delta:g}, by Rényi divergences"
            )
            print_fn(f"epsilon of one run = {rounded_up(spent.epsilon_of_one_run)}")
        if released is None:
            print_fn("There was no run, and nothing is released.")
        else:
            print_fn(f"{self._objective.name}: {released['score']:.5g}")
            for name, value in released["hyperparameters"]["values"].items():
                print_fn(f"{name}: {value}")
        if not is_one:
            super().results_summary(num_trials)

    def _settings(self) -> dict[str, Any]:
        """The settings with which an interrupted search must continue, as plain values."""
        privacy = self._privacy
        return {
            "mean_trials": privacy.selection.mean_trials,
            "distribution": privacy.selection.distribution,
            "objective": [self._objective.name, self._objective.direction],
            "base": privacy.bounds.to_list(),
            "num_trials": privacy.num_trials,
            "validation_is_public": privacy.validation_is_public,
            "private_diagnostics": privacy.keeps_losers,
        }

    def _require_ours(self) -> None:
        """Raises if the folder holds another search, or one that releases nothing."""
        if self._record.has_begun:
            self._record.check(self._settings())
        if (refusal := self._record.refusal) is not None:
            raise RuntimeError(refusal)

    def _released(self) -> dict[str, Any] | None:
        """The release; None if there was no run."""
        self._require_ours()
        if not self._record.has_ended:
            raise RuntimeError(
                "Nothing is released before the search has ended: its epsilon does not cover "
                "results of a part of the runs. Call `search`."
            )
        outcome, released = self._record.result()
        if outcome == FAILED:
            raise RuntimeError(_ALL_FAILED)
        return released

    def _loaded(self, hp: keras_tuner.HyperParameters, folder: Path) -> Any:
        model = self.hypermodel.build(hp)
        if not model.built:
            model.build_from_config(json.loads((folder / BUILD_CONFIG).read_text("utf-8")))
        # The file holds the optimizer's state as well, which was built when it was saved.
        model.optimizer.build(model.trainable_variables)
        model.load_weights(folder / WEIGHTS)
        return model

    def _is_one(self, **argument: int) -> bool:
        """Whether a number of runs is 1; raises if losing runs are asked for and must not be."""
        ((name, number),) = argument.items()
        if number != 1 and not self._privacy.keeps_losers:
            raise ValueError(
                f"Argument `{name}` must be 1: the best run alone is released. "
                f"Received: {name}={number}"
            )
        return number == 1
