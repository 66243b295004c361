"""The trials of a search with keras-tuner, and their scores."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip.plots.canvas import BLUE, DPI, GREY, ORANGE, Canvas, draw_curve, label

_MOST_HYPERPARAMETERS = 4


def search(
    tuner: Any,
    path: str | Path | None = None,
    title: str | None = None,
    *,
    ax: Any = None,
    dpi: float = DPI,
) -> Any:
    """Draw the norms of a greedy search by epoch, or the trials of another search.

    Args:
        tuner: A `GreedyClipTuner`, or another keras-tuner tuner, with finished trials.
        path: The file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: The title; None takes one that says what is drawn (none on given axes), `""` none.
        ax: Axes of matplotlib to draw on, one for each panel; None makes a new figure.
        dpi: Dots per inch of a new figure and of the file, a positive number.

    Returns:
        The matplotlib figure. For a greedy search it has a panel with the norms that were tried,
        the best one of each epoch and the closest power law, and a panel with the objective. For
        another search it has a panel with the objective of each trial and the best so far, and one
        for each of the first four hyperparameters that were varied; a star marks the best trial.

    Raises:
        ImportError: If matplotlib is missing.
        TypeError: If `ax` holds anything but axes.
        ValueError: If there is nothing to plot, as after a `PrivateSearch`, which releases nothing
            but the best run; or if `ax` has another number of axes than the figure has panels.
    """
    if hasattr(tuner, "best_schedule"):
        return _greedy(tuner, ax, dpi).finish(path, title, "Greedy search of clipping norms")
    if hasattr(tuner, "privacy_spent"):
        raise ValueError(
            "A private search keeps all but its best run secret: there is nothing to plot. "
            f"Received: tuner={tuner!r}"
        )
    return _trials(tuner, ax, dpi).finish(path, title, "Trials of the search")


def _greedy(tuner: Any, ax: Any, dpi: float) -> Canvas:
    """Draw a greedy search."""
    epochs = tuner.searched_epochs()
    if not epochs:
        raise ValueError("The search has finished no epoch that could be plotted.")
    numbers = range(1, len(epochs) + 1)
    canvas = Canvas(("clipping norms", "scores"), ax, dpi)
    norms, scores = canvas.axes
    for axes, tried, best in ((norms, "thresholds", "threshold"), (scores, "scores", "score")):
        pairs = [(i, each) for i, epoch in enumerate(epochs, 1) for each in getattr(epoch, tried)]
        axes.scatter(*zip(*pairs, strict=True), color=GREY, s=8, alpha=0.5, zorder=1, label="tried")
        draw_curve(axes, numbers, [getattr(epoch, best) for epoch in epochs], "best", BLUE)
    if len(epochs) > 1:
        trend = tuner.trend()
        values = [trend.initial_value / number**trend.power for number in numbers]
        words = f"{trend.initial_value:.2g} / epoch^{trend.power:.2g}"
        draw_curve(norms, numbers, values, words, ORANGE, linestyle="--", marker=None)
    label(norms, "epoch", "clipping norm (L2)", is_crowded=True)
    label(scores, "epoch", _objective(tuner))
    return canvas


def _trials(tuner: Any, ax: Any, dpi: float) -> Canvas:
    """Draw a search by trials and hyperparameters."""
    oracle = tuner.oracle
    trials = [
        (trial.hyperparameters.values, trial.score)
        for trial in (oracle.trials[name] for name in oracle.start_order)
        if trial.score is not None and math.isfinite(trial.score)
    ]
    if not trials:
        raise ValueError("The search has no finished trial that could be plotted.")
    # Hyperparameters that were varied, but for keras-tuner's own.
    names = dict.fromkeys(name for chosen, _ in trials for name in chosen if "/" not in name)
    values = {name: {chosen[name] for chosen, _ in trials if name in chosen} for name in names}
    varied = [name for name in names if len(values[name]) > 1][:_MOST_HYPERPARAMETERS]
    canvas = Canvas(("trials", *varied), ax, dpi)
    by_trial, *others = canvas.axes
    is_max = oracle.objective.direction == "max"
    scores = [score for _, score in trials]
    best = int(np.argmax(scores) if is_max else np.argmin(scores))
    numbers = range(1, len(trials) + 1)
    so_far = (np.maximum if is_max else np.minimum).accumulate(scores)
    by_trial.step(numbers, so_far, color=GREY, where="post", linewidth=2, label="best so far")
    _draw_trials(by_trial, list(zip(numbers, scores, strict=True)), (best + 1, scores[best]))
    label(by_trial, "trial", _objective(tuner), is_crowded=True)
    for axes, name in zip(others, varied, strict=True):
        shown = [(chosen.get(name), score) for chosen, score in trials]
        if any(isinstance(value, str | bool) for value in values[name]):
            shown = [(None if value is None else str(value), score) for value, score in shown]
        elif min(values[name]) > 0 and max(values[name]) > 10.0 * min(values[name]):
            axes.set_xscale("log")
        # A hyperparameter may belong to some trials only.
        _draw_trials(axes, [point for point in shown if point[0] is not None], shown[best])
        label(axes, name.replace("_", " "), _objective(tuner), integers=False, is_crowded=True)
    return canvas


def _draw_trials(axes: Any, points: list[tuple[Any, float]], best: tuple[Any, float]) -> None:
    """Draw the score of each trial, and a star for the best one if it has a place here."""
    axes.scatter(*zip(*points, strict=True), color=BLUE, s=20, label="trial")
    if best[0] is not None:
        star = {"marker": "*", "s": 160, "color": ORANGE, "edgecolor": "black", "zorder": 3}
        axes.scatter(*best, label=f"best: {best[1]:.4g}", **star)


def _objective(tuner: Any) -> str:
    """Return the name of the objective, in words."""
    return str(tuner.oracle.objective.name).replace("_", " ")
