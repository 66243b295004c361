"""Membership inference: how well the loss tells members of the training data from others.

An attack on a trained model. Members were trained on; non-members come from the same source and
were not. Examples with a low loss are guessed to be members. The ROC curve has the share of members
found (true positives) over the share of non-members taken for members (false positives). What
matters for privacy is its left end: few members, found with certainty.

Reference:
    Yeom et al. 2018, "Privacy risk in machine learning" (the attack by the loss).
    Carlini et al. 2022, "Membership inference attacks from first principles" (true positives at
    low false positives).
    Newcombe 2006, "Confidence intervals for an effect size measure based on the Mann-Whitney
    statistic", part 2, method 5 (the interval of the area).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import scipy

from keras_adaclip._checks import check_between, check_between_0_and_1
from keras_adaclip.gradients import example_losses, mapped

Interval = tuple[float, float]
Score = Callable[[keras.Model, Any, Any], Any]
_TINY = 1e-9


@dataclass(frozen=True)
class OperatingPoint:
    """A point of the ROC curve.

    Args:
        wanted_false_positive_rate: The greatest rate that was allowed.
        threshold: Examples with at least this score are guessed to be members.
        false_positive_rate: Share of non-members above the threshold.
        false_positive_interval: Its confidence interval (Clopper & Pearson 1934).
        true_positive_rate: Share of members above the threshold.
        true_positive_interval: Its confidence interval (Clopper & Pearson 1934).
    """

    wanted_false_positive_rate: float
    threshold: float
    false_positive_rate: float
    false_positive_interval: Interval
    true_positive_rate: float
    true_positive_interval: Interval


@dataclass(frozen=True, eq=False)
class MembershipInference:
    """How well members were told from non-members.

    Args:
        auc: Area under the ROC curve: how often a member has a higher score than a non-member.
            One half is guessing.
        auc_interval: Its confidence interval.
        points: The ROC curve at low false positive rates.
        confidence: The confidence of each interval alone.
        member_scores: Array of shape `(num_members,)`.
        non_member_scores: Array of shape `(num_non_members,)`.
    """

    auc: float
    auc_interval: Interval
    points: tuple[OperatingPoint, ...]
    confidence: float
    member_scores: np.ndarray = field(repr=False)
    non_member_scores: np.ndarray = field(repr=False)

    def __str__(self) -> str:
        lines = [
            f"Membership inference, {len(self.member_scores):,} members and "
            f"{len(self.non_member_scores):,} non-members "
            f"({100 * self.confidence:.4g}% intervals):",
            f"  area under the ROC curve {_with_interval(self.auc, self.auc_interval)}",
        ]
        for point in self.points:
            found = _with_interval(point.true_positive_rate, point.true_positive_interval)
            lines.append(
                f"  members found {found} at {point.false_positive_rate:.3%} false positives"
            )
        return "\n".join(lines)


def membership_inference(
    model: keras.Model,
    members: Any,
    non_members: Any,
    *,
    false_positive_rates: Sequence[float] = (0.001, 0.01, 0.1),
    confidence: float = 0.95,
    score: Score | None = None,
) -> MembershipInference:
    """Attack a trained model by its losses.

    Args:
        model: A trained Keras model, compiled unless `score` is given; private or not.
        members: `(x, y)` or `x`, examples that were trained on; at least two.
        non_members: The same for examples that were not, from the same source, such as test data
            with the same distribution.
        false_positive_rates: Numbers from 0 to 1, the points of the ROC curve to report. A rate
            below one over the number of non-members says little, as its interval shows.
        confidence: Between 0 and 1, the confidence of each interval.
        score: A function of model, `x` and `y` that returns one number for each example, higher for
            likelier members; None means minus the model's loss. NaN counts as the lowest.

    Returns:
        Area and points with their intervals; `print` it.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, there are fewer than two examples, or `score`
            does not return one number for each example.

    Example:

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile(loss="mse")
    >>> x = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = model.predict(x, verbose=0)
    >>> found = membership_inference(model, (x[:100], y[:100]), (x[100:], y[100:] + 5.0))
    >>> print(f"{found.auc:.2f}")
    1.00
    """
    confidence = check_between_0_and_1("confidence", confidence)
    rates = [check_between("false_positive_rates", rate, 0, 1) for rate in false_positive_rates]
    found, others = (_scores(model, part, score) for part in (members, non_members))
    thresholds = np.append(np.unique([*found, *others]), np.inf)
    num_below = np.searchsorted(np.sort(others), thresholds)
    shares_of_others = (len(others) - num_below) / len(others)
    points = []
    for rate in rates:
        threshold = float(thresholds[np.argmax(shares_of_others <= rate)])
        false_positives = _share_above(threshold, others, confidence)
        true_positives = _share_above(threshold, found, confidence)
        points.append(OperatingPoint(rate, threshold, *false_positives, *true_positives))
    wins = scipy.stats.mannwhitneyu(found, others, method="asymptotic").statistic
    auc = float(wins) / (len(found) * len(others))
    interval = area_interval(auc, len(found), len(others), confidence)
    return MembershipInference(auc, interval, tuple(points), confidence, found, others)


def _share_above(threshold: float, scores: np.ndarray, confidence: float) -> tuple[float, Interval]:
    """Return the share of scores at or above a threshold, with Clopper and Pearson's interval."""
    count = int(np.sum(scores >= threshold))
    ends = scipy.stats.binomtest(count, len(scores)).proportion_ci(confidence, method="exact")
    return count / len(scores), (float(ends.low), float(ends.high))


