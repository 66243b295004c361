"""Table and figures of `fashion_mnist.py`, as the paper's figures 5 and 6."""

import csv
import json
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, StrMethodFormatter

# Okabe and Ito's, which the colour-blind tell apart.
_COLOURS = ("#0072B2", "#56B4E9", "#000000", "#E69F00", "#D55E00")
_TITLES = {"quantile": "quantile {:g}", "fixed": "fixed norm {:g}"}
Rows = list[dict[str, Any]]
Choice = tuple[str, float]


def write_report(path: Path, folder: Path) -> list[Path]:
    """Writes `tables.md`, `accuracy.png` and `tracking.png`.

    Args:
        path: the file of runs.
        folder: folder of the files.

    Returns:
        The paths of the files.
    """
    with path.open(newline="") as file:
        rows: Rows = list(csv.DictReader(file))
    table = folder / "tables.md"
    table.write_text(tables(rows), encoding="utf-8")
    written = [table]
    for name, draw in (("accuracy", accuracy_figure), ("tracking", tracking_figure)):
        written.append(folder / f"{name}.png")
        draw(rows).savefig(written[-1], dpi=120)
    return written


def tables(rows: Rows) -> str:
    """Return tables of accuracy by choice and noise, and of how well quantiles were followed."""
    noises = _values(rows, "noise_multiplier")
    lines = [
        f"# Quantiles against fixed norms: {_data(rows)}",
        "",
        "Written by `python examples/federated/fashion_mnist.py`. Test accuracy in percent, the "
        "mean over the last hundred rounds; mean ± standard deviation over the seeds (runs).",
        "",
        "| clipping | " + " | ".join(f"noise {noise:g}" for noise in noises) + " |",
        "| --- |" + " --- |" * len(noises),
    ]
    for choice in _choices(rows):
        cells = [_accuracy(_chosen(rows, choice, noise)) for noise in noises]
        lines.append(f"| {_title(choice)} | " + " | ".join(cells) + " |")
    best = ["best fixed norm − median"]
    for noise in noises:
        fixed = [
            mean
            for choice in _choices(rows)
            if choice[0] == "fixed" and (mean := _mean(_chosen(rows, choice, noise))) is not None
        ]
        median = _mean(_chosen(rows, ("quantile", 0.5), noise))
        best.append("–" if median is None or not fixed else f"{max(fixed) - median:+.2f}")
    lines += ["| " + " | ".join(best) + " |", "", *_tracking_table(rows), ""]
    return "\n".join(lines)


def _tracking_table(rows: Rows) -> list[str]:
    lines = [
        "The true share of unclipped clients, by rounds (mean over seeds and amounts of noise; the "
        "norm begins at 0.1):",
        "",
        "| clipping | rounds 1 to 10 | 41 to 50 | last 10 |",
        "| --- | --- | --- | --- |",
    ]
    for choice in _choices(rows):
        if choice[0] != "quantile":
            continue
        shares = [_series(row, "clipped_by_epoch") for row in _chosen(rows, choice)]
        cells = []
        for epoch in (0, 4, -1):
            values = [1.0 - share[epoch] for share in shares if len(share) > abs(epoch)]
            cells.append(f"{statistics.fmean(values):.2f}" if values else "–")
        lines.append(f"| {_title(choice)} | " + " | ".join(cells) + " |")
    return lines


def accuracy_figure(rows: Rows) -> Figure:
    """Accuracy over noise: quantiles on the left, fixed norms on the right."""
    noises = _values(rows, "noise_multiplier")
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for axis, kind in zip(axes, _TITLES, strict=True):
        choices = [choice for choice in _choices(rows) if choice[0] == kind]
        for choice, colour in zip(choices, _COLOURS, strict=False):
            points = [(at, _mean(_chosen(rows, choice, n))) for at, n in enumerate(noises)]
            found = [(at, mean / 100.0) for at, mean in points if mean is not None]
            axis.plot(*zip(*found, strict=True), "o-", color=colour, label=_title(choice))
        axis.set_xticks(range(len(noises)), [f"{noise:g}" for noise in noises])
        axis.set_xlabel("noise multiplier")
        axis.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=1))
        axis.legend(fontsize="small")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("test accuracy")
    figure.suptitle(f"{_data(rows)}: private quantiles and fixed norms")
    return figure


def tracking_figure(rows: Rows) -> Figure:
    """Norm and true share of unclipped clients by round, for the quantiles, first seed."""
    figure = Figure(figsize=(9.0, 4.0), layout="constrained")
    norms, shares = figure.subplots(1, 2)
    noise = _values(rows, "noise_multiplier")[-1]
    choices = [choice for choice in _choices(rows) if choice[0] == "quantile"]
    for choice, colour in zip(choices, _COLOURS, strict=False):
        chosen = _chosen(rows, choice, noise)
        if not chosen:
            continue
        found = _series(chosen[0], "norm_by_epoch")
        rounds = [10 * (epoch + 1) for epoch in range(len(found))]
        norms.plot(rounds, found, color=colour, label=_title(choice))
        unclipped = [1.0 - share for share in _series(chosen[0], "clipped_by_epoch")]
        shares.plot(rounds, unclipped, color=colour, label=_title(choice))
        shares.axhline(choice[1], color=colour, linestyle=":", linewidth=1.0)
    norms.set_yscale("log")
    for tick in (norms.yaxis.set_major_formatter, norms.yaxis.set_minor_formatter):
        tick(StrMethodFormatter("{x:.2g}"))
    norms.set_ylabel("clipping norm")
    shares.set_ylabel("share of clients below it (true)")
    shares.yaxis.set_major_formatter(PercentFormatter(1.0))
    for axis in (norms, shares):
        axis.set_xlabel("round")
        axis.grid(alpha=0.3)
    figure.legend(*norms.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.suptitle(f"{_data(rows)}: what the private estimate follows, noise multiplier {noise:g}")
    return figure


def _data(rows: Rows) -> str:
    """The data that the runs were on."""
    return " and ".join(dict.fromkeys(row["data"] for row in rows))


def _choices(rows: Rows) -> list[Choice]:
    found = {(row["kind"], float(row["value"])) for row in rows}
    return sorted(found, key=lambda choice: (choice[0] != "quantile", choice[1]))


def _values(rows: Rows, name: str) -> list[float]:
    return sorted({float(row[name]) for row in rows})


def _chosen(rows: Rows, choice: Choice, noise: float | None = None) -> Rows:
    return [
        row
        for row in rows
        if (row["kind"], float(row["value"])) == choice
        and noise in (None, float(row["noise_multiplier"]))
    ]


def _accuracies(rows: Iterable[dict[str, Any]]) -> list[float]:
    return [100.0 * float(row["accuracy"]) for row in rows]


def _mean(rows: Rows) -> float | None:
    return statistics.fmean(_accuracies(rows)) if rows else None


def _accuracy(rows: Rows) -> str:
    values = _accuracies(rows)
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread} ({len(values)})"


def _series(row: dict[str, Any], name: str) -> list[float]:
    values: list[float] = json.loads(row[name])
    return values


def _title(choice: Choice) -> str:
    return _TITLES[choice[0]].format(choice[1])
