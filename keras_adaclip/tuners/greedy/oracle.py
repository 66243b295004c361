"""Hands out the trials of a greedy search: one norm of one epoch each, one after the other."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras_tuner
from keras_tuner.engine.hyperparameters import HyperParameters
from keras_tuner.engine.trial import Trial, TrialStatus

from keras_adaclip.tuners.greedy.rule import GreedyRule

CLIP_NORM = "clip_norm"
CHECKPOINT = "checkpoint.weights.h5"
# Hyperparameters of a trial besides the norm. No user's name can be the same.
EPOCH = "greedy/epoch"
PARENT = "greedy/parent"


@dataclasses.dataclass(frozen=True)
class SearchedEpoch:
    """The trials of one epoch of a greedy search.

    Args:
        threshold: the best norm tried; None if no objective was finite.
        score: its objective; None likewise.
        thresholds: the norms tried, in order.
        scores: their objectives; infinite where the objective was not finite.
        winner: identifier of the trial with the best norm; None if there is none.
        following: the norm to try next; None if the epoch is over.
    """

    threshold: float | None
    score: float | None
    thresholds: tuple[float, ...]
    scores: tuple[float, ...]
    winner: str | None
    following: float | None

    @property
    def is_finished(self) -> bool:
        """Whether the epoch is over and has a best norm."""
        return self.following is None and self.winner is not None


class GreedyOracle(keras_tuner.Oracle):
    """Decides which norm of which epoch is tried next, and which one is kept.

    The completed trials are the whole state of the search. A search that was interrupted therefore
    goes on where it stopped, and repeats the interrupted trial.

    Args:
        rule: which norms an epoch tries.
        epochs: int from 1, the number of epochs.
        objective: name of a metric, or a `keras_tuner.Objective`.

    Raises:
        ValueError: when a search with other settings is reloaded.
    """

    def __init__(self, rule: GreedyRule, epochs: int, objective: Any) -> None:
        space = HyperParameters()
        space.Fixed(CLIP_NORM, rule.norm(0))
        super().__init__(objective=objective, hyperparameters=space)
        self.verbose = 0  # the tuner prints one line per trial instead of keras-tuner's tables
        self.rule = rule
        self.epochs = epochs

    # Called by keras-tuner

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """The values of the next trial, or that the search is over."""
        parent = ""
        for number in range(1, self.epochs + 1):
            epoch = self.epoch(number)
            if epoch.following is not None:
                values = {CLIP_NORM: epoch.following, EPOCH: number, PARENT: parent}
                values = {**self.hyperparameters.values, **values}
                return {"status": TrialStatus.RUNNING, "values": values}
            if epoch.winner is None:
                break
            parent = epoch.winner
        return {"status": TrialStatus.STOPPED}

    @keras_tuner.synchronized
    def update_trial(self, trial_id: str, metrics: Mapping[str, float], step: int = 0) -> Trial:
        """Records the metrics of a trial; those that are not finite become the worst possible."""
        worst = -self._sign * math.inf
        known = {name: x if math.isfinite(x) else worst for name, x in metrics.items()}
        return super().update_trial(trial_id, known, step=step)

    def score_trial(self, trial: Trial) -> None:
        """Takes the objective of the trial's one epoch."""
        trial.score = float(trial.metrics.get_last_value(self.objective.name))
        trial.best_step = 0

    @keras_tuner.synchronized
    def end_trial(self, trial: Trial) -> None:
        """Ends a trial, then deletes the weights that no later trial begins from."""
        super().end_trial(trial)
        number = trial.hyperparameters.values[EPOCH]
        winner = self.epoch(number).winner
        for each in self._completed(number):
            if each.trial_id != winner:
                (Path(self._get_trial_dir(each.trial_id)) / CHECKPOINT).unlink(missing_ok=True)

    def get_best_trials(self, num_trials: int = 1) -> list[Trial]:
        """The best trial of each finished epoch, best first: the trials whose weights were kept."""
        winners = [self.trials[epoch.winner] for epoch in self.finished_epochs if epoch.winner]
        winners.sort(key=lambda trial: self._sign * trial.score, reverse=True)
        return winners[:num_trials]

    # The state of the search

    def epoch(self, number: int) -> SearchedEpoch:
        """The trials of one epoch.

        Args:
            number: number of the epoch, from 1.
        """
        trials = self._completed(number)
        worths = [self._sign * trial.score for trial in trials]
        best = self.rule.best(worths)
        norms = tuple(trial.hyperparameters.values[CLIP_NORM] for trial in trials)
        return SearchedEpoch(
            threshold=None if best is None else norms[best],
            score=None if best is None else trials[best].score,
            thresholds=norms,
            scores=tuple(trial.score for trial in trials),
            winner=None if best is None else trials[best].trial_id,
            following=self.rule.next_norm(worths),
        )

    @property
    def finished_epochs(self) -> list[SearchedEpoch]:
        """The finished epochs, in order."""
        finished = []
        for number in range(1, self.epochs + 1):
            epoch = self.epoch(number)
            if not epoch.is_finished:
                break
            finished.append(epoch)
        return finished

    def get_state(self) -> dict[str, Any]:
        """The state of keras-tuner's oracle, and the settings of the search."""
        return {**super().get_state(), "greedy": self._settings()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on with a saved search; raises if its settings differ."""
        self._refuse_other_settings(state["greedy"])
        super().set_state(state)

    @property
    def _sign(self) -> float:
        return 1.0 if self.objective.direction == "max" else -1.0

    def _completed(self, number: int) -> list[Trial]:
        """The completed trials of an epoch, in order."""
        return [
            trial
            for trial in sorted(self.trials.values(), key=lambda trial: int(trial.trial_id))
            if trial.hyperparameters.values[EPOCH] == number
            and trial.status == TrialStatus.COMPLETED
        ]

    def _settings(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self.rule), "objective": str(self.objective)}

    def _refuse_other_settings(self, saved: Mapping[str, Any]) -> None:
        for name, value in self._settings().items():
            if name in saved and saved[name] != value:
                raise ValueError(
                    "The folder holds a search with other settings, and continuing it would mix "
                    "two searches. Use the settings of that search, or another `project_name`. "
                    f"Received: {name}={value!r}, saved {name}={saved[name]!r}"
                )
