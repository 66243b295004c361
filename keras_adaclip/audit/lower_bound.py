"""From right guesses about canaries to a lower bound on epsilon.

A coin decided of each of m canaries whether training had it. Of r of them an auditor guesses the
coin, and is right v times. Were training (epsilon, delta)-private, each guess could do no better
than randomized response, right with probability q = e^epsilon / (1 + e^epsilon), but for delta:

    P[at least v right] <= P[B >= v] + 2 m delta max over i >= 1 of P[v > B >= v - i] / i,

B being binomial with r trials of probability q. The least epsilon for which this is not too
unlikely is the bound. The coins are independent, though there is one training run only.

Reference:
    Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run", theorem 5.2.
"""

import math

import numpy as np
from scipy import optimize, stats

from keras_adaclip._checks import check_between_0_and_1, check_integer, check_real

# Above what any number of canaries can show.
_LARGEST_EPSILON = 60.0


def audit_p_value(
    num_canaries: int, num_guesses: int, num_correct: int, epsilon: float, delta: float = 0.0
) -> float:
    """How likely so many right guesses are at most, if training is (epsilon, delta)-private.

    Args:
        num_canaries: canaries whose inclusion a fair coin decided, each its own.
        num_guesses: canaries about which a guess was made, at most all.
        num_correct: right guesses among these.
        epsilon: at least 0.
        delta: between 0 and 1.

    Returns:
        A probability.

    Raises:
        TypeError: where an argument has the wrong type.
        ValueError: where an argument is out of range.

    Example:

    >>> round(audit_p_value(1000, 100, 90, epsilon=1.0), 6)
    2.7e-05
    """
    num_canaries = check_integer("num_canaries", num_canaries, minimum=1)
    num_guesses = check_integer("num_guesses", num_guesses, minimum=1, maximum=num_canaries)
    num_correct = check_integer("num_correct", num_correct, maximum=num_guesses)
    epsilon, delta = check_real("epsilon", epsilon), check_real("delta", delta)
    if epsilon < 0:
        raise ValueError(f"Argument `epsilon` must not be negative. Received: epsilon={epsilon}")
    if not 0 <= delta <= 1:
        raise ValueError(f"Argument `delta` must lie between 0 and 1. Received: delta={delta}")
    probability = 1.0 / (1.0 + math.exp(-epsilon))
    at_least = float(stats.binom.sf(num_correct - 1, num_guesses, probability))
    fewer = np.arange(1, num_correct + 1)
    below = np.cumsum(stats.binom.pmf(num_correct - fewer, num_guesses, probability))
    slope = float(np.max(below / fewer, initial=0.0))
    return min(1.0, at_least + 2.0 * num_canaries * delta * slope)


def epsilon_lower_bound(
    num_canaries: int,
    num_guesses: int,
    num_correct: int,
    delta: float = 0.0,
    confidence: float = 0.95,
) -> float:
    """The epsilon that training exceeds, as sure as `confidence`, given so many right guesses.

    Args:
        num_canaries: canaries whose inclusion a fair coin decided, each its own.
        num_guesses: canaries about which a guess was made; fixed before the coins were looked at.
        num_correct: right guesses among these.
        delta: between 0 and 1. Far below one over `num_canaries`, or it explains all guesses.
        confidence: between 0 and 1; how rarely the bound may lie above the truth.

    Returns:
        The bound, at least 0.

    Raises:
        TypeError: where an argument has the wrong type.
        ValueError: where an argument is out of range.

    Example:

    >>> round(epsilon_lower_bound(1000, 200, 195, delta=1e-5), 2)
    2.9
    """
    confidence = check_between_0_and_1("confidence", confidence)
    level = 1.0 - confidence

    def excess(epsilon: float) -> float:
        return audit_p_value(num_canaries, num_guesses, num_correct, epsilon, delta) - level

    if excess(0.0) >= 0.0:
        return 0.0
    if excess(_LARGEST_EPSILON) < 0.0:
        return _LARGEST_EPSILON
    # A little below the root: where the p-value still is too small.
    root = float(optimize.brentq(excess, 0.0, _LARGEST_EPSILON, xtol=1e-9))
    return max(0.0, root - 1e-8)
