"""Hands out the trials of a greedy search: one threshold of one epoch each.

The state of a search is its completed trials: what comes next is found by replaying them, so a
search that was killed goes on as if nothing had happened. With several workers, thresholds are
tried ahead; what is decided is what one worker alone would have decided.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras_tuner
import numpy as np
from keras_tuner.engine.hyperparameters import HyperParameters
from keras_tuner.engine.trial import Trial, TrialStatus

from keras_adaclip.tuners.greedy.epoch_search import (
    EPOCH,
    PARENT,
    POSITION,
    REPEAT,
    SEED,
    EpochSearch,
)
from keras_adaclip.tuners.greedy.greedy_search import GreedyRule
from keras_adaclip.tuners.greedy.progress import Progress
from keras_adaclip.tuners.project_files import write_whole

CLIP_NORM = "clip_norm"
CHECKPOINT = "checkpoint.weights.h5"


class GreedyOracle(keras_tuner.Oracle):
    """Decides which threshold of which epoch is tried next, and which one is kept.

    A worker learns from the values of a trial's hyperparameters all that it must know: the
    threshold (`clip_norm`), the epoch from 1, and the trial whose weights it begins from. Other
    hyperparameters of a hypermodel keep their default values.

    Args:
        rule: which thresholds are tried.
        epochs: int from 1, the number of epochs.
        objective: name of a metric, or a `keras_tuner.Objective`.
        repeats: int from 1, how often each threshold is tried; the scores are averaged.
        is_private: whether the data are private; a search that was begun so cannot go on
            otherwise.
        seed: integer from which each trial's seed is derived; None leaves seeds alone.

    Raises:
        ValueError: on reloading a search that was begun with other settings.

    Example:

    >>> oracle = GreedyOracle(GreedyRule(start=0.1, step=0.1), epochs=2, objective="val_accuracy")
    >>> oracle.objective.direction
    'max'
    """

    def __init__(
        self,
        rule: GreedyRule,
        epochs: int,
        objective: Any,
        repeats: int = 1,
        is_private: bool = False,
        seed: int | None = None,
    ) -> None:
        space = HyperParameters()
        space.Fixed(CLIP_NORM, rule.threshold(0))
        super().__init__(
            objective=objective,
            hyperparameters=space,
            seed=seed,
            # keras-tuner would go on without a trial that failed, and the schedule would be wrong.
            max_consecutive_failed_trials=None,
        )
        self.verbose = 0  # keras-tuner's tables; a line a trial is ours
        self.rule = rule
        self.epochs = epochs
        self.repeats = repeats
        self.is_private = is_private
        self.search_seed = seed
        self.is_reloaded = False
        self.progress: Progress | None = None

    # What keras-tuner calls

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """The values of the next trial, or that there is none, or none yet."""
        if self.failure is not None:
            return {"status": TrialStatus.STOPPED}
        parent = ""
        for epoch in range(1, self.epochs + 1):
            search = self.epoch(epoch)
            if search.is_done:
                parent = search.winner.trial_id
                continue
            following = search.following()
            if following is None:
                return {"status": TrialStatus.IDLE}
            values = self._values(epoch, *following, parent)
            return {"status": TrialStatus.RUNNING, "values": values}
        return {"status": TrialStatus.STOPPED}

    @keras_tuner.synchronized
    def create_trial(self, tuner_id: str) -> Trial:
        """As of keras-tuner; a trial that was interrupted begins with no metrics."""
        trial = super().create_trial(tuner_id)
        if trial.status == TrialStatus.RUNNING:
            trial.metrics = type(trial.metrics)()
            trial.score = None
            if self.progress is not None:
                self.progress.begin_trial()
        return trial

    @keras_tuner.synchronized
    def update_trial(self, trial_id: str, metrics: Mapping[str, float], step: int = 0) -> Trial:
        """As of keras-tuner; what is not finite is the worst there is."""
        worst = -self._sign * math.inf
        known = {name: x if math.isfinite(x) else worst for name, x in metrics.items()}
        return super().update_trial(trial_id, known, step=step)

    def score_trial(self, trial: Trial) -> None:
        """Takes the objective as it is."""
        trial.score = float(trial.metrics.get_last_value(self.objective.name))
        trial.best_step = 0

    @keras_tuner.synchronized
    def end_trial(self, trial: Trial) -> None:
        """As of keras-tuner; then deletes weights that no later trial begins from.

        The score that came first stays, where a worker that was given up for lost reports too.
        """
        if self.trials[trial.trial_id].score is not None:
            return
        super().end_trial(trial)
        self.delete_checkpoints()
        if trial.status == TrialStatus.COMPLETED and self.progress is not None:
            self._print_line(self.trials[trial.trial_id])

    def get_best_trials(self, num_trials: int = 1) -> list[Trial]:
        """The trials whose weights were kept, one of each finished epoch, best first."""
        winners = [search.winner for search in self.finished_epochs]
        winners.sort(key=lambda trial: self._sign * trial.score, reverse=True)
        return winners[:num_trials]

    # The state of the search

    @property
    def failure(self) -> str | None:
        """Why the search cannot go on; None where it can."""
        for trial in self.trials.values():
            if trial.status in (TrialStatus.FAILED, TrialStatus.INVALID):
                where = trial.hyperparameters.values
                return (
                    f"Trial {trial.trial_id} (epoch {where[EPOCH]}, clip_norm "
                    f"{where[CLIP_NORM]:.6g}) failed, and without its score the search cannot tell "
                    "what comes next. Mend what is wrong, and search in the same folder again: "
                    f"all other trials are kept.\n{trial.message or ''}"
                )
        for epoch in range(1, self.epochs + 1):
            search = self.epoch(epoch)
            if not search.replay.is_done:
                return None
            if search.replay.best is None:
                return (
                    f"No threshold of epoch {epoch} led to a finite {self.objective.name}, from "
                    f"{self.rule.threshold(search.replay.visited[0]):.6g} to "
                    f"{self.rule.threshold(search.replay.visited[-1]):.6g}. Lower the learning "
                    "rate or the noise, or search other thresholds, in another folder."
                )
        return None

    def epoch(self, number: int) -> EpochSearch:
        """The search of one epoch, from 1.

        Args:
            number: number of the epoch.
        """
        trials = [t for t in self.trials.values() if t.hyperparameters.values[EPOCH] == number]
        return EpochSearch(self.rule, trials, self.repeats, self._sign)

    @property
    def finished_epochs(self) -> list[EpochSearch]:
        """The epochs that are decided, in order."""
        searches = (self.epoch(number) for number in range(1, self.epochs + 1))
        finished = []
        for search in searches:
            if not search.is_done:
                break
            finished.append(search)
        return finished

    def delete_checkpoints(self) -> None:
        """Deletes the weights of trials that can no longer win their epoch."""
        kept: set[str] = set()
        for number in range(1, self.epochs + 1):
            search = self.epoch(number)
            kept |= search.candidates
        for trial_id, trial in self.trials.items():
            if trial_id not in kept and trial.status != TrialStatus.RUNNING:
                path = Path(self._get_trial_dir(trial_id)) / CHECKPOINT
                path.unlink(missing_ok=True)

    # Saving

    def get_state(self) -> dict[str, Any]:
        """As of keras-tuner, and the settings of the search."""
        return {**super().get_state(), "greedy": self._settings()}

    def set_state(self, state: dict[str, Any]) -> None:
        """As of keras-tuner; refuses a search with other settings."""
        self._refuse_other_settings(state["greedy"])
        super().set_state(state)

    def save(self) -> None:
        """Writes `oracle.json`, whole or not at all."""
        # keras-tuner's own writes in place: a process killed meanwhile leaves half a file, which
        # can be read no more. The names of its files are known to its private methods alone.
        write_whole(self._get_oracle_fname(), json.dumps(self.get_state()))

    def _save_trial(self, trial: Trial) -> None:
        # In place of keras-tuner's, for the same reason as `save`.
        path = Path(self._get_trial_dir(trial.trial_id)) / "trial.json"
        write_whole(path, json.dumps(trial.get_state()))

    def reload(self) -> None:
        """Reads what is on disk; trials that have no score are run again, failed ones too."""
        super().reload()
        self.is_reloaded = True
        self.retry_unfinished()

    def retry_unfinished(self) -> None:
        """Queues the trials without a score whose epoch is not decided; others are left alone."""
        self.ongoing_trials: dict[str, Trial] = {}
        decided = len(self.finished_epochs)
        unfinished = [t for t in self.trials.values() if t.status != TrialStatus.COMPLETED]
        for trial in unfinished:
            trial.status = TrialStatus.RUNNING
        waiting = [t for t in unfinished if t.hyperparameters.values[EPOCH] > decided]
        # A queue that keras-tuner takes from at its end, and that holds what was ongoing.
        self._retry_queue = sorted((trial.trial_id for trial in waiting), reverse=True)

    @property
    def _sign(self) -> float:
        return 1.0 if self.objective.direction == "max" else -1.0

    def _settings(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self.rule),
            "repeats": self.repeats,
            "private": self.is_private,
            "objective": str(self.objective),
            "seed": self.search_seed,
        }

    def _refuse_other_settings(self, saved: Mapping[str, Any]) -> None:
        for name, value in self._settings().items():
            if name in saved and saved[name] != value:
                raise ValueError(
                    "The folder holds a search that was begun with other settings, and going on "
                    "would mix two searches. Give the settings that it was begun with, or another "
                    f"`project_name`. Received: {name}={value!r}, there {name}={saved[name]!r}"
                )

    def _values(self, epoch: int, position: int, repeat: int, parent: str) -> dict[str, Any]:
        values = {
            **self.hyperparameters.values,  # the defaults
            CLIP_NORM: self.rule.threshold(position),
            EPOCH: epoch,
            POSITION: position,
            REPEAT: repeat,
            PARENT: parent,
        }
        if self.search_seed is not None:
            words = np.random.SeedSequence([self.search_seed, epoch, position, repeat])
            values[SEED] = int(words.generate_state(1)[0] >> 1)
        return values

    def _print_line(self, trial: Trial) -> None:
        where = trial.hyperparameters.values
        search = self.epoch(where[EPOCH])
        best = search.replay.best
        if self.progress is not None:
            line = self.progress.line(
                where[EPOCH],
                self.rule.threshold(where[POSITION]),
                trial.score,
                None if best is None else (search.score(best), self.rule.threshold(best)),
                [finished.num_trials for finished in self.finished_epochs],
                0 if search.is_done else search.num_trials,
            )
            print(line, flush=True)
