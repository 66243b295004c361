"""The oracle of a private search: a secret number of independent trials.

keras-tuner's own random search draws without replacement, stops when it finds nothing new, tries
failed trials again, and ends when several fail in a row. Each of these makes the number of trials
or the law of one depend on the others, for which the theorem does not hold.
"""

import json
import math
import random
import secrets
from pathlib import Path
from typing import Any

import keras_tuner
from keras_tuner.engine.trial import Trial, TrialStatus

from keras_adaclip.accounting import RandomSelection
from keras_adaclip.tuners.private.search_record import WEIGHTS, WORST, SearchRecord
from keras_adaclip.tuners.project_files import write_whole


class PrivateSearchOracle(keras_tuner.Oracle):
    """Draws how many trials there are, and each of them from the same law.

    Args:
        objective: as of keras-tuner.
        selection: the law of the number of trials.
        num_trials: a number that is known; None draws one in secret.
        seed: int that fixes what is drawn; None means the operating system.
        hyperparameters: as of keras-tuner.
        keeps_losers: whether the checkpoints of losing trials stay.

    Guarantees:
        Every trial has hyperparameters of its own, drawn with replacement from the law that the
        search space declares, whatever earlier trials gave. A trial that fails, or scores no
        finite number, counts as one of the trials, with the worst score. One that was interrupted
        runs again, with the same hyperparameters and other noise: nothing is left of its first
        run, so that it is one run of the law.
    """

    def __init__(
        self,
        objective: Any,
        selection: RandomSelection,
        *,
        num_trials: int | None = None,
        seed: int | None = None,
        hyperparameters: keras_tuner.HyperParameters | None = None,
        keeps_losers: bool = False,
    ) -> None:
        # None, so that no number of failures in a row equals it and ends the search.
        super().__init__(
            objective=objective,
            hyperparameters=hyperparameters,
            max_retries_per_trial=0,
            max_consecutive_failed_trials=None,
        )
        self._selection = selection
        self._num_known_trials = num_trials
        self._given_seed = seed
        self._keeps_losers = keeps_losers
        self._num_drawn_trials: int | None = None
        self._record: SearchRecord | None = None

    def begin(self, record: SearchRecord) -> None:
        """Draws the number of trials, unless an interrupted search has drawn it.

        Args:
            record: where it is said that a search cannot go on.

        Raises:
            RuntimeError: where there are trials, and it is not known how many there were to be.
        """
        self._record = record
        # The law of a trial is fixed from here on: what a trial adds is not drawn for later ones.
        self.tune_new_entries = False
        self._begin_interrupted_trials_anew()
        if self._num_drawn_trials is None and self.trials:
            raise RuntimeError(
                "The search that has begun here cannot go on: its number of runs is lost, and "
                "another one drawn for the runs that are there would not follow the law."
            )
        if self._num_drawn_trials is None:
            self._num_drawn_trials = self.known_number(
                self._selection, self._num_known_trials, self._given_seed
            )
        if self._num_drawn_trials is None:
            self._num_drawn_trials = self._selection.draw()

    def _begin_interrupted_trials_anew(self) -> None:
        """Queues what did not end, and nothing else, with nothing left of what it reported.

        keras-tuner's own queue holds a trial that has ended as well, where the process was killed
        while it wrote that down: its second score would be averaged with the first.
        """
        self.ongoing_trials.clear()
        self._retry_queue.clear()
        for trial_id, trial in self.trials.items():
            if trial.status not in (TrialStatus.COMPLETED, TrialStatus.FAILED):
                self.trials[trial_id] = Trial(trial.hyperparameters, trial_id, TrialStatus.RUNNING)
                self._retry_queue.append(trial_id)

    @staticmethod
    def known_number(
        selection: RandomSelection, num_trials: int | None, seed: int | None
    ) -> int | None:
        """The number of trials where it is known or can be found out again; else None."""
        if num_trials is None and seed is not None:
            return selection.draw(_source(seed, "number of trials"))
        return num_trials

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Values for one more trial, or the end."""
        if self._num_drawn_trials is None or self._record is None:
            raise RuntimeError("The number of trials is not drawn: call `search` of the tuner.")
        is_over = len(self.trials) >= self._num_drawn_trials
        if is_over or self._record.refusal is not None:
            return {"status": TrialStatus.STOPPED, "values": None}
        return {"status": TrialStatus.RUNNING, "values": self._drawn_values(trial_id)}

    def score_trial(self, trial: Trial) -> None:
        """Scores a trial; what is no finite number makes it a failed one."""
        super().score_trial(trial)
        if trial.score is None or not abs(trial.score) < WORST:
            trial.score = math.nan

    @keras_tuner.synchronized
    def create_trial(self, tuner_id: str) -> Trial:
        """As of keras-tuner; a trial that was interrupted begins with no metrics.

        Otherwise a worker that died after it had reported a score, and came back, would run the
        trial again, and what it reports then would be ignored.
        """
        trial = super().create_trial(tuner_id)
        trial.metrics = type(trial.metrics)()
        trial.score = None
        return trial

    @keras_tuner.synchronized
    def end_trial(self, trial: Trial) -> None:
        """Ends a trial, and deletes the checkpoints of those that have lost by now."""
        super().end_trial(trial)
        if self._keeps_losers:
            return
        best = self.best_trial()
        has_won = best is not None and best.trial_id == trial.trial_id
        losers = (
            [each for each in self.trials if each != trial.trial_id]
            if has_won
            else [trial.trial_id]
        )
        for trial_id in losers:
            if self.trials[trial_id].status != TrialStatus.RUNNING:
                (Path(self._get_trial_dir(trial_id)) / WEIGHTS).unlink(missing_ok=True)

    def best_trial(self) -> Trial | None:
        """The trial with the best score, the earliest of those that have it; None without any."""
        completed = [t for t in self.trials.values() if t.status == TrialStatus.COMPLETED]
        sign = -1.0 if self.objective.direction == "max" else 1.0
        # By number, since trials that were read from the disk come in any order.
        return min(completed, key=lambda t: (sign * t.score, int(t.trial_id)), default=None)

    @property
    def has_run(self) -> bool:
        """Whether there was any trial."""
        return bool(self.trials)

    def forget(self) -> None:
        """Forgets every trial, and how many there were."""
        self.trials.clear()
        self.ongoing_trials.clear()
        self.start_order.clear()
        self.end_order.clear()
        self._run_times.clear()
        self._tried_so_far.clear()
        self._id_to_hash.clear()
        self._num_drawn_trials = None

    def save(self) -> None:
        """Writes `oracle.json`, whole or not at all: half a file would lose the search."""
        # The names of keras-tuner's files are known to its private methods alone.
        write_whole(self._get_oracle_fname(), json.dumps(self.get_state()))

    def _save_trial(self, trial: Trial) -> None:
        # In place of keras-tuner's, for the same reason as `save`.
        path = Path(self._get_trial_dir(trial.trial_id)) / "trial.json"
        write_whole(path, json.dumps(trial.get_state()))

    def get_state(self) -> dict[str, Any]:
        """keras-tuner's, and the number of trials, on the curator's disk until the search ends."""
        return {**super().get_state(), "num_trials": self._num_drawn_trials}

    def set_state(self, state: dict[str, Any]) -> None:
        """The inverse of `get_state`."""
        super().set_state(state)
        self._num_drawn_trials = state["num_trials"]

    def source_of(self, trial_id: str) -> random.Random:
        """Where a trial's randomness comes from, apart from its noise."""
        if self._given_seed is None:
            return secrets.SystemRandom()
        return _source(self._given_seed, f"trial {int(trial_id)}")

    def _drawn_values(self, trial_id: str) -> dict[str, Any]:
        source = self.source_of(trial_id)
        hp = keras_tuner.HyperParameters()
        for each in self.hyperparameters.space:
            hp.merge([each])
            if hp.is_active(each):
                hp.values[each.name] = each.prob_to_value(source.random())
        return dict(hp.values)


def _source(seed: int, purpose: str) -> random.Random:
    """Random numbers that a seed and a purpose fix."""
    return random.Random(f"{seed}: {purpose}")
