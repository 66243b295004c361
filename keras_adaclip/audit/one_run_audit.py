"""What an audit of one training run has found."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_adaclip._checks import check_between_0_and_1, check_integer
from keras_adaclip.audit.lower_bound import epsilon_lower_bound

_FEWEST_GUESSES = 16
_ORDER_OF_TIES = 2_023


@dataclass(frozen=True, eq=False)
class OneRunAudit:
    """A lower bound on the epsilon of one training run.

    Whoever reads `is_member` knows which canaries were trained on, and the bound depends on it
    without noise: keep both where the data are.

    Args:
        epsilon_lower_bound: what epsilon is at least.
        confidence: how sure that is.
        delta: at which delta.
        claimed_epsilon: what the accountant says that epsilon is at most, at this delta.
        num_guesses: canaries about which a guess was made; half of them guessed in.
        num_correct: right guesses.
        scores: of shape `(num_canaries,)`; the higher, the likelier the canary was in.
        is_member: bool, of shape `(num_canaries,)`; whether it was.
    """

    epsilon_lower_bound: float
    confidence: float
    delta: float
    claimed_epsilon: float
    num_guesses: int
    num_correct: int
    scores: np.ndarray = field(repr=False)
    is_member: np.ndarray = field(repr=False)

    @property
    def num_canaries(self) -> int:
        """Canaries whose inclusion a coin decided."""
        return len(self.is_member)

    @property
    def contradicts_accountant(self) -> bool:
        """Whether the lower bound lies above what the accountant says that epsilon is at most.

        With confidence 0.95 one audit in twenty may say so by chance. If it happens again, what
        ran is not what was accounted.
        """
        return self.epsilon_lower_bound > self.claimed_epsilon

    @classmethod
    def from_scores(
        cls,
        scores: Any,
        is_member: Any,
        *,
        delta: float,
        claimed_epsilon: float = math.inf,
        confidence: float = 0.95,
        num_guesses: int | None = None,
    ) -> "OneRunAudit":
        """Guesses that the canaries with the highest scores were in and the lowest were out.

        Args:
            scores: of shape `(num_canaries,)`, from whatever training has released; NaN counts
                as the lowest, and among equal ones chance decides.
            is_member: bool, of the same shape: fair coins, one for each place, that played no
                part in `scores` but by training.
            delta: between 0 and 1.
            claimed_epsilon: what the accountant says.
            confidence: between 0 and 1.
            num_guesses: about how many canaries to guess. None tries all of them, half as many,
                and so on down to about sixteen, and takes what gives the highest bound: each of k
                tries then is as sure as `1 - (1 - confidence) / k`, so that all are right together
                as surely as `confidence`.

        Returns:
            The audit.

        Raises:
            TypeError: where an argument has the wrong type.
            ValueError: where an argument is out of range.

        Example:

        >>> audit = OneRunAudit.from_scores(
        ...     range(400), [False] * 200 + [True] * 200, delta=1e-5, claimed_epsilon=3.0
        ... )
        >>> print(audit)
        400 of 400 guesses about 400 canaries were right: epsilon is at least 4.43 at delta 1e-05,
        with confidence 95%. The accountant says at most 3: they contradict each other.
        """
        scores, is_member = np.asarray(scores, np.float64), np.asarray(is_member)
        if scores.ndim != 1 or scores.shape != is_member.shape or is_member.dtype != np.bool_:
            raise ValueError(
                "`scores` and `is_member` must be one number and one truth value a canary. "
                f"Received: shapes {scores.shape} and {is_member.shape}, dtype {is_member.dtype}"
            )
        num_canaries = check_integer("num_canaries", len(scores), minimum=2)
        confidence = check_between_0_and_1("confidence", confidence)
        if num_guesses is None:
            tries = _numbers_of_guesses(num_canaries)
        else:
            tries = [check_integer("num_guesses", num_guesses, minimum=1, maximum=num_canaries)]
        of_each = 1.0 - (1.0 - confidence) / len(tries)
        ascending = by_rising_score(scores, is_member)
        found = []
        for number in tries:
            num_out = number // 2
            out, members = ascending[:num_out], ascending[num_canaries - (number - num_out) :]
            num_correct = int(np.sum(~out) + np.sum(members))
            bound = epsilon_lower_bound(num_canaries, number, num_correct, delta, of_each)
            found.append((bound, number, num_correct))
        bound, number, num_correct = max(found, key=lambda entry: entry[0])
        return cls(
            bound, confidence, delta, claimed_epsilon, number, num_correct, scores, is_member
        )

    def __str__(self) -> str:
        verdict = "they contradict each other" if self.contradicts_accountant else "they agree"
        claimed = (
            f"The accountant says at most {self.claimed_epsilon:.4g}: {verdict}."
            if math.isfinite(self.claimed_epsilon)
            else "The accountant claims nothing."
        )
        return (
            f"{self.num_correct:,} of {self.num_guesses:,} guesses about {self.num_canaries:,} "
            f"canaries were right: epsilon is at least {self.epsilon_lower_bound:.3g} at delta "
            f"{self.delta:g},\nwith confidence {100 * self.confidence:.4g}%. {claimed}"
        )


def by_rising_score(scores: np.ndarray, is_member: np.ndarray) -> np.ndarray:
    """`is_member` in the order of the scores, lowest first.

    Args:
        scores: of shape `(num_canaries,)`; NaN counts as the lowest. The order among equal scores
            is one that depends neither on place nor on coins.
        is_member: of the same shape.
    """
    generator = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(_ORDER_OF_TIES,)))
    shuffled = generator.permutation(len(scores))
    lowest_first = np.argsort(np.nan_to_num(scores[shuffled], nan=-np.inf), kind="stable")
    ordered: np.ndarray = is_member[shuffled][lowest_first]
    return ordered


def _numbers_of_guesses(num_canaries: int) -> list[int]:
    """All, half of them, a quarter and so on, as long as a perfect score would show something."""
    numbers = [num_canaries]
    while numbers[-1] // 2 >= _FEWEST_GUESSES:
        numbers.append(numbers[-1] // 2)
    return numbers
