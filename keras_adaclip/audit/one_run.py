"""Audits by one training run: from right guesses about canaries to a lower bound on epsilon.

Fair coins decide for m canaries whether training has them. An auditor guesses r of the coins, and v
guesses are right. If training is (epsilon, delta)-private, a guess is no better than randomized
response, which is right with probability q = e^epsilon / (1 + e^epsilon), except for delta:

    P[at least v right] <= P[B >= v] + 2 m delta max over i >= 1 of P[v > B >= v - i] / i

with B binomial, r trials of probability q. The lower bound is the least epsilon for which this
probability is not below the level. One training run is enough, because the coins are independent.

Reference:
    Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run", algorithm 1 and
    theorem 5.2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import scipy

from keras_adaclip._checks import check_between_0_and_1, check_integer, check_nonnegative, optional
from keras_adaclip.accounting import default_delta
from keras_adaclip.audit.canaries import Canaries

# More than any number of canaries can show.
_LARGEST_EPSILON = 60.0
_FEWEST_GUESSES = 16
_ORDER_OF_TIES = 20_231_210


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


@dataclass(frozen=True, eq=False)
class OneRunAudit:
    """A lower bound on the epsilon of one training run.

    `is_member` tells which canaries were trained on, and the bound depends on it without noise:
    keep both as private as the data.

    Args:
        epsilon_lower_bound: The lower bound on epsilon.
        confidence: The confidence of the bound.
        delta: The delta of both bounds.
        claimed_epsilon: The accountant's upper bound on epsilon at this delta.
        num_guesses: Number of guesses; half of them say that the canary was trained on.
        num_correct: Number of right guesses.
        scores: Array of shape `(num_canaries,)`, higher for canaries that were likelier trained on.
        is_member: Bool array of shape `(num_canaries,)`, whether they were.
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
        """The number of canaries."""
        return len(self.is_member)

    @property
    def contradicts_accountant(self) -> bool:
        """Whether the lower bound lies above the accountant's upper bound.

        With confidence 0.95 one audit in twenty may say so by chance. If it happens again, training
        is less private than accounted.
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
        """Guess that canaries with the highest scores were trained on and the lowest were not.

        Args:
            scores: Array of shape `(num_canaries,)`, computed from what training has released. NaN
                counts as the lowest, and chance decides between equal scores.
            is_member: Bool array of the same shape: independent fair coins, which influence
                `scores` through training alone.
            delta: At least 0 and below 1.
            claimed_epsilon: The accountant's upper bound.
            confidence: Between 0 and 1.
            num_guesses: Number of guesses. None tries one guess for each canary, half as many, and
                so on down to about sixteen, and takes the highest bound. Each of k tries has the
                confidence `1 - (1 - confidence) / k`, so all hold together with `confidence`.

        Returns:
            The audit.

        Raises:
            TypeError: If an argument has the wrong type.
            ValueError: If an argument is out of range.

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
        if num_guesses is not None:
            tries = [check_integer("num_guesses", num_guesses, minimum=1, maximum=num_canaries)]
        else:
            # A perfect score on fewer guesses would show nothing.
            halvings = range(num_canaries.bit_length())
            tries = [n for i in halvings if (n := num_canaries >> i) >= _FEWEST_GUESSES]
            tries = tries or [num_canaries]
        of_each = 1.0 - (1.0 - confidence) / len(tries)
        # NaN is the lowest. The order of equal scores depends neither on places nor on coins.
        order_of_ties = np.random.default_rng(_ORDER_OF_TIES).permutation(num_canaries)
        order = np.lexsort((order_of_ties, np.nan_to_num(scores, nan=-np.inf)))
        ascending = is_member[order]
        found = []
        for number in tries:
            num_out = number // 2
            out, members = ascending[:num_out], ascending[num_canaries - (number - num_out) :]
            correct = int(np.sum(~out) + np.sum(members))
            bound = epsilon_lower_bound(num_canaries, number, correct, delta, of_each)
            found.append((bound, number, correct))
        bound, number, correct = max(found, key=lambda entry: entry[0])
        return cls(bound, confidence, delta, claimed_epsilon, number, correct, scores, is_member)

    @property
    def _claim(self) -> str:
        """What the accountant says, and whether the bound agrees with it."""
        if not math.isfinite(self.claimed_epsilon):
            return "The accountant claims nothing."
        verdict = "they contradict each other" if self.contradicts_accountant else "they agree"
        return f"The accountant says at most {self.claimed_epsilon:.4g}: {verdict}."

    def __str__(self) -> str:
        return (
            f"{self.num_correct:,} of {self.num_guesses:,} guesses about {self.num_canaries:,} "
            f"canaries were right: epsilon is at least {self.epsilon_lower_bound:.3g} at delta "
            f"{self.delta:g},\nwith confidence {100 * self.confidence:.4g}%. {self._claim}"
        )


