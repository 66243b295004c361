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
from keras_adaclip.plots.canvas import BLUE, DPI, GREEN, GREY, ORANGE, Canvas, draw_curve, label

_NUM_BINS = 40


def audit(
    found: OneRunAudit,
    path: str | Path | None = None,
    title: str | None = None,
    *,
    ax: Any = None,
    dpi: float = DPI,
) -> Any:
    """Draw the scores of the canaries, in and out, and the bound by the number of guesses.

    Args:
        found: The result of `keras_adaclip.audit.one_run`, or `AuditCallback.result`.
        path: The file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: The title; None takes one that says what is drawn (none on given axes), `""` none.
        ax: Axes of matplotlib to draw on, one for each panel; None makes a new figure.
        dpi: Dots per inch of a new figure and of the file, a positive number.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is missing.
        TypeError: If `ax` holds anything but axes.
        ValueError: If `ax` has another number of axes than the figure has panels, or `dpi` is not
            positive.
    """
    canvas = Canvas(("scores", "bounds"), ax, dpi)
    scores, bounds = canvas.axes
    finite = np.isfinite(found.scores)
    edges = np.histogram_bin_edges(found.scores[finite], _NUM_BINS)
    for is_member, name, colour in ((True, "trained on", BLUE), (False, "left out", ORANGE)):
        values = found.scores[finite & (found.is_member == is_member)]
        scores.hist(values, edges, alpha=0.6, color=colour, label=name)
    label(scores, "score (by how much the loss fell)", "number of canaries", integers=False)
    scores.locator_params(axis="y", integer=True)

    numbers, lower = _bounds(found)
    draw_curve(bounds, numbers, lower, "each number alone", BLUE, marker=None)
    point, reported = [found.num_guesses], f"reported: {found.epsilon_lower_bound:.2f}"
    bounds.scatter(point, [found.epsilon_lower_bound], color=GREEN, zorder=3, label=reported)
    if np.isfinite(found.claimed_epsilon):
        claimed = f"accountant: {found.claimed_epsilon:.2f}"
        bounds.axhline(found.claimed_epsilon, color=ORANGE, linestyle="--", label=claimed)
    bounds.set_ylim(bottom=0.0)
    at_least = f"epsilon is at least ({100 * found.confidence:.4g}% confidence)"
    label(bounds, "number of guesses", at_least)
    default = f"Audit by one run: epsilon is at least {found.epsilon_lower_bound:.2f}"
    return canvas.finish(path, title, default)


def membership_inference(
    found: MembershipInference,
    path: str | Path | None = None,
    title: str | None = None,
    *,
    ax: Any = None,
    dpi: float = DPI,
) -> Any:
    """Draw the ROC curve of an attack on logarithmic axes, which show its left end.

    Args:
        found: The result of `keras_adaclip.audit.membership_inference`.
        path: The file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: The title; None takes one that says what is drawn (none on given axes), `""` none.
        ax: Axes of matplotlib to draw on, one for each panel; None makes a new figure.
        dpi: Dots per inch of a new figure and of the file, a positive number.

    Returns:
        The matplotlib figure.

    Raises:
        ImportError: If matplotlib is missing.
        TypeError: If `ax` holds anything but axes.
        ValueError: If `ax` has another number of axes than the figure has panels, or `dpi` is not
            positive.
    """
    canvas = Canvas(("ROC curve",), ax, dpi, width=5.0)
    (axes,) = canvas.axes
    least = 1.0 / max(len(found.member_scores), len(found.non_member_scores))
    thresholds = np.unique(np.concatenate([found.member_scores, found.non_member_scores]))
    shares = [
        1.0 - np.searchsorted(np.sort(scores), thresholds, side="left") / len(scores)
        for scores in (found.non_member_scores, found.member_scores)
    ]
    draw_curve(axes, shares[0], shares[1], f"attack (area {found.auc:.3f})", BLUE, marker=None)
    axes.plot([least, 1], [least, 1], color=GREY, linestyle="--", label="guessing (area 0.5)")
    points = [point for point in found.points if point.false_positive_rate > 0]
    if points:
        at = [point.false_positive_rate for point in points]
        low, high = np.maximum([point.true_positive_interval for point in points], least).T
        axes.vlines(
            at,
            low,
            high,
            GREEN,
            linewidth=3,
            zorder=3,
            label=f"{100 * found.confidence:.4g}% intervals",
        )
    axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1))
    mistaken = "share of non-members taken for members"
    label(axes, mistaken, "share of members found", integers=False)
    return canvas.finish(path, title, "Membership inference by the loss")


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
