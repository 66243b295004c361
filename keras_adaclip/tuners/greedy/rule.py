"""The search for the clipping norm of one epoch, apart from any training.

    C_k = start + k * step      or      C_k = start * step ** k,      k = 0, 1, 2, ...

Train with C_0, C_1, ... each time from the same weights. Keep the best C. Stop once a score lies
more than `max_drop` below the best one.

Source: Lin et al. 2022, "Understanding adaptive gradient clipping in DP-SGD, empirically",
algorithm 1. Each norm is computed from its number, so that rounding errors do not add up.
"""

import dataclasses
import math
from collections.abc import Sequence

from keras_adaclip.accounting import check_integer, check_real

SPACINGS = ("linear", "geometric")
_LARGEST_CLIP_NORM = 1e15  # of the clipping strategies


@dataclasses.dataclass(frozen=True)
class GreedyRule:
    """Which norms an epoch tries, in which order, and which one it keeps.

    Args:
        start: positive float, the first norm.
        step: positive float, added from one norm to the next; with geometric spacing a factor
            above 1.
        max_drop: float from 0; a score more than this below the best one ends the epoch.
        spacing: `"linear"` or `"geometric"`.
        max_clip_norm: the largest norm; None for no bound.
        max_trials: int from 1, the largest number of norms.

    Raises:
        TypeError: if an argument is not a number of its kind.
        ValueError: if an argument is out of range.

    Example:

    >>> rule = GreedyRule(start=0.1, step=0.1, max_drop=0.02)
    >>> rule.next_norm([0.70, 0.75]), rule.next_norm([0.70, 0.75, 0.72])
    (0.30000000000000004, None)
    >>> rule.norm(rule.best([0.70, 0.75, 0.72]))
    0.2

    Reference:
        Lin et al. 2022, algorithm 1.
    """

    start: float = 0.05
    step: float = 0.01
    max_drop: float = 0.02
    spacing: str = "linear"
    max_clip_norm: float | None = None
    max_trials: int = 200

    def __post_init__(self) -> None:
        if self.spacing not in SPACINGS:
            raise ValueError(
                f"Argument `spacing` must be one of {', '.join(map(repr, SPACINGS))}. "
                f"Received: spacing={self.spacing!r}"
            )
        start = _at_least("start", self.start, 0.0, is_open=True)
        smallest_step = 1.0 if self.spacing == "geometric" else 0.0
        checked = {
            "start": start,
            "step": _at_least("step", self.step, smallest_step, is_open=True),
            "max_drop": _at_least("max_drop", self.max_drop, 0.0),
            "max_trials": check_integer(self.max_trials, "max_trials_per_epoch", minimum=1),
        }
        if self.max_clip_norm is not None:
            checked["max_clip_norm"] = _at_least("max_clip_norm", self.max_clip_norm, start)
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def norm(self, number: int) -> float:
        """The norm with a number, from 0."""
        if self.spacing == "linear":
            return self.start + number * self.step
        return self.start * self.step**number

    def best(self, scores: Sequence[float]) -> int | None:
        """The number of the norm to keep; None if no score is finite.

        Args:
            scores: the scores of the norms tried so far, higher is better. Among equal scores the
                first one wins.
        """
        finite = [number for number, score in enumerate(scores) if math.isfinite(score)]
        return max(finite, key=lambda number: scores[number], default=None)

    def next_norm(self, scores: Sequence[float]) -> float | None:
        """The norm to try next; None if the epoch is over.

        Args:
            scores: as of `best`.
        """
        best = self.best(scores)
        if best is not None:
            drop = scores[best] - (scores[-1] if math.isfinite(scores[-1]) else -math.inf)
            if drop > self.max_drop:
                return None
        if len(scores) == self.max_trials:
            return None
        try:
            norm = self.norm(len(scores))
        except OverflowError:
            return None
        largest = _LARGEST_CLIP_NORM if self.max_clip_norm is None else self.max_clip_norm
        return norm if norm <= largest else None


def _at_least(name: str, value: object, minimum: float, is_open: bool = False) -> float:
    number = check_real(value, name)
    if number < minimum or (is_open and number == minimum):
        relation = "above" if is_open else "at least"
        raise ValueError(
            f"Argument `{name}` must be {relation} {minimum:g}. Received: {name}={value!r}"
        )
    return number
