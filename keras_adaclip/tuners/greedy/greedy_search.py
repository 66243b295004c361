"""The greedy search for the clipping norm of one epoch, apart from any training.

    C_k = start + k * step      or      C_k = start * step ** k,      k = 0, 1, 2, ...

Train with C_0, C_1, ... each time from the same weights; keep the best C; stop once a score lies
more than `max_drop` below the best one.

Source: Lin et al. 2022, "Understanding adaptive gradient clipping in DP-SGD, empirically",
algorithm 1. Here each threshold is computed from its number, so that no rounding adds up.
"""

import dataclasses
import math
from collections.abc import Collection, Generator, Mapping

from keras_adaclip.accounting import check_integer, check_real

SPACINGS = ("linear", "geometric")


@dataclasses.dataclass(frozen=True)
class GreedyRule:
    """Which thresholds are tried, in which order, and which of them is kept.

    A threshold is known by its *position*, an integer: `2 ** refinements` of them lie between
    two thresholds of the first pass. Of equal scores the first one counts, which in that pass is
    the smaller threshold. A score that is not finite is the worst there is.

    Args:
        start: positive float, the first threshold.
        step: positive float, what is added each time; with geometric spacing above 1, the factor.
        max_drop: float from 0, in units of the score; a score that is more than this below the
            best one ends the first pass.
        spacing: `"linear"` or `"geometric"`.
        max_clip_norm: the largest threshold; None for no bound.
        max_thresholds: int from 1, the most thresholds that are tried.
        refinements: int from 0 to 20; so often the spacing is halved, and the two neighbours of
            the best threshold are tried.

    Raises:
        TypeError: where an argument is not a number of its kind.
        ValueError: where an argument is out of range.

    Example:

    >>> rule = GreedyRule(start=0.1, step=0.1, max_drop=0.02)
    >>> replayed = rule.replay({0: 0.70, 1: 0.75, 2: 0.72})
    >>> replayed.is_done, rule.threshold(replayed.best)
    (True, 0.2)

    Reference:
        Lin et al. 2022, algorithm 1.
    """

    start: float = 0.05
    step: float = 0.01
    max_drop: float = 0.02
    spacing: str = "linear"
    max_clip_norm: float | None = None
    max_thresholds: int = 200
    refinements: int = 0

    def __post_init__(self) -> None:
        if self.spacing not in SPACINGS:
            raise ValueError(
                f"Argument `spacing` must be one of {', '.join(map(repr, SPACINGS))}. "
                f"Received: spacing={self.spacing!r}"
            )
        start = _at_least("start", self.start, 0.0, is_open=True)
        is_factor = self.spacing == "geometric"
        checked = {
            "start": start,
            "step": _at_least("step", self.step, 1.0 if is_factor else 0.0, is_open=True),
            "max_drop": _at_least("max_drop", self.max_drop, 0.0),
            "max_thresholds": check_integer(self.max_thresholds, "max_thresholds", minimum=1),
            "refinements": check_integer(self.refinements, "refinements", maximum=20),
        }
        if self.max_clip_norm is not None:
            checked["max_clip_norm"] = _at_least("max_clip_norm", self.max_clip_norm, start)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def threshold(self, position: int) -> float:
        """The clipping norm at a position.

        Args:
            position: number of steps from the start, in the finest steps of all refinements.
        """
        steps = position / self._unit
        if self.spacing == "geometric":
            return self.start * self.step**steps
        return self.start + steps * self.step

    def visits(self) -> Generator[int, float, int | None]:
        """The search itself: yields positions, is sent their scores (higher is better).

        Returns:
            The best position; None where no score was finite.
        """
        best, best_score = None, -math.inf
        position, remaining = 0, self.max_thresholds
        while remaining and self._is_allowed(position):
            score = _worth((yield position))
            remaining -= 1
            if score > best_score:
                best, best_score = position, score
            elif best is not None and best_score - score > self.max_drop:
                break
            position += self._unit
        spacing = self._unit
        while spacing > 1 and best is not None:
            spacing //= 2
            for position in (best - spacing, best + spacing):
                if not remaining or not self._is_allowed(position):
                    continue
                score = _worth((yield position))
                remaining -= 1
                if score > best_score:
                    best, best_score = position, score
        return best

    def replay(self, scores: Mapping[int, float]) -> "Replay":
        """What the search knows and wants, given the scores so far.

        Args:
            scores: by position; those of positions that the search does not visit play no part.
        """
        search, visited = self.visits(), []
        position = next(search)
        while position in scores:
            visited.append(position)
            try:
                position = search.send(scores[position])
            except StopIteration as end:
                return Replay(tuple(visited), None, end.value)
        return Replay(tuple(visited), position, _first_best(visited, scores))

    def ahead(self, scores: Mapping[int, float], running: Collection[int]) -> int | None:
        """What to try while some scores are awaited, supposing that they end nothing.

        Args:
            scores: by position, as far as known.
            running: positions that are being tried.

        Returns:
            A position; None where there is nothing to do but wait, or the search is over.
        """
        search, supposed = self.visits(), dict(scores)
        position, best_score = next(search), -math.inf
        while position in supposed or position in running:
            # As good as the best one: neither a new best nor a drop.
            score = supposed.get(position, best_score if math.isfinite(best_score) else 0.0)
            best_score = max(best_score, _worth(score))
            try:
                position = search.send(score)
            except StopIteration:
                return None
        return position

    @property
    def _unit(self) -> int:
        return 1 << self.refinements

    def _is_allowed(self, position: int) -> bool:
        """Whether the threshold lies in the range that is searched."""
        if position < 0:
            return False
        try:
            threshold = self.threshold(position)
        except OverflowError:
            return False
        return threshold <= (_LARGEST if self.max_clip_norm is None else self.max_clip_norm)


@dataclasses.dataclass(frozen=True)
class Replay:
    """A search as far as its scores are known.

    Args:
        visited: the positions whose scores have decided so far, in order.
        wanted: the position whose score is wanted next; None where the search is over.
        best: the best position visited; None where no score was finite.
    """

    visited: tuple[int, ...]
    wanted: int | None
    best: int | None

    @property
    def is_done(self) -> bool:
        """Whether the search is over."""
        return self.wanted is None


# The largest norm that clipping takes.
_LARGEST = 1e15


def _worth(score: float) -> float:
    return score if math.isfinite(score) else -math.inf


def _first_best(visited: Collection[int], scores: Mapping[int, float]) -> int | None:
    finite = [position for position in visited if math.isfinite(scores[position])]
    return max(finite, key=lambda position: scores[position], default=None)


def _at_least(name: str, value: object, minimum: float, is_open: bool = False) -> float:
    number = check_real(value, name)
    if number < minimum or (is_open and number == minimum):
        wanted = "above" if is_open else "at least"
        raise ValueError(
            f"Argument `{name}` must be {wanted} {minimum:g}. Received: {name}={value!r}"
        )
    return number
