"""The bar chart of the report."""

import textwrap
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from suite import SUITE
from summary import Summary, kinds

# Okabe and Ito's colours, which the colour-blind tell apart; hatches for the peers.
_BARS: tuple[tuple[str, str, str, str], ...] = (
    ("tensorflow", "keras_adaclip on TensorFlow", "#0072B2", ""),
    ("jax", "keras_adaclip on JAX", "#56B4E9", ""),
    ("torch", "keras_adaclip on PyTorch", "#009E73", ""),
    ("tensorflow-privacy", "TensorFlow Privacy, best way", "#E69F00", "//"),
    ("jax-privacy", "JAX Privacy, best way", "#F0E442", "\\\\"),
    ("opacus", "Opacus, best way", "#D55E00", "xx"),
)


def draw(summary: Summary, path: Path, title: str) -> None:
    """Draws ratios above and milliseconds below, a group of bars for each model.

    Args:
        summary: of the records.
        path: where the picture goes.
        title: what was measured, and where.
    """
    drawn = [bar for bar in _BARS if bar[0] in (*summary.backends, *summary.peers)]
    figure = Figure(figsize=(12, 8.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    with mpl.rc_context({"hatch.linewidth": 0.6}):
        for index, (framework, label, colour, hatch) in enumerate(drawn):
            width = 0.84 / len(drawn)
            offset = (index - (len(drawn) - 1) / 2) * width
            ratios, milliseconds = _values(summary, framework)
            style = {"color": colour, "hatch": hatch, "edgecolor": "black", "linewidth": 0.4}
            places = [position + offset for position in range(len(summary.models))]
            # Bars start at the plain step: what is faster than that hangs below the line.
            heights = [ratio - 1.0 for ratio in ratios]
            above.bar(places, heights, width, bottom=1.0, label=label, **style)
            below.bar(places, milliseconds, width, **style)
            _mark_missing(above, below, places, ratios)
        above.axhline(1.0, color="black", linewidth=1.2)
        _finish(above, "private step / plain step\nof the same framework (log)", "×")
        _finish(below, "time of a private step\n(ms, log)", "")
        below.set_xticks(
            range(len(summary.models)),
            [textwrap.fill(SUITE[model].title, 15) for model in summary.models],
            fontsize=9,
        )
        figure.suptitle(f"{title}\nshorter is better; ×: not measured")
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path, dpi=130)


def _values(summary: Summary, framework: str) -> tuple[list[float], list[float]]:
    """Ratios and milliseconds by model of the fastest private way; not a number without any."""
    ratios, milliseconds = [], []
    for model in summary.models:
        best = summary.fastest(model, [framework])
        way = kinds(framework)[0] if best is None else best.way
        ratio = None if best is None else summary.ratio(model, framework, way)
        ratios.append(float("nan") if ratio is None else ratio)
        milliseconds.append(float("nan") if best is None else best.milliseconds)
    return ratios, milliseconds


def _mark_missing(above: Axes, below: Axes, places: list[float], ratios: list[float]) -> None:
    for place, ratio in zip(places, ratios, strict=True):
        if ratio != ratio:
            above.text(place, 1.03, "×", ha="center", va="bottom", fontsize=9)
            below.text(place, 0.01, "×", ha="center", transform=below.get_xaxis_transform())


def _finish(axes: Axes, label: str, unit: str) -> None:
    axes.set_yscale("log")
    axes.set_ylabel(label)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 0.8) if unit else low * 0.6, high * 1.15)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{unit}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", which="major", color="0.85", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(axis="x", length=0)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
