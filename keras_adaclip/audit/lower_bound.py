"""From right guesses about canaries to a lower bound on epsilon.

Fair coins decide for m canaries whether training has them. An auditor guesses r of the coins, and v
guesses are right. If training is (epsilon, delta)-private, a guess is no better than randomized
response, which is right with probability q = e^epsilon / (1 + e^epsilon), except for delta:

    P[at least v right] <= P[B >= v] + 2 m delta max over i >= 1 of P[v > B >= v - i] / i

with B binomial, r trials of probability q. The lower bound is the least epsilon for which this
probability is not below the level. One training run is enough, because the coins are independent.

Reference:
    Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run", theorem 5.2.
"""

import math

import numpy as np
import scipy

from keras_adaclip._checks import check_between_0_and_1, check_integer, check_nonnegative

# More than any number of canaries can show.
_LARGEST_EPSILON = 60.0


def audit_p_value(
    num_canaries: int, num_guesses: int, num_correct: int, epsilon: float, delta: float = 0.0
) -> float:
    """Upper bound on the probability of so many right guesses under (epsilon, delta)-privacy.

    Args:
        num_canaries: Number of canaries, each with a fair coin of its own.
        num_guesses: Number of guesses, at most `num_canaries`.
        num_correct: Number of right guesses.
        epsilon: At least 0.
        delta: At least 0 and below 1.

    Returns:
        A probability.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.

    Example:

    >>> round(audit_p_value(1000, 100, 90, epsilon=1.0), 6)
    2.7e-05
    """
    num_canaries = check_integer("num_canaries", num_canaries, minimum=1)
    num_guesses = check_integer("num_guesses", num_guesses, minimum=1, maximum=num_canaries)
    num_correct = check_integer("num_correct", num_correct, maximum=num_guesses)
    epsilon = check_nonnegative("epsilon", epsilon)
    delta = check_between_0_and_1("delta", delta, with_0=True)
    probability = 1.0 / (1.0 + math.exp(-epsilon))
    at_least = float(scipy.stats.binom.sf(num_correct - 1, num_guesses, probability))
    fewer = np.arange(1, num_correct + 1)
    below = np.cumsum(scipy.stats.binom.pmf(num_correct - fewer, num_guesses, probability))
    slope = float(np.max(below / fewer, initial=0.0))
    return min(1.0, at_least + 2.0 * num_canaries * delta * slope)


def epsilon_lower_bound(
    num_canaries: int,
    num_guesses: int,
    num_correct: int,
    delta: float = 0.0,
    confidence: float = 0.95,
) -> float:
    """Lower bound on the epsilon of training, from the number of right guesses.

    Args:
        num_canaries: Number of canaries, each with a fair coin of its own.
        num_guesses: Number of guesses, fixed before the coins were looked at.
        num_correct: Number of right guesses.
        delta: At least 0 and below 1. A delta near `1 / num_canaries` explains all guesses.
        confidence: Between 0 and 1, the probability that the bound is not above the truth.

    Returns:
        The bound, at least 0.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range.

    Example:

    >>> round(epsilon_lower_bound(1000, 200, 195, delta=1e-5), 2)
    2.9
    """
    confidence = check_between_0_and_1("confidence", confidence)
    level = 1.0 - confidence

    def excess(epsilon: float) -> float:
        """Return by how much the p-value exceeds the level."""
        return audit_p_value(num_canaries, num_guesses, num_correct, epsilon, delta) - level

    if excess(0.0) >= 0.0:
        return 0.0
    if excess(_LARGEST_EPSILON) < 0.0:
        return _LARGEST_EPSILON
    # A little below the root, where the p-value is still too small.
    root = float(scipy.optimize.brentq(excess, 0.0, _LARGEST_EPSILON, xtol=1e-9))
    return max(0.0, root - 1e-8)
