"""What a greedy search has tried in one epoch."""

import dataclasses
from typing import Self

from keras_adaclip.tuners.greedy.epoch_search import EpochSearch


@dataclasses.dataclass(frozen=True)
class SearchedEpoch:
    """A finished epoch of a greedy search.

    Args:
        threshold: the best one.
        score: its objective, averaged over repeats.
        thresholds: those that were tried, in order.
        scores: the objective of each; NaN where it was not finite.
    """

    threshold: float
    score: float
    thresholds: tuple[float, ...]
    scores: tuple[float, ...]

    @classmethod
    def of(cls, search: EpochSearch) -> Self:
        """An epoch as its trials tell it.

        Args:
            search: which is done.
        """
        visited = search.replay.visited
        return cls(
            search.threshold,
            search.score(search.position),
            tuple(search.threshold_at(position) for position in visited),
            tuple(search.score(position) for position in visited),
        )
