"""What a greedy search has found, and what that has cost."""

import json
import warnings
from pathlib import Path
from typing import Any

from keras_tuner.engine.trial import Trial, TrialStatus

from keras_adaclip.accounting import Ledger, PrivacySpent, check_delta
from keras_adaclip.schedules import PiecewiseConstant
from keras_adaclip.tuners.greedy.greedy_oracle import GreedyOracle
from keras_adaclip.tuners.greedy.greedy_summary import statement_of_model, summary
from keras_adaclip.tuners.greedy.power_trend import PowerTrend
from keras_adaclip.tuners.greedy.searched_epoch import SearchedEpoch
from keras_adaclip.tuners.greedy.trial_run import checkpoint_path, trial_model
from keras_adaclip.tuners.greedy.trial_spending import has_account, spent_in
from keras_adaclip.tuners.private.search_privacy import carry

BUILD_CONFIG = "build_config.json"


class GreedyResults:
    """The results of a `GreedyClipTuner`, a mixin.

    Attributes:
        delta: for epsilon; None where the data are public.
        project_dir: folder of the search.
        project_name: its name.
        hypermodel: builds the models.
    """

    delta: float | None
    project_dir: str
    project_name: str
    hypermodel: Any
    _greedy: GreedyOracle
    _has_warned = False

    def best_schedule(self) -> PiecewiseConstant:
        """The best threshold of each finished epoch; `save` it, and train other data with it.

        Raises:
            RuntimeError: where no epoch is finished.
        """
        thresholds = [epoch.threshold for epoch in self._state().finished_epochs]
        if not thresholds:
            raise RuntimeError("No epoch is finished yet: call `search` first.")
        return PiecewiseConstant(thresholds)

    def searched_epochs(self) -> list[SearchedEpoch]:
        """What was tried in each finished epoch, and what came of it."""
        return [SearchedEpoch.of(epoch) for epoch in self._state().finished_epochs]

    def trend(self) -> PowerTrend:
        """The `PowerDecay` that is closest to the best schedule.

        Raises:
            RuntimeError: where no epoch is finished.
            ValueError: where one epoch only is.
        """
        return PowerTrend.of(self.best_schedule())

    @property
    def privacy_ledger(self) -> Ledger:
        """What all trials together have spent, with `private=True`.

        Raises:
            RuntimeError: where the data were said to be public, and nothing was counted; or where
                the account of a trial is not in the folder of the search.
        """
        if not self._greedy.is_private:
            raise RuntimeError(
                "The search counts what it spends with `private=True` only; without, the data are "
                "taken to be public, and what it finds has no privacy guarantee."
            )
        for trial in self._state().trials.values():
            has_run = trial.status != TrialStatus.RUNNING
            if has_run and not has_account(Path(self.project_dir), trial.trial_id):
                raise RuntimeError(
                    "What the search has spent is not known: trial "
                    f"{trial.trial_id} has run, and its account is not in its folder. All workers "
                    "must have one `directory` that all of them see, and the files `spent_*.json` "
                    f"must stay there. Received: folder {self.project_dir}"
                )
        return spent_in(self.project_dir)

    def privacy_spent(self, delta: float | None = None, accountant: str = "pld") -> PrivacySpent:
        """Epsilon of all trials together, with `private=True`.

        Args:
            delta: float in (0, 1); None stands for the tuner's.
            accountant: `"pld"` or `"rdp"`.

        Raises:
            RuntimeError: where the data were said to be public, or an account is missing.
        """
        ledger = self.privacy_ledger
        delta = self.delta if delta is None else delta
        return PrivacySpent.from_ledger(ledger, check_delta(delta), accountant)

    def load_model(self, trial: Trial) -> Any:
        """A model with the weights, optimizer and ledger that a trial ended with.

        It was chosen among all trials by their scores. With `private=True` its ledger holds all
        that the search has spent, and so do its files; those in the folder of the search hold
        their own epochs alone. Without `private=True`, its ledger holds its own epochs, and nothing
        is guaranteed; its report and a `UserWarning` say so.

        Args:
            trial: one whose weights were kept, as `get_best_models` has them.
        """
        is_private = self._greedy.is_private
        statement = statement_of_model(len(self._state().trials))
        if not is_private and not self._has_warned:
            self._has_warned = True
            warnings.warn(statement, stacklevel=2)
        project = Path(self.project_dir)
        model = trial_model(self.hypermodel, trial, self.project_name, is_private)
        if not model.built:
            model.build_from_config(json.loads((project / BUILD_CONFIG).read_text("utf-8")))
        model.optimizer.build(model.trainable_variables)
        model.load_weights(checkpoint_path(project, trial.trial_id))
        if is_private:
            spent = self.privacy_ledger
            carry(model, spent, holds_own=model.privacy_ledger.is_covered_by(spent))
        else:
            model.tuning = f"not counted: {statement}"
        return model

    def results_summary(self, num_trials: int = 10) -> None:
        """Prints the best threshold of each epoch, the trend, and what the search has spent.

        Args:
            num_trials: so many of the last epochs are shown.
        """
        spent = self.privacy_spent() if self._greedy.is_private else None
        print(summary(self._state(), self.project_dir, spent, num_trials))

    def _state(self) -> GreedyOracle:
        """The oracle, or in a worker what the chief's one has written."""
        raise NotImplementedError
