"""Two lower bounds on epsilon from the scores of gradient canaries.

The bound for any private mechanism is that of `OneRunAudit`. The bound within the family asks more
of the run: that it is the mechanism of the ledger with an unknown noise multiplier. If one canary
leaves an attacker at most the advantage A, the number of right guesses about m orthogonal canaries
is at most binomial, m trials of probability (1 + A) / 2: given all other rows and what was
released, the coins are independent. So the right guesses reject every noise multiplier with too
small an advantage, and epsilon is at least that of the least one.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy

from keras_adaclip._checks import check_between_0_and_1, check_integer
from keras_adaclip.accounting import LedgerRow, PrivacySpent, ledger_epsilon, quick_tradeoff
from keras_adaclip.audit.one_run import OneRunAudit

# The search is over powers of two of the noise multipliers, up to these, to within a tolerance.
_SMALLEST, _LARGEST, _TOLERANCE = -4.0, 8.0, 1e-2


def family_lower_bound(
    rows: Sequence[LedgerRow],
    num_canaries: int,
    num_correct: int,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """Lower bound on epsilon, if the run is the ledger's with another noise multiplier.

    Args:
        rows: What the ledger says has run.
        num_canaries: Number of canaries, of all of which the coin was guessed.
        num_correct: Number of right guesses.
        delta: Between 0 and 1.
        confidence: Between 0 and 1, the probability that the bound is not above the truth.

    Returns:
        The bound, at least 0.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.

    Example:

    >>> from keras_adaclip.accounting import Sampling
    >>> row = LedgerRow.open(Sampling.POISSON, 949, 60_000, noise_multiplier=0.8118).advance(320)
    >>> round(family_lower_bound([row], 1000, 598, delta=1e-5), 1)
    1.8

    Reference:
        Mahloujifar, Melis & Chaudhuri 2025, "Auditing f-differential privacy in one run", for
        bounds from a family of mechanisms; the binomial bound needs orthogonal canaries.
    """
    num_canaries = check_integer("num_canaries", num_canaries, minimum=1)
    num_correct = check_integer("num_correct", num_correct, maximum=num_canaries)
    delta = check_between_0_and_1("delta", delta)
    level = 1.0 - check_between_0_and_1("confidence", confidence)
    rows = [row for row in rows if row.steps > 0]
    # The least probability of a right guess with which so many are not too many.
    shape = max(num_correct, 1), num_canaries - num_correct + 1
    least = 2.0 * float(scipy.stats.beta.ppf(level, *shape)) - 1.0
    if not rows or least <= 0.0:
        return 0.0

    def scaled(power: float) -> list[LedgerRow]:
        """Return the rows with their noise times a power of two."""
        factor = 2.0**power
        noise = (factor * (row.noise_multiplier or 1.0) for row in rows)
        return [
            dataclasses.replace(row, noise_multiplier=z) for row, z in zip(rows, noise, strict=True)
        ]

    def excess(power: float) -> float:
        """Return by how much the advantage exceeds the least one."""
        return quick_tradeoff(scaled(power), delta).advantage - least

    low = high = 0.0
    while excess(high) >= 0.0:
        high += 1.0
        if high > _LARGEST:
            return 0.0
    while low > _SMALLEST and excess(low) < 0.0:
        low -= 1.0
    power = low
    if excess(low) > 0.0:
        root = scipy.optimize.brentq(excess, low, high, xtol=_TOLERANCE)
        power = float(root) + _TOLERANCE  # A little more noise, which is rejected too.
    return ledger_epsilon(scaled(power), delta)


@dataclasses.dataclass(frozen=True, eq=False)
class GradientAudit(OneRunAudit):
    """Lower bounds on the epsilon of a run from its gradient canaries.

    `epsilon_lower_bound` holds for any private mechanism. `family_lower_bound` holds if the run is
    the mechanism of the ledger with an unknown noise multiplier, and is far higher.

    Args:
        epsilon_lower_bound: As for `OneRunAudit`, like all arguments up to `is_member`.
        confidence: The confidence of each of the two bounds.
        delta: The delta of all bounds.
        claimed_epsilon: The accountant's upper bound on epsilon.
        num_guesses: Number of guesses of the bound for any mechanism.
        num_correct: Number of right ones among them.
        scores: Array of shape `(num_canaries,)`, log likelihood ratios.
        is_member: Bool array of shape `(num_canaries,)`.
        family_lower_bound: The lower bound within the family.
        num_correct_of_all: Number of right guesses about all canaries: that those of the upper half
            of the scores were in training.
    """

    family_lower_bound: float = 0.0
    num_correct_of_all: int = 0

    @property
    def contradicts_accountant(self) -> bool:
        """Whether a lower bound lies above the accountant's upper bound."""
        return max(self.epsilon_lower_bound, self.family_lower_bound) > self.claimed_epsilon

    @classmethod
    def of_run(
        cls,
        scores: Any,
        is_member: Any,
        rows: Sequence[LedgerRow],
        *,
        delta: float,
        confidence: float = 0.95,
    ) -> "GradientAudit":
        """Return both bounds from log likelihood ratios.

        Args:
            scores: Float array of shape `(num_canaries,)`.
            is_member: Bool array of the same shape.
            rows: What the ledger says has run.
            delta: Between 0 and 1.
            confidence: Between 0 and 1.
        """
        scores, is_member = np.asarray(scores, np.float64), np.asarray(is_member)
        # Signs would guess as well in a sound run, and badly with less noise than expected.
        is_upper = np.argsort(np.argsort(scores)) >= len(scores) // 2
        correct = int(np.sum(is_upper == is_member))
        audit: Any = cls.from_scores(
            scores,
            is_member,
            delta=delta,
            claimed_epsilon=PrivacySpent.from_ledger(rows, delta).epsilon,
            confidence=confidence,
        )
        bound = family_lower_bound(rows, len(scores), correct, delta, confidence)
        found: GradientAudit = dataclasses.replace(
            audit, family_lower_bound=bound, num_correct_of_all=correct
        )
        return found

    def __str__(self) -> str:
        return (
            f"{self.num_correct_of_all:,} of {self.num_canaries:,} gradient canaries were guessed "
            f"right by an attacker who sees every step. At delta {self.delta:g}, each with "
            f"confidence {100 * self.confidence:.4g}%:\n"
            f"- epsilon is at least {self.family_lower_bound:.3g}, if the run is the mechanism of "
            "the ledger with an unknown noise multiplier;\n"
            f"- epsilon is at least {self.epsilon_lower_bound:.3g}, whatever ran.\n"
            f"{self._claim}"
        )
