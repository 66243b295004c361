"""The trials of a search with keras-tuner, and their scores."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip.plots.canvas import BLUE, GREEN, GREY, ORANGE, finished, label, panels

_MOST_HYPERPARAMETERS = 4


def search(tuner: Any, path: str | Path | None = None, title: str | None = None) -> Any:
    """Draw the norms of a greedy search by epoch, or the trials of another search.

    Args:
        tuner: A `GreedyClipTuner`, or another keras-tuner tuner, with finished trials.
        path: The file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: The title of the figure.

    Returns:
        The matplotlib figure. For a greedy search it has a panel with the norms that were tried,
        the best one of each epoch and the closest power law, and a panel with the objective. For
        another search it has a panel with the objective of each trial and the best so far, and one
        for each of the first four hyperparameters that were varied.

    Raises:
        ImportError: If matplotlib is missing.
        ValueError: If there is nothing to plot, as after a `PrivateSearch`, which releases nothing
            but the best run.
    """
    if hasattr(tuner, "best_schedule"):
        return finished(_greedy(tuner), path, title)
    if hasattr(tuner, "privacy_spent"):
        raise ValueError(
            "A private search keeps all but its best run secret: there is nothing to plot. "
            f"Received: tuner={tuner!r}"
        )
    return finished(_trials(tuner), path, title)


def _greedy(tuner: Any) -> Any:
    """Return the figure of a greedy search."""
    epochs = tuner.searched_epochs()
    if not epochs:
        raise ValueError("The search has finished no epoch that could be plotted.")
    numbers = range(1, len(epochs) + 1)
    figure, (norms, scores) = panels(2)
    for axes, tried, best in ((norms, "thresholds", "threshold"), (scores, "scores", "score")):
        for number, epoch in enumerate(epochs, 1):
            values = getattr(epoch, tried)
            axes.scatter([number] * len(values), values, color=GREY, s=8, alpha=0.4, zorder=1)
        values = [getattr(epoch, best) for epoch in epochs]
        axes.plot(numbers, values, color=BLUE, marker="o", linewidth=2, label="best")
    if len(epochs) > 1:
        trend = tuner.trend()
        values = [trend.initial_value / number**trend.power for number in numbers]
        words = f"{trend.initial_value:.2g} / epoch^{trend.power:.2g}"
        norms.plot(numbers, values, color=ORANGE, linestyle="--", linewidth=2, label=words)
    label(norms, "epoch", "clipping norm (grey: tried)")
    label(scores, "epoch", tuner.oracle.objective.name.replace("_", " "))
    return figure


def _trials(tuner: Any) -> Any:
    """Return the figure of a search by trials and hyperparameters."""
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
    figure, (by_trial, *others) = panels(1 + len(varied))
    numbers = range(1, len(trials) + 1)
    scores = [score for _, score in trials]
    better = np.maximum if oracle.objective.direction == "max" else np.minimum
    by_trial.scatter(numbers, scores, color=GREEN, s=20, label="trial")
    so_far = better.accumulate(scores)
    by_trial.step(numbers, so_far, color=BLUE, where="post", linewidth=2, label="best so far")
    label(by_trial, "trial", oracle.objective.name.replace("_", " "))
    for axes, name in zip(others, varied, strict=True):
        shown = [(chosen[name], score) for chosen, score in trials if name in chosen]
        if any(isinstance(value, str | bool) for value in values[name]):
            shown = [(str(value), score) for value, score in shown]
        elif min(values[name]) > 0 and max(values[name]) > 10.0 * min(values[name]):
            axes.set_xscale("log")
        axes.scatter(*zip(*shown, strict=True), color=GREEN, s=20)
        label(axes, name.replace("_", " "), "", integers=False, legend=False)
    return figure
