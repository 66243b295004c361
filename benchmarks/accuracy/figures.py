"""Thresholds and accuracy by epoch, as in the paper's figures 4 and 7."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from .context import Context
from .driver import STAGES, Stage, planned
from .experiments import EXPERIMENTS
from .methods import METHODS
from .results import Result

# The colours of Okabe and Ito, which the colour-blind tell apart; dashes for the second round.
_COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#999999")
_LINES = ("-", "--")
# What a panel shows of the accuracy, from the best down.
_HEIGHT = 0.25


def draw(context: Context, folder: Path, stages: tuple[Stage, ...] = STAGES) -> list[Path]:
    """Writes a figure of thresholds and one of accuracy for each table that has results.

    Args:
        context: what the plans depend on, with the results.
        folder: where the files go.
        stages: the stages, whose seeds the means go over.

    Returns:
        The files.
    """
    paths = []
    for name in ("paper", "tuned", "small"):
        runs = _results(context, name, stages)
        if not runs:
            continue
        for kind, function in (("thresholds", thresholds), ("accuracy", accuracies)):
            path = folder / f"{kind}_{name}.png"
            function(EXPERIMENTS[name].title, runs).savefig(path, dpi=120)
            paths.append(path)
    return paths


Results = dict[float, dict[str, list[Result]]]


def _results(context: Context, name: str, stages: tuple[Stage, ...]) -> Results:
    """The results of an experiment by budget and method."""
    results: Results = {}
    for entry in planned(context, tuple(stage for stage in stages if stage.experiment == name)):
        result = context.result(entry.run) if entry.run else None
        if result:
            by_method = results.setdefault(entry.epsilon, {})
            by_method.setdefault(entry.method, []).append(result)
    return dict(sorted(results.items()))


def thresholds(title: str, results: Results) -> Figure:
    """Clipping norm by epoch; those that follow the gradients below, as they are much larger.

    Args:
        title: of the experiment.
        results: by budget and method.
    """
    groups = [
        ("set beforehand", [m for m in METHODS if not METHODS[m].is_adaptive]),
        ("following the gradients", [m for m in METHODS if METHODS[m].is_adaptive]),
    ]
    drawn = {method for by_method in results.values() for method in by_method}
    groups = [(name, members) for name, members in groups if drawn & set(members)]
    figure, rows = _panels(len(groups), len(results), f"{title}: clipping norm by epoch")
    for row, (name, members) in zip(rows, groups, strict=True):
        for axes, (epsilon, by_method) in zip(row, results.items(), strict=True):
            axes.set_title(f"ε = {epsilon:g}, {name}", fontsize=10)
            for method in members:
                if METHODS[method].has_threshold and method in by_method:
                    _curve(axes, method, [r.threshold_by_epoch for r in by_method[method]])
            axes.set_ylim(bottom=0.0)
        row[0].set_ylabel("clipping norm (units of the gradient)")
    _legend(figure, rows)
    return figure


def accuracies(title: str, results: Results) -> Figure:
    """Test accuracy by epoch.

    Args:
        title: of the experiment.
        results: by budget and method.
    """
    figure, rows = _panels(1, len(results), f"{title}: test accuracy by epoch")
    for axes, (epsilon, by_method) in zip(rows[0], results.items(), strict=True):
        axes.set_title(f"ε = {epsilon:g}", fontsize=10)
        for method in METHODS:
            if method in by_method:
                _curve(axes, method, [r.accuracy_by_epoch for r in by_method[method]])
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        # Runs that fall to chance would press all others into one line.
        lowest, highest = axes.get_ylim()
        if lowest < highest - _HEIGHT:
            axes.set_ylim(highest - _HEIGHT, highest)
            axes.set_title(f"ε = {epsilon:g} (cut off below)", fontsize=10)
    rows[0][0].set_ylabel("test accuracy")
    _legend(figure, rows)
    return figure


def _panels(num_rows: int, num_columns: int, title: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(4.2 * num_columns + 2.2, 3.4 * num_rows + 0.6), layout="constrained")
    rows = figure.subplots(num_rows, num_columns, squeeze=False, sharex=True)
    for axes in rows.flat:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    for axes in rows[-1]:
        axes.set_xlabel("epoch")
    figure.suptitle(f"{title}\n(mean over seeds; band: least to greatest)", fontsize=11)
    return figure, rows


def _curve(axes: Any, method: str, curves: list[tuple[float, ...]]) -> None:
    number = list(METHODS).index(method)
    colour = _COLOURS[number % len(_COLOURS)]
    values = np.asarray(curves)
    epochs = np.arange(1, values.shape[1] + 1)
    axes.plot(
        epochs,
        values.mean(axis=0),
        label=METHODS[method].title,
        color=colour,
        linestyle=_LINES[number // len(_COLOURS)],
        linewidth=1.8,
    )
    axes.fill_between(
        epochs, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0.0
    )


def _legend(figure: Figure, rows: Any) -> None:
    entries: dict[str, Any] = {}
    for axes in rows.flat:
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, line)
    figure.legend(entries.values(), entries.keys(), loc="outside right center", frameon=False)
