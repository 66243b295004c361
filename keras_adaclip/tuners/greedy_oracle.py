"""The order in which a greedy search tries clipping norms, and the norm that each epoch keeps.

    C_k = start + k * step      or      C_k = start * step ** k,      k = 0, 1, 2, ...

Train with C_0, C_1, ... each time from the same weights. Keep the best C. Stop once a score lies
more than `max_drop` below the best one.

Source: Lin et al. 2022, "Understanding adaptive gradient clipping in DP-SGD, empirically",
algorithm 1. Each norm is computed from its number, so that rounding errors do not add up.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras_tuner
from keras_tuner.engine.trial import Trial, TrialStatus

CLIP_NORM = "clip_norm"
_LARGEST_NORM = 1e15  # of the clipping strategies
CHECKPOINT = "checkpoint.weights.h5"
# The epoch of a trial, beside its norm. No user's name can be the same.
EPOCH = "greedy/epoch"


@dataclasses.dataclass(frozen=True)
class GreedyRule:
    """The norms that an epoch tries, and the one that it keeps; the arguments of the tuner.

    Example:

    >>> rule = GreedyRule(start=0.1, step=0.1, max_drop=0.02)
    >>> rule.next_norm([0.70, 0.75]), rule.next_norm([0.70, 0.75, 0.72])
    (0.30000000000000004, None)
    >>> rule.norm(rule.best([0.70, 0.75, 0.72]))
    0.2
    """

    start: float
    step: float
    max_drop: float
    spacing: str = "linear"
    max_trials_per_epoch: int = 200
    max_clip_norm: float | None = None

    def __post_init__(self) -> None:
        if self.spacing == "geometric" and self.step <= 1.0:
            raise ValueError(
                "Argument `step` must be above 1 with geometric spacing. "
                f"Received: step={self.step}"
            )
        if self.max_clip_norm is not None and self.max_clip_norm < self.start:
            raise ValueError(
                f"Argument `max_clip_norm` must be at least `start`, {self.start:g}. "
                f"Received: max_clip_norm={self.max_clip_norm}"
            )

    def norm(self, number: int) -> float:
        """Return the norm with a number, from 0."""
        if self.spacing == "linear":
            return self.start + number * self.step
        return self.start * self.step**number

    def best(self, scores: Sequence[float]) -> int | None:
        """Return the number of the norm to keep; None if no score is finite.

        Args:
            scores: The scores of the norms tried so far, higher is better. Among equal scores the
                first one wins.
        """
        finite = [number for number, score in enumerate(scores) if math.isfinite(score)]
        return max(finite, key=lambda number: scores[number], default=None)

    def next_norm(self, scores: Sequence[float]) -> float | None:
        """Return the norm to try next; None if the epoch is over.

        Args:
            scores: As in `best`.
        """
        best = self.best(scores)
        last = scores[-1] if scores and math.isfinite(scores[-1]) else -math.inf
        if best is not None and scores[best] - last > self.max_drop:
            return None
        norm = self.norm(len(scores))
        is_over = norm > (self.max_clip_norm or _LARGEST_NORM)
        return None if is_over or len(scores) >= self.max_trials_per_epoch else norm


@dataclasses.dataclass(frozen=True)
class SearchedEpoch:
    """The trials of one epoch of a greedy search.

    Args:
        threshold: The best norm tried; None if no objective was finite.
        score: Its objective; None likewise.
        thresholds: The norms tried, in order.
        scores: Their objectives; infinite where the objective was not finite.
        winner: The identifier of the trial with the best norm; None if there is none.
        following: The norm to try next; None if the epoch is over.
    """

    threshold: float | None
    score: float | None
    thresholds: tuple[float, ...]
    scores: tuple[float, ...]
    winner: str | None
    following: float | None


class GreedyOracle(keras_tuner.Oracle):
    """Chooses the norm and the epoch of the next trial, and the norm that each epoch keeps.

    The completed trials are the whole state of the search. A search that was interrupted therefore
    continues where it stopped, and repeats the interrupted trial.

    Args:
        rule: The norms that an epoch tries.
        epochs: The number of epochs.
        objective: The name of a metric, or a `keras_tuner.Objective`.

    Raises:
        ValueError: When a search with other settings is reloaded.
    """

    def __init__(self, rule: GreedyRule, epochs: int, objective: Any) -> None:
        space = keras_tuner.HyperParameters()
        space.Fixed(CLIP_NORM, rule.start)
        super().__init__(objective=objective, hyperparameters=space)
        self.verbose = 0  # The tuner prints one line per trial instead of keras-tuner's tables.
        self.rule = rule
        self.epochs = epochs

    # Called by keras-tuner

    def populate_space(self, trial_id: str) -> dict[str, Any]:
        """Return the values of the next trial, or that the search is over."""
        number = len(self.finished_epochs) + 1
        following = self.epoch(number).following
        if number > self.epochs or following is None:
            return {"status": TrialStatus.STOPPED}
        values = {**self.hyperparameters.values, CLIP_NORM: following, EPOCH: number}
        return {"status": TrialStatus.RUNNING, "values": values}

    @keras_tuner.synchronized
    def update_trial(self, trial_id: str, metrics: Mapping[str, float], step: int = 0) -> Trial:
        """Record the metrics of a trial; those that are not finite become the worst possible."""
        worst = -self._sign * math.inf
        known = {name: x if math.isfinite(x) else worst for name, x in metrics.items()}
        return super().update_trial(trial_id, known, step=step)

    @keras_tuner.synchronized
    def end_trial(self, trial: Trial) -> None:
        """End a trial, then delete the weights that no later trial begins from."""
        super().end_trial(trial)
        number = trial.hyperparameters.values[EPOCH]
        winner = self.epoch(number).winner
        for each in self._completed(number):
            if each.trial_id != winner:
                (Path(self._get_trial_dir(each.trial_id)) / CHECKPOINT).unlink(missing_ok=True)

    def get_best_trials(self, num_trials: int = 1) -> list[Trial]:
        """Return the best trial of each finished epoch, best first: those with weights."""
        winners = [self.trials[epoch.winner] for epoch in self.finished_epochs]
        return sorted(winners, key=lambda trial: -self._sign * trial.score)[:num_trials]

    def get_state(self) -> dict[str, Any]:
        """Return the state of keras-tuner's oracle, and the settings of the search."""
        settings = {**dataclasses.asdict(self.rule), "objective": str(self.objective)}
        return {**super().get_state(), "greedy": settings}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue a saved search; raise `ValueError` if its settings differ."""
        saved, settings = state["greedy"], self.get_state()["greedy"]
        if saved != settings:
            raise ValueError(
                "The folder holds a search with other settings, and continuing it would mix two "
                "searches. Use the settings of that search, or another `project_name`. "
                f"Received: {settings}, saved: {saved}"
            )
        super().set_state(state)

    # The state of the search

    def epoch(self, number: int) -> SearchedEpoch:
        """Return the trials of one epoch.

        Args:
            number: The number of the epoch, from 1.
        """
        trials = self._completed(number)
        scores = [self._sign * trial.score for trial in trials]
        best = self.rule.best(scores)
        norms = tuple(trial.hyperparameters.values[CLIP_NORM] for trial in trials)
        return SearchedEpoch(
            threshold=None if best is None else norms[best],
            score=None if best is None else trials[best].score,
            thresholds=norms,
            scores=tuple(trial.score for trial in trials),
            winner=None if best is None else trials[best].trial_id,
            following=self.rule.next_norm(scores),
        )

    @property
    def finished_epochs(self) -> list[SearchedEpoch]:
        """The epochs that are over and have a best norm, in order."""
        finished = []
        for number in range(1, self.epochs + 1):
            epoch = self.epoch(number)
            if epoch.following is not None or epoch.winner is None:
                break
            finished.append(epoch)
        return finished

    @property
    def _sign(self) -> float:
        """1 if a higher objective is better, else -1."""
        return 1.0 if self.objective.direction == "max" else -1.0

    def _completed(self, number: int) -> list[Trial]:
        """Return the completed trials of an epoch, in order."""
        return [
            trial
            for trial in sorted(self.trials.values(), key=lambda trial: int(trial.trial_id))
            if trial.hyperparameters.values[EPOCH] == number
            and trial.status == TrialStatus.COMPLETED
        ]
