"""The bar chart of the report."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from results import WALL
from suite import SUITE
from summary import Summary

# Okabe and Ito's colours, which the colour-blind tell apart; hatches for the peers.
_Bar = tuple[str, str, str, str]
_BARS: tuple[_Bar, ...] = (
    ("tensorflow", "keras_adaclip on TensorFlow", "#0072B2", ""),
    ("jax", "keras_adaclip on JAX", "#56B4E9", ""),
    ("torch", "keras_adaclip on PyTorch", "#009E73", ""),
    ("tensorflow-privacy", "TensorFlow Privacy, best way", "#E69F00", "//"),
    ("jax-privacy", "JAX Privacy, best way", "#F0E442", "\\\\"),
    ("opacus", "Opacus, best way", "#D55E00", "xx"),
)


def draw(summaries: Sequence[Summary], path: Path, title: str) -> None:
    """Draws ratios and milliseconds by the first clock, then ratios by the other.

    Args:
        summaries: of the records by each clock, in the order of the panels.
        path: where the picture goes.
        title: what was measured, and where.
    """
    measured = [summary for summary in summaries if summary.models]
    models = [name for name in SUITE if any(name in each.models for each in measured)]
    frameworks = {name for each in measured for name in (*each.backends, *each.peers)}
    bars = [bar for bar in _BARS if bar[0] in frameworks]
    panels = [(each, True) for each in measured]
    panels.insert(1, (measured[0], False))
    figure = Figure(figsize=(12, 1.5 + 3.4 * len(panels)), layout="constrained")
    all_axes = figure.subplots(len(panels), 1, sharex=True)
    with mpl.rc_context({"hatch.linewidth": 0.6}):
        for axes, (summary, is_ratio) in zip(all_axes, panels, strict=True):
            _panel(axes, summary, models, bars, is_ratio)
        labels = [textwrap.fill(SUITE[model].title, 15) for model in models]
        all_axes[-1].set_xticks(range(len(models)), labels, fontsize=9)
        missing = [f"{each.clock}: not measured yet" for each in summaries if not each.models]
        notes = [
            "shorter is better",
            "×: not measured",
            *([] if measured[0].is_of_gpu else missing),
        ]
        figure.suptitle(f"{title}\n{'; '.join(notes)}")
        handles = all_axes[0].get_legend_handles_labels()
        figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(path, dpi=130)


def _panel(
    axes: Axes, summary: Summary, models: list[str], bars: list[_Bar], is_ratio: bool
) -> None:
    """Bars of ratios start at the plain step: what is faster than that hangs below the line."""
    bottom = 1.0 if is_ratio else 0.0
    width = 0.84 / len(bars)
    for index, (framework, label, colour, hatch) in enumerate(bars):
        offset = (index - (len(bars) - 1) / 2) * width
        values = [_value(summary, model, framework, is_ratio) for model in models]
        places = [position + offset for position in range(len(models))]
        style = {"color": colour, "hatch": hatch, "edgecolor": "black", "linewidth": 0.4}
        heights = [float("nan") if value is None else value - bottom for value in values]
        axes.bar(places, heights, width, bottom=bottom, label=label, **style)
        for place, value in zip(places, values, strict=True):
            if value is None:
                height, transform = (
                    (1.03, axes.transData) if is_ratio else (0.01, axes.get_xaxis_transform())
                )
                axes.text(place, height, "×", ha="center", fontsize=9, transform=transform)
    if is_ratio:
        axes.axhline(1.0, color="black", linewidth=1.2)
        _finish(axes, "private / plain step of the\nsame framework (log)", "×")
    else:
        _finish(axes, "time of a private step\n(ms, log)", "")
    where = ", all cores" if summary.clock == WALL and not summary.is_of_gpu else ""
    axes.set_title(summary.clock + where, loc="left", fontsize=10)


def _value(summary: Summary, model: str, framework: str, is_ratio: bool) -> float | None:
    """Of the fastest private way: its ratio to the plain step, or milliseconds."""
    best = summary.fastest(model, [framework])
    if best is None:
        return None
    return summary.ratio(model, framework, best.way) if is_ratio else best.milliseconds


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
