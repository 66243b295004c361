"""Membership inference: how well the loss tells members of the training data from others.

An attack on a finished model. Members were trained on, non-members come from the same source and
were not. The lower its loss, the likelier an example is taken for a member; the ROC curve has the
share of members found (true positives) over the share of others mistaken for members (false
positives). What matters for privacy is its left end: few members, found for sure.

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
from scipy import optimize, stats

from keras_adaclip._checks import check_between_0_and_1, check_integer, check_real
from keras_adaclip.gradients import example_losses

Interval = tuple[float, float]
Score = Callable[[keras.Model, Any, Any], Any]
_TINY = 1e-9


@dataclass(frozen=True)
class OperatingPoint:
    """A point of the ROC curve.

    Args:
        wanted_false_positive_rate: the most that was allowed.
        threshold: scores that are at least as high are taken for members.
        false_positive_rate: share of non-members that are.
        false_positive_interval: its confidence interval (Clopper & Pearson 1934).
        true_positive_rate: share of members that are.
        true_positive_interval: its confidence interval (Clopper & Pearson 1934).
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
        auc: area under the ROC curve: how often a member has a higher score than a non-member.
            One half is guessing.
        auc_interval: its confidence interval.
        points: the ROC curve at low false positive rates.
        confidence: of each interval alone.
        member_scores: of shape `(num_members,)`.
        non_member_scores: of shape `(num_non_members,)`.
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
    """Attacks a trained model by its losses.

    Args:
        model: a trained Keras model, compiled unless `score` is given; private or not.
        members: `(x, y)` or `x`: examples that were trained on.
        non_members: the same of examples that were not, from the same source. They may be test
            data if these have the same law.
        false_positive_rates: between 0 and 1; where to look at the ROC curve. With fewer than
            one over the rate of non-members the point there says little, as its interval shows.
        confidence: between 0 and 1, of each interval.
        score: a function of model, `x` and `y` that returns one number an example, the higher the
            likelier a member; None means minus the model's loss. NaN counts as the lowest.

    Returns:
        Area and points with their intervals; `print` it.

    Raises:
        ImportError: where scikit-learn is missing.
        TypeError: where an argument has the wrong type.
        ValueError: where an argument is out of range, there are fewer than two of a kind, or
            `score` returns something else than one number an example.

    Example:

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> model.compile(loss="mse")
    >>> x = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = model.predict(x, verbose=0)
    >>> found = membership_inference(model, (x[:100], y[:100]), (x[100:], y[100:] + 5.0))
    >>> print(f"{found.auc:.2f}")
    1.00
    """
    try:
        from sklearn.metrics import roc_auc_score, roc_curve
    except ImportError as error:
        raise ImportError(
            "scikit-learn is needed for `keras_adaclip.audit.membership_inference`: "
            "pip install keras-adaclip[audit]"
        ) from error
    confidence = check_between_0_and_1("confidence", confidence)
    rates = [check_real("false_positive_rates", rate) for rate in false_positive_rates]
    if not all(0 <= rate <= 1 for rate in rates):
        raise ValueError(
            "Argument `false_positive_rates` must hold numbers between 0 and 1. "
            f"Received: false_positive_rates={tuple(false_positive_rates)}"
        )
    found, others = (_scores(model, part, score) for part in (members, non_members))
    truth = np.concatenate([np.ones(len(found)), np.zeros(len(others))])
    scores = np.concatenate([found, others])
    auc = float(roc_auc_score(truth, scores))
    shares_of_others, shares_of_members, thresholds = roc_curve(
        truth, scores, drop_intermediate=False
    )
    points = []
    for rate in rates:
        place = int(np.flatnonzero(shares_of_others <= rate)[-1])
        false_positive_rate = float(shares_of_others[place])
        true_positive_rate = float(shares_of_members[place])
        points.append(
            OperatingPoint(
                rate,
                float(thresholds[place]),
                false_positive_rate,
                share_interval(round(false_positive_rate * len(others)), len(others), confidence),
                true_positive_rate,
                share_interval(round(true_positive_rate * len(found)), len(found), confidence),
            )
        )
    interval = area_interval(auc, len(found), len(others), confidence)
    return MembershipInference(auc, interval, tuple(points), confidence, found, others)


def share_interval(count: int, total: int, confidence: float) -> Interval:
    """Clopper and Pearson's interval of a share.

    Args:
        count: how many of `total` there were.
        total: positive.
        confidence: between 0 and 1.

    Example:

    >>> tuple(round(end, 4) for end in share_interval(0, 100, 0.95))
    (0.0, 0.0362)
    """
    total = check_integer("total", total, minimum=1)
    count = check_integer("count", count, maximum=total)
    tail = (1.0 - confidence) / 2.0
    low = float(stats.beta.ppf(tail, count, total - count + 1)) if count > 0 else 0.0
    high = float(stats.beta.ppf(1.0 - tail, count + 1, total - count)) if count < total else 1.0
    return low, high


def area_interval(area: float, num_members: int, num_others: int, confidence: float) -> Interval:
    """Newcombe's interval of the area under the ROC curve, good also near 0 and 1.

    Args:
        area: the area found.
        num_members: positive.
        num_others: positive.
        confidence: between 0 and 1.

    Example:

    >>> tuple(round(end, 3) for end in area_interval(0.5, 1000, 1000, 0.95))
    (0.475, 0.525)
    """
    quantile = float(stats.norm.ppf((1.0 + confidence) / 2.0))
    mean_number = (num_members + num_others) / 2.0 - 1.0

    def distance(true: float) -> float:
        clustering = (1.0 - true) / (2.0 - true) + true / (1.0 + true)
        variance = true * (1.0 - true) * (1.0 + mean_number * clustering)
        return abs(area - true) - quantile * math.sqrt(variance / (num_members * num_others))

    # At the area the distance is negative, but for 0 and 1, where it is zero; beyond the
    # interval's ends it is positive.
    inside = min(max(area, _TINY), 1.0 - _TINY)
    low = 0.0 if area <= 0.0 else float(optimize.brentq(distance, 0.0, inside))
    high = 1.0 if area >= 1.0 else float(optimize.brentq(distance, inside, 1.0))
    return low, high


def _scores(model: keras.Model, part: Any, score: Score | None) -> np.ndarray:
    x, y, _ = keras.utils.unpack_x_y_sample_weight(part)
    x, y = (
        None if values is None else keras.tree.map_structure(np.asarray, values)
        for values in (x, y)
    )
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
    return f"{value:.3f} ({interval[0]:.3f} to {interval[1]:.3f})"
