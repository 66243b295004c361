"""What a search with keras-tuner has tried, and what came of it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_adaclip.plots.canvas import BLUE, GREEN, GREY, ORANGE, finished, panels

_MOST_HYPERPARAMETERS = 4
_MOST_DECADES_ON_A_LINE = 1.0


def search(tuner: Any, path: str | Path | None = None, title: str | None = None) -> Any:
    """Thresholds and objective by epoch of a greedy search; else the objective by trial and choice.

    Args:
        tuner: a `GreedyClipTuner`, or another keras-tuner tuner, with finished trials.
        path: file to write the figure to (PNG, PDF or SVG by its suffix); None writes none.
        title: title of the figure.

    Returns:
        The matplotlib figure: of a greedy search a panel with the thresholds that were tried, the
        best one of each epoch and the closest power law, and a panel with the objective; of
        another one a panel with the objective of each trial and the best so far, and one for each
        of the first four hyperparameters that were varied.

    Raises:
        ImportError: where matplotlib is missing.
        ValueError: where there is nothing to plot, as after a `PrivateSearch`, of which nothing but
            the best run may leave.
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
    epochs = tuner.searched_epochs()
    if not epochs:
        raise ValueError("The search has finished no epoch that could be plotted.")
    numbers = range(1, len(epochs) + 1)
    figure, (norms, scores) = panels(2)
    for number, epoch in zip(numbers, epochs, strict=True):
        at = [number] * len(epoch.thresholds)
        # What was tried stands behind what was found.
        norms.scatter(at, epoch.thresholds, color=GREY, s=8, alpha=0.4, zorder=1)
        scores.scatter(at, epoch.scores, color=GREY, s=8, alpha=0.4, zorder=1)
    best = [epoch.threshold for epoch in epochs]
    norms.plot(numbers, best, color=BLUE, marker="o", linewidth=2, label="best")
    if len(epochs) > 1:
        trend = tuner.trend()
        values = [trend.initial_value / number**trend.power for number in numbers]
        label = f"{trend.initial_value:.2g} / epoch^{trend.power:.2g}"
        norms.plot(numbers, values, color=ORANGE, linestyle="--", linewidth=2, label=label)
    scores.plot(
        numbers,
        [epoch.score for epoch in epochs],
        color=BLUE,
        marker="o",
        linewidth=2,
        label="best",
    )
    norms.set_ylabel("clipping norm (grey: tried)")
    scores.set_ylabel(_in_words(tuner.oracle.objective.name))
    for axes in (norms, scores):
        axes.set_xlabel("epoch")
        axes.locator_params(axis="x", integer=True)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    return figure


class _Trial(NamedTuple):
    """A finished trial: its hyperparameters by name, and its score."""

    values: dict[str, Any]
    score: float


def _trials(tuner: Any) -> Any:
    oracle = tuner.oracle
    trials = [
        _Trial(trial.hyperparameters.values, trial.score)
        for trial in (oracle.trials[name] for name in oracle.start_order)
        if trial.score is not None and math.isfinite(trial.score)
    ]
    if not trials:
        raise ValueError("The search has no finished trial that could be plotted.")
    names = _varied(trials)[:_MOST_HYPERPARAMETERS]
    figure, (by_trial, *others) = panels(1 + len(names))
    numbers = range(1, len(trials) + 1)
    scores = [trial.score for trial in trials]
    better = max if oracle.objective.direction == "max" else min
    so_far = [better(scores[:number]) for number in numbers]
    by_trial.scatter(numbers, scores, color=GREEN, s=20, label="trial")
    by_trial.step(numbers, so_far, color=BLUE, where="post", linewidth=2, label="best so far")
    by_trial.set_xlabel("trial")
    by_trial.locator_params(axis="x", integer=True)
    by_trial.legend(frameon=False)
    for axes, name in zip(others, names, strict=True):
        _show_choice(axes, name, trials)
    for axes in (by_trial, *others):
        axes.grid(alpha=0.3)
    by_trial.set_ylabel(_in_words(oracle.objective.name))
    return figure


def _show_choice(axes: Any, name: str, trials: Sequence[_Trial]) -> None:
    """The scores over one hyperparameter, where it was a choice at all."""
    shown = [trial for trial in trials if name in trial.values]
    values = [trial.values[name] for trial in shown]
    if any(isinstance(value, str | bool) for value in values):
        values = [str(value) for value in values]
    elif min(values) > 0 and math.log10(max(values) / min(values)) > _MOST_DECADES_ON_A_LINE:
        axes.set_xscale("log")
    axes.scatter(values, [trial.score for trial in shown], color=GREEN, s=20)
    axes.set_xlabel(_in_words(name))


def _varied(trials: Sequence[_Trial]) -> list[str]:
    """The hyperparameters that have more than one value, keras-tuner's own left out."""
    values: dict[str, set[Any]] = {}
    for trial in trials:
        for name, value in trial.values.items():
            if "/" not in name:
                values.setdefault(name, set()).add(value)
    return [name for name, different in values.items() if len(different) > 1]


def _in_words(name: str) -> str:
    return name.replace("_", " ")