def one_run(
    model_builder: Callable[[], keras.Model],
    x: Any,
    y: Any = None,
    *,
    batch_size: int,
    epochs: int,
    num_canaries: int = 1000,
    kind: str = "random",
    delta: float | None = None,
    confidence: float = 0.95,
    num_guesses: int | None = None,
    seed: int | None = None,
    **fit_arguments: Any,
) -> OneRunAudit:
    """Train once on data with canaries, and bound epsilon from below by what was remembered.

    Some rows become canaries, and a coin decides for each whether training has it. The model is
    trained with Poisson sampling. The guess is that training had the canaries whose loss fell most,
    and not those whose loss fell least. The number of right guesses bounds epsilon, with a
    confidence that needs no assumption on model, data or canaries.

    A low bound proves nothing: a better attacker, who watches every step or chooses other canaries,
    may find more. A bound above the accountant's epsilon says that this training is not as private
    as accounted: noise is missing, or data reach the weights in another way, such as early stopping
    by the training loss. The audit does not see what was computed from the data before training,
    such as a vocabulary or a mean.

    Args:
        model_builder: A function that returns a new `PrivateModel`, compiled with a `DPOptimizer`.
        x: An array, or a dict, list or tuple of arrays, of shape `(num_examples, ...)`; not
            changed.
        y: Targets of the same length, or None.
        batch_size: Expected number of examples in a step, before the coins are tossed; at most
            `num_examples` less half of the canaries.
        epochs: Number of epochs.
        num_canaries: From 2 to `num_examples`. An audit of few rows, all of them canaries, finds
            the most. With k canaries no bound is above about log k.
        kind: What a canary is: `"random"`, `"mislabeled"` or `"unchanged"`, see `Canaries.draw`.
        delta: The delta of both bounds, far below `1 / num_canaries`. None means
            `num_examples ** -1.1`, at most `0.01 / num_canaries`.
        confidence: Between 0 and 1.
        num_guesses: Number of guesses; None tries several numbers, see `OneRunAudit.from_scores`.
        seed: None, or an integer that makes canaries and coins repeatable.
        **fit_arguments: Further arguments of `PrivateModel.fit`, such as `callbacks`.

    Returns:
        The audit; `print` it.

    Raises:
        TypeError: If an argument has the wrong type, or the builder returns no private model.
        ValueError: If an argument is out of range, or the model has been trained before.

    Example:

    >>> import numpy as np
    >>> import keras_adaclip as ka
    >>> def build():
    ...     model = ka.PrivateSequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=2.0), loss="mse")
    ...     return model
    >>> x = np.random.default_rng(0).normal(size=(64, 4))
    >>> audit = one_run(build, x, x[:, :1], batch_size=16, epochs=1, num_canaries=64, verbose=0)
    >>> audit.num_canaries, audit.contradicts_accountant
    (64, False)

    Reference:
        Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run", algorithm 1.
    """
    confidence = check_between_0_and_1("confidence", confidence)
    delta = optional(check_between_0_and_1, "delta", delta)
    if num_guesses is not None:
        check_integer("num_guesses", num_guesses, minimum=1, maximum=num_canaries)
    canaries = Canaries.draw(x, y, num_canaries=num_canaries, kind=kind, seed=seed)
    if delta is None:
        delta = min(default_delta(canaries.num_examples), 0.01 / len(canaries))
    dataset = canaries.dataset(batch_size)
    model = model_builder()
    if not hasattr(model, "privacy_spent"):
        raise TypeError(
            "Argument `model_builder` must return a `PrivateModel`. "
            f"Received: an object of type {type(model).__name__}"
        )
    if model.privacy_ledger.steps > 0:
        raise ValueError(
            "Argument `model_builder` must return a new model. Received: one that was trained for "
            f"{model.privacy_ledger.steps} steps. For a model that goes on, train it on "
            "`Canaries.dataset`, with `AuditCallback`."
        )
    before = canaries.losses(model)
    model.fit(dataset, epochs=epochs, **fit_arguments)
    return OneRunAudit.from_scores(
        before - canaries.losses(model),
        canaries.is_member,
        delta=delta,
        claimed_epsilon=model.privacy_spent(delta).epsilon,
        confidence=confidence,
        num_guesses=num_guesses,
    )