def area_interval(area: float, num_members: int, num_others: int, confidence: float) -> Interval:
    """Return Newcombe's interval of the area under the ROC curve, also valid near 0 and 1.

    Args:
        area: The area found.
        num_members: Number of members, positive.
        num_others: Number of non-members, positive.
        confidence: Between 0 and 1.

    Example:

    >>> tuple(round(end, 3) for end in area_interval(0.5, 1000, 1000, 0.95))
    (0.475, 0.525)
    """
    quantile = float(scipy.stats.norm.ppf((1.0 + confidence) / 2.0))
    mean_number = (num_members + num_others) / 2.0 - 1.0

    def distance(true: float) -> float:
        """Return how far the area is from `true`, less the margin of error."""
        clustering = (1.0 - true) / (2.0 - true) + true / (1.0 + true)
        variance = true * (1.0 - true) * (1.0 + mean_number * clustering)
        return abs(area - true) - quantile * math.sqrt(variance / (num_members * num_others))

    # Negative at the area itself (zero if that is 0 or 1), positive beyond the ends.
    inside = min(max(area, _TINY), 1.0 - _TINY)
    low = 0.0 if area <= 0.0 else float(scipy.optimize.brentq(distance, 0.0, inside))
    high = 1.0 if area >= 1.0 else float(scipy.optimize.brentq(distance, inside, 1.0))
    return low, high


def _scores(model: keras.Model, part: Any, score: Score | None) -> np.ndarray:
    """Return the finite scores of some examples."""
    x, y, _ = keras.utils.unpack_x_y_sample_weight(part)
    x, y = mapped(np.asarray, (x, y))
    found = -example_losses(model, x, y) if score is None else score(model, x, y)
    scores = np.asarray(found, np.float64)
    num_examples = len(keras.tree.flatten(x)[0])
    if scores.shape != (num_examples,):
        raise ValueError(
            "Argument `score` must return one number for each example. "
            f"Received: shape {scores.shape} for {num_examples} examples"
        )
    if num_examples < 2:
        raise ValueError(
            f"At least two members and two non-members are needed. Received: {num_examples}"
        )
    lowest = np.finfo(np.float64).min
    return np.nan_to_num(scores, nan=lowest, posinf=-lowest, neginf=lowest)


def _with_interval(value: float, interval: Interval) -> str:
    """Return a value and its interval as text."""
    return f"{value:.3f} ({interval[0]:.3f} to {interval[1]:.3f})"
