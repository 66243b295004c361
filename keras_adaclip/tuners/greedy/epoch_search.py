"""The greedy search of one epoch, as its trials tell it."""

import math
from collections.abc import Iterable
from statistics import fmean

from keras_tuner.engine.trial import Trial, TrialStatus

from keras_adaclip.tuners.greedy.greedy_search import GreedyRule

# What a trial's values tell, besides the clipping norm. The names cannot be those of a user's own.
EPOCH = "greedy/epoch"
POSITION = "greedy/position"
REPEAT = "greedy/repeat"
PARENT = "greedy/parent"
SEED = "greedy/seed"


class EpochSearch:
    """Which trials of an epoch decide, and which trial has won.

    Args:
        rule: which thresholds are tried.
        trials: the trials of the epoch.
        repeats: number of trials of a threshold.
        sign: 1 where a higher score is better, -1 where a lower one is.
    """

    def __init__(
        self, rule: GreedyRule, trials: Iterable[Trial], repeats: int, sign: float
    ) -> None:
        self._rule = rule
        self._repeats = repeats
        self._sign = sign
        self._by_position: dict[int, dict[int, Trial]] = {}
        for trial in trials:
            where = trial.hyperparameters.values
            self._by_position.setdefault(where[POSITION], {})[where[REPEAT]] = trial
        self._worth = {
            position: self._mean_worth(self._completed(position))
            for position in self._by_position
            if len(self._completed(position)) == repeats
        }
        self.replay = rule.replay(self._worth)

    @property
    def is_done(self) -> bool:
        """Whether the epoch has a best threshold that no later trial changes."""
        return self.replay.is_done and self.replay.best is not None

    @property
    def num_trials(self) -> int:
        """The number of trials that were begun."""
        return sum(len(repeats) for repeats in self._by_position.values())

    @property
    def position(self) -> int:
        """The position of the best threshold.

        Raises:
            RuntimeError: where no threshold has a finite score yet.
        """
        if self.replay.best is None:
            raise RuntimeError("No trial of the epoch has a finite score yet.")
        return self.replay.best

    @property
    def threshold(self) -> float:
        """The best threshold.

        Raises:
            RuntimeError: where no threshold has a finite score yet.
        """
        return self.threshold_at(self.position)

    @property
    def winner(self) -> Trial:
        """The best trial of the best threshold, from whose weights the next epoch begins.

        Raises:
            RuntimeError: where no threshold has a finite score yet.
        """
        return self._best_trial(self.position)

    @property
    def candidates(self) -> set[str]:
        """The trials whose weights may still be needed."""
        if self.is_done:
            return {self.winner.trial_id}
        # What was tried ahead may turn out to be the best one, or to lie beyond the end.
        undecided = set(self._by_position) - set(self.replay.visited)
        if self.replay.best is not None:
            undecided.add(self.replay.best)
        return {self._best_trial(each).trial_id for each in undecided if self._completed(each)}

    def threshold_at(self, position: int) -> float:
        """The threshold at a position."""
        return self._rule.threshold(position)

    def score(self, position: int) -> float:
        """The mean objective at a position that was tried."""
        return self._sign * self._worth[position]

    def following(self) -> tuple[int, int] | None:
        """Position and repeat of the next trial; None where there is nothing to do but wait."""
        if self.replay.is_done:
            return None
        begun = {p for p, trials in self._by_position.items() if len(trials) == self._repeats}
        position = self._rule.ahead(self._worth, begun)
        if position is None:
            return None
        return position, len(self._by_position.get(position, ()))

    def _completed(self, position: int) -> list[Trial]:
        trials = self._by_position[position]
        ordered = (trials[repeat] for repeat in sorted(trials))
        return [trial for trial in ordered if trial.status == TrialStatus.COMPLETED]

    def _best_trial(self, position: int) -> Trial:
        return max(self._completed(position), key=lambda trial: self._sign * trial.score)

    def _mean_worth(self, trials: list[Trial]) -> float:
        worths = [self._sign * trial.score for trial in trials]
        return fmean(worths) if all(map(math.isfinite, worths)) else -math.inf
