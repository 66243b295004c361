"""Figures of audits: the scores that an attacker saw, and the bounds that follow."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip.audit import (
    MembershipInference,
    OneRunAudit,
    by_rising_score,
    epsilon_lower_bound,
)
from keras_adaclip.plots.canvas import BLUE, GREEN, GREY, ORANGE, finished, label, panels

_NUM_BINS = 40


def audit(found: OneRunAudit, path: str | Path | None = None, title: str | None = None) -> Any:
    """Draw the scores of the canaries, in and out, and the bound by the number of guesses.

    Args:
        found: The result of `keras_adaclip.audit.one_run`, or `AuditCallback.result`.
        path: The file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: The title of the figure.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is missing.
    """
    figure, (scores, bounds) = panels(2)
    finite = np.isfinite(found.scores)
    edges = np.histogram_bin_edges(found.scores[finite], _NUM_BINS)
    for is_member, name, colour in ((True, "trained on", BLUE), (False, "left out", ORANGE)):
        values = found.scores[finite & (found.is_member == is_member)]
        scores.hist(values, edges, alpha=0.6, color=colour, label=name)
    label(scores, "score (by how much the loss fell)", "canaries", integers=False)

    numbers, lower = _bounds(found)
    bounds.plot(numbers, lower, color=BLUE, linewidth=2, label="each number alone")
    point, reported = [found.num_guesses], f"reported: {found.epsilon_lower_bound:.2f}"
    bounds.scatter(point, [found.epsilon_lower_bound], color=GREEN, zorder=3, label=reported)
    if np.isfinite(found.claimed_epsilon):
        claimed = f"accountant: {found.claimed_epsilon:.2f}"
        bounds.axhline(found.claimed_epsilon, color=ORANGE, linestyle="--", label=claimed)
    bounds.set_ylim(bottom=0.0)
    label(bounds, "guesses", f"epsilon is at least ({100 * found.confidence:.4g}%)")
    return finished(figure, path, title)


def membership_inference(
    found: MembershipInference, path: str | Path | None = None, title: str | None = None
) -> Any:
    """Draw the ROC curve of an attack on logarithmic axes, which show its left end.

    Args:
        found: The result of `keras_adaclip.audit.membership_inference`.
        path: The file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: The title of the figure.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is missing.
    """
    figure, (axes,) = panels(1)
    least = 1.0 / max(len(found.member_scores), len(found.non_member_scores))
    thresholds = np.unique(np.concatenate([found.member_scores, found.non_member_scores]))
    shares = [
        1.0 - np.searchsorted(np.sort(scores), thresholds, side="left") / len(scores)
        for scores in (found.non_member_scores, found.member_scores)
    ]
    axes.plot(*shares, color=BLUE, linewidth=2, label=f"attack (area {found.auc:.3f})")
    axes.plot([least, 1], [least, 1], color=GREY, linestyle="--", label="guessing (area 0.5)")
    for point in found.points:
        if point.false_positive_rate > 0:
            interval = np.maximum(point.true_positive_interval, least)
            axes.plot([point.false_positive_rate] * 2, interval, color=GREEN)
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
    label(axes, "non-members mistaken for members", "members found", integers=False)
    return finished(figure, path, title)


def _bounds(found: OneRunAudit) -> tuple[np.ndarray, list[float]]:
    """Return numbers of guesses, and the bound that each gives if it is the only one tried."""
    ascending = by_rising_score(found.scores, found.is_member)
    right_out, right_in = np.cumsum(~ascending), np.cumsum(ascending[::-1])
    numbers = np.unique(np.linspace(2, found.num_canaries, 60).astype(int) // 2 * 2)
    lower = [
        epsilon_lower_bound(
            found.num_canaries,
            int(number),
            int(right_out[number // 2 - 1] + right_in[number // 2 - 1]),
            found.delta,
            found.confidence,
        )
        for number in numbers
    ]
    return numbers, lower
