"""The oracle of a private search: a secret number of independent trials.

keras-tuner's own random search draws without replacement, stops when it finds nothing new, repeats
failed trials, and ends when several fail in a row. Each of these makes the number of trials, or the
distribution of one, depend on the others, and then the theorem does not hold.
"""

import math
import secrets
from pathlib import Path
from typing import Any

import keras_tuner
from keras_tuner.engine.trial import Trial, TrialStatus

from keras_adaclip.accounting import RandomSelection
from keras_adaclip.tuners.private.account import active_values
from keras_adaclip.tuners.private.record import WEIGHTS, write_whole


class PrivateSearchOracle(keras_tuner.Oracle):
    """Draws the number of trials, and each of them from the same distribution.

    Args:
        objective: as in keras-tuner.
        selection: the distribution of the number of trials.
        num_trials: a number that is known; None draws one in secret.
        hyperparameters: as in keras-tuner.
        keeps_losers: whether the weights of losing trials stay.

    Attributes:
        random: the source of all that is drawn: the operating system.
        is_refused: whether the search ends before its next trial.

    Guarantees:
        The hyperparameters of a trial are drawn with replacement from the distribution that the
        search space declares, whatever earlier trials gave. A trial that fails, or whose score is
        not finite, counts as a trial, with the worst score. An interrupted trial runs again, with
        the same hyperparameters and new noise: nothing is left of its first run, so that the two
        are one trial.
    """

    def __init__(
        self,
        objective: Any,
        selection: RandomSelection,
        num_trials: int | None = None,
        hyperparameters: keras_tuner.HyperParameters | None = None,
        *,
        keeps_losers: bool = False,
    ) -> None:
        # None, so that no number of failures in a row equals it and ends the search.
        super().__init__(
            objective=objective,
            hyperparameters=hyperparameters,
            max_retries_per_trial=0,
            max_consecutive_failed_trials=None,
        )
        self.random = secrets.SystemRandom()
        self.is_refused = False
        self._selection = selection
        self._num_known_trials = num_trials
        self._keeps_losers = keeps_losers
        self._num_trials: int | None = None

    def begin(self) -> None:
        """Draws the number of trials, unless an interrupted search has drawn it.

        Raises:
            RuntimeError: if there are trials, but their number is lost.
        """
        # The distribution of a trial is fixed: later trials do not draw what an earlier one adds.
        self.tune_new_entries = False
        # keras-tuner's own queue can hold a trial that has ended, if the process was killed while
        # it wrote that down. A second score of that trial would be averaged with the first.
        self.ongoing_trials.clear()
        self._retry_queue.clear()
        for trial_id, trial in self.trials.items():
            if trial.status not in (TrialStatus.COMPLETED, TrialStatus.FAILED):
                self.trials[trial_id] = Trial(trial.hyperparameters, trial_id, TrialStatus.RUNNING)
                self._retry_queue.append(trial_id)
        if self._num_trials is not None:
            return
        if self.trials:
            raise RuntimeError(
                "The search that has begun here cannot continue: its number of runs is lost, and "
                "another number for the runs that exist would not follow the distribution."
            )
        self._num_trials = self._num_known_trials
        if self._num_trials is None:
            self._num_trials = self._selection.draw(self.random)

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """The values of one more trial, or that the search is over."""
        if self._num_trials is None:
            raise RuntimeError("The number of trials is not drawn. Call `search` of the tuner.")
        if self.is_refused or len(self.trials) >= self._num_trials:
            return {"status": TrialStatus.STOPPED, "values": None}
        values = active_values(
            self.hyperparameters, lambda each: each.prob_to_value(self.random.random())
        )
        return {"status": TrialStatus.RUNNING, "values": values}

    def score_trial(self, trial: Trial) -> None:
        """Scores a trial; one whose score is not finite has failed."""
        score = float(trial.metrics.get_last_value(self.objective.name))
        trial.score = score if math.isfinite(score) else math.nan
        trial.best_step = 0

    @keras_tuner.synchronized
    def end_trial(self, trial: Trial) -> None:
        """Ends a trial, and deletes the weights of the trials that have lost by now."""
        super().end_trial(trial)
        best = self.best_trial()
        for trial_id, each in self.trials.items():
            if each is not best and not self._keeps_losers:
                (Path(self._get_trial_dir(trial_id)) / WEIGHTS).unlink(missing_ok=True)

    def best_trial(self) -> Trial | None:
        """The trial with the best score, the earliest of several; None if there is none."""
        completed = [t for t in self.trials.values() if t.status == TrialStatus.COMPLETED]
        sign = -1.0 if self.objective.direction == "max" else 1.0
        # By number, since trials that were read from the disk come in any order.
        return min(completed, key=lambda t: (sign * t.score, int(t.trial_id)), default=None)

    def forget(self) -> None:
        """Forgets all trials, and their number."""
        self.trials.clear()
        self.ongoing_trials.clear()
        self.start_order.clear()
        self.end_order.clear()
        self._run_times.clear()
        self._tried_so_far.clear()
        self._id_to_hash.clear()
        self._num_trials = None

    def save(self) -> None:
        """Writes `oracle.json`, whole or not at all: half a file would lose the search."""
        # Only keras-tuner's private methods know the names of its files.
        write_whole(Path(self._get_oracle_fname()), self.get_state())

    def _save_trial(self, trial: Trial) -> None:
        # Replaces keras-tuner's method, for the same reason as `save`.
        write_whole(Path(self._get_trial_dir(trial.trial_id)) / "trial.json", trial.get_state())

    def get_state(self) -> dict[str, Any]:
        """keras-tuner's state and the number of trials, which is deleted when the search ends."""
        return {**super().get_state(), "num_trials": self._num_trials}

    def set_state(self, state: dict[str, Any]) -> None:
        """The inverse of `get_state`."""
        super().set_state(state)
        self._num_trials = state["num_trials"]
