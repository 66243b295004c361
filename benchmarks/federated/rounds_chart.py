"""The chart of rounds: times by model above, how they grow below."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import speed_path  # noqa: F401
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from plans import COHORTS, MODELS, SERIES
from rounds_summary import RoundsSummary
from workloads import Workload

# Okabe and Ito's colours, as in the benchmark of steps; loops are hatched and dotted.
_DRAWN: tuple[tuple[str, str, str, str, str], ...] = (
    ("tensorflow", "ours", "keras_adaclip on TensorFlow", "#0072B2", ""),
    ("jax", "ours", "keras_adaclip on JAX", "#56B4E9", ""),
    ("torch", "ours", "keras_adaclip on PyTorch", "#009E73", ""),
    ("tensorflow", "loop", "loop in TensorFlow", "#0072B2", "//"),
    ("jax", "loop", "loop in JAX", "#56B4E9", "//"),
    ("torch", "loop", "loop in PyTorch", "#009E73", "//"),
    ("pfl", "private", "pfl-research", "#E69F00", "\\\\"),
    ("flower", "private", "Flower", "#D55E00", "xx"),
)
_AXES: dict[str, tuple[str, Callable[[Workload], int]]] = {
    "cohort": ("clients a round", lambda workload: workload.cohort_size),
    "population": ("clients in all", lambda workload: workload.num_clients),
    "model": ("weights of the model", lambda workload: workload.about.num_trainable),
}


def draw(summary: RoundsSummary, path: Path, title: str) -> None:
    """Draws bars of milliseconds above, and below a picture for each thing that grows.

    Args:
        summary: of the records.
        path: where the picture goes.
        title: what was measured, and where.
    """
    figure = Figure(figsize=(12, 9), layout="constrained")
    places = figure.subplot_mosaic([["rounds"] * len(SERIES), [*SERIES]], height_ratios=[1.2, 1])
    with mpl.rc_context({"hatch.linewidth": 0.6}):
        _bars(places["rounds"], summary)
        for name in SERIES:
            _lines(places[name], summary, name)
        figure.suptitle(f"{title}\nshorter and lower is better")
        figure.legend(
            *places["rounds"].get_legend_handles_labels(),
            loc="outside lower center",
            ncols=3,
            frameon=False,
        )
        figure.savefig(path, dpi=130)


def _bars(axes: Axes, summary: RoundsSummary) -> None:
    workloads = [Workload(model, cohort) for model in MODELS for cohort in COHORTS]
    workloads = [workload for workload in workloads if summary.measured(workload)]
    drawn = [bar for bar in _DRAWN if bar[0] in (*summary.backends, *summary.peers)]
    width = 0.84 / max(len(drawn), 1)
    for index, (framework, way, label, colour, hatch) in enumerate(drawn):
        offset = (index - (len(drawn) - 1) / 2) * width
        times = [summary.milliseconds(each, framework, way) for each in workloads]
        heights = [float("nan") if time is None else time for time in times]
        style = {"color": colour, "hatch": hatch, "edgecolor": "black", "linewidth": 0.4}
        places = [place + offset for place in range(len(workloads))]
        axes.bar(places, heights, width, label=label, **style)
    labels = [f"{each.about.title}, {each.cohort_size} clients" for each in workloads]
    axes.set_xticks(range(len(workloads)), [textwrap.fill(label, 18) for label in labels])
    _finish(axes, "milliseconds a round (log)")
    axes.tick_params(axis="x", length=0)


def _lines(axes: Axes, summary: RoundsSummary, name: str) -> None:
    label, size = _AXES[name]
    for framework, way, _, colour, hatch in _DRAWN:
        found = [
            (size(each), time)
            for each in SERIES[name]
            if (time := summary.milliseconds(each, framework, way)) is not None
        ]
        if len(found) > 1:
            sizes, times = zip(*found, strict=True)
            style = ":" if way == "loop" else "--" if hatch else "-"
            axes.plot(sizes, times, style, color=colour, marker="o", markersize=3.5)
    if not axes.lines:
        axes.set_axis_off()
        return
    axes.set_xscale("log")
    axes.set_xlabel(label)
    _finish(axes, "milliseconds a round (log)" if name == next(iter(SERIES)) else "")


def _finish(axes: Axes, label: str) -> None:
    axes.set_yscale("log")
    axes.set_ylabel(label)
    axes.grid(axis="y", which="major", color="0.85", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
