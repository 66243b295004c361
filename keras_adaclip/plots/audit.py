"""Figures of audits: what an attacker saw, and how much it told."""

from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip.audit import (
    MembershipInference,
    OneRunAudit,
    by_rising_score,
    epsilon_lower_bound,
)
from keras_adaclip.plots.canvas import BLUE, GREEN, GREY, ORANGE, finished, panels

_NUM_BINS = 40


def audit(found: OneRunAudit, path: str | Path | None = None, title: str | None = None) -> Any:
    """The scores of the canaries, in and out, and the bound by the number of guesses.

    Args:
        found: of `keras_adaclip.audit.one_run`, or `AuditCallback.result`.
        path: file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: title of the figure.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: where matplotlib is missing.
    """
    figure, (scores, bounds) = panels(2)
    finite = found.scores[np.isfinite(found.scores)]
    edges = np.linspace(finite.min(), finite.max(), _NUM_BINS + 1) if len(finite) else _NUM_BINS
    for is_member, name, colour in ((True, "trained on", BLUE), (False, "left out", ORANGE)):
        values = found.scores[(found.is_member == is_member) & np.isfinite(found.scores)]
        scores.hist(values, edges, alpha=0.6, color=colour, label=name)
    scores.set_xlabel("score (by how much the loss fell)")
    scores.set_ylabel("canaries")
    scores.legend(frameon=False)

    numbers, lower = _bounds(found)
    bounds.plot(numbers, lower, color=BLUE, linewidth=2, label="each number alone")
    bounds.scatter(
        [found.num_guesses],
        [found.epsilon_lower_bound],
        color=GREEN,
        zorder=3,
        label=f"reported: {found.epsilon_lower_bound:.2f}",
    )
    if np.isfinite(found.claimed_epsilon):
        bounds.axhline(
            found.claimed_epsilon,
            color=ORANGE,
            linestyle="--",
            label=f"accountant: {found.claimed_epsilon:.2f}",
        )
    bounds.set_xlabel("guesses")
    bounds.set_ylabel(f"epsilon is at least ({100 * found.confidence:.4g}%)")
    bounds.set_ylim(bottom=0.0)
    bounds.grid(alpha=0.3)
    bounds.legend(frameon=False)
    return finished(figure, path, title)


def membership_inference(
    found: MembershipInference, path: str | Path | None = None, title: str | None = None
) -> Any:
    """The ROC curve of an attack, on logarithmic axes, where its left end can be seen.

    Args:
        found: of `keras_adaclip.audit.membership_inference`.
        path: file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: title of the figure.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: where matplotlib is missing.
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
            axes.plot(
                [point.false_positive_rate] * 2,
                np.maximum(point.true_positive_interval, least),
                color=GREEN,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(least, 1)
    axes.set_ylim(least, 1)
    axes.set_xlabel("non-members mistaken for members")
    axes.set_ylabel("members found")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="lower right")
    return finished(figure, path, title)


def _bounds(found: OneRunAudit) -> tuple[np.ndarray, list[float]]:
    """Numbers of guesses, and the bound that each would give, were it the only one tried."""
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
