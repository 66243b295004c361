"""The report in Markdown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from framework import WAYS
from suite import SUITE
from summary import RIVALS, Summary, geometric_mean, kinds

NAMES = {
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "torch": "PyTorch",
    "opacus": "Opacus",
    "jax-privacy": "JAX Privacy",
    "tensorflow-privacy": "TensorFlow Privacy",
}
"""What the reader calls the frameworks."""

Cell = Callable[[str, str, str], float | None]
Column = tuple[str, str]


def markdown(summary: Summary, machine: dict[str, Any], clock: str) -> str:
    """The whole report.

    Args:
        summary: of the records.
        machine: from `results.machine`.
        clock: how the times were taken.
    """
    parts = [
        "# A private step beside a plain one",
        conditions(summary.versions, machine, clock, "speed/report.py")
        + " On TensorFlow a number is that of the faster of without XLA and with XLA, for the "
        "plain step as for the private ones.",
        *_ratios(summary),
        *_milliseconds(summary),
        *_peers(summary),
        *_winners(summary),
        *_xla(summary),
        *_memory(summary),
        *_failures(summary),
    ]
    return "\n\n".join(parts) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown.

    Args:
        head: titles of the columns.
        rows: cells.
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def conditions(
    versions: Mapping[str, Mapping[str, str]], machine: dict[str, Any], clock: str, script: str
) -> str:
    """The machine, the clock and the packages of the measurements, and what wrote the report.

    Args:
        versions: the packages of each framework, with their versions.
        machine: from `results.machine`.
        clock: how the times were taken.
        script: the script that writes the report.
    """
    packages: dict[str, str] = {}
    for of_framework in versions.values():
        packages = {**of_framework, **packages}
    accelerator = machine.get("accelerator")
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gigabytes']} GB"
        f"{f', {accelerator}' if accelerator else ''}, {machine['system']}. Clock: {clock}. "
        f"{', '.join(f'{name} {number}' for name, number in packages.items())} (where "
        "environments differ, the first).\n\n"
        f"Written by `python benchmarks/{script}` from `results.json`; how it was measured stands "
        "in `README.md`."
    )


def _private_columns(summary: Summary) -> list[Column]:
    return [(name, kind) for name in summary.backends for kind in kinds(name) if kind != "plain"]


def _by_model(summary: Summary, columns: list[Column], cell: Cell, digits: int) -> list[list[str]]:
    return [
        [SUITE[model].title, *(number(cell(model, *column), digits) for column in columns)]
        for model in summary.models
    ]


def number(value: float | None, digits: int) -> str:
    """A cell; a dash where nothing was measured.

    Args:
        value: the number.
        digits: after the point.
    """
    return "–" if value is None else f"{value:,.{digits}f}"


def _with_means(summary: Summary, columns: list[Column], cell: Cell) -> list[list[str]]:
    """Rows of ratios, then their geometric means and the largest."""
    rows = _by_model(summary, columns, cell, 2)
    values = [
        [value for model in summary.models if (value := cell(model, *column)) is not None]
        for column in columns
    ]
    means = [geometric_mean(each) for each in values]
    rows.append(["**geometric mean**", *(f"**{number(mean, 2)}**" for mean in means)])
    rows.append(["largest", *(number(max(each, default=None), 2) for each in values)])
    return rows


def _ratios(summary: Summary) -> list[str]:
    columns = _private_columns(summary)
    if not columns:
        return []
    head = ["model, batch", *(f"{NAMES[name]} {kind}" for name, kind in columns)]
    return [
        "## Private step over plain step",
        table(head, _with_means(summary, columns, summary.ratio)),
    ]


def _milliseconds(summary: Summary) -> list[str]:
    columns = [(name, kind) for name in summary.backends for kind in kinds(name)]
    if not columns:
        return []
    head = ["model, batch", *(f"{NAMES[name]} {kind}" for name, kind in columns)]
    return [
        "## Milliseconds a step",
        table(head, _by_model(summary, columns, summary.milliseconds, 1)),
    ]


def _peers(summary: Summary) -> list[str]:
    """Milliseconds, and in brackets the ratio to the plain step of the same framework."""
    columns = [(name, kind) for name in summary.peers for kind in kinds(name)]
    if not columns:
        return []

    def cell(model: str, name: str, kind: str) -> str:
        milliseconds = summary.milliseconds(model, name, kind)
        ratio = None if kind == "plain" else summary.ratio(model, name, kind)
        text = number(milliseconds, 1)
        return text if ratio is None else f"{text} ({number(ratio, 1)}x)"

    rows = [
        [SUITE[model].title, *(cell(model, *column) for column in columns)]
        for model in summary.models
    ]
    means = [
        geometric_mean(r for m in summary.models if (r := summary.ratio(m, *column)) is not None)
        if column[1] != "plain"
        else None
        for column in columns
    ]
    rows.append(["geometric mean of ratios", *(number(mean, 1) for mean in means)])
    head = ["model, batch", *(f"{NAMES[name]} {kind}" for name, kind in columns)]
    return [
        "## Peers",
        "Milliseconds a step, and the ratio to the plain step of the same framework. A dash stands "
        "for what could not be measured: see the end. Means are over the models that ran.",
        table(head, rows),
    ]


def _winners(summary: Summary) -> list[str]:
    """Ours beside the fastest peer, and each backend beside the peer on the same framework."""
    if not summary.backends or not summary.peers:
        return []
    rows = []
    for model in summary.models:
        ours = summary.fastest(model, summary.backends)
        theirs = summary.fastest(model, summary.peers)
        row = [SUITE[model].title]
        for each in (ours, theirs):
            text = "–" if each is None else f"{NAMES[each.framework]} {each.way}"
            row.append(text if each is None else f"{text}, {each.milliseconds:,.1f}")
        row.append(_factor(ours, theirs))
        for backend in summary.backends:
            own = summary.fastest(model, [backend])
            row.append(_factor(own, summary.fastest(model, [RIVALS[backend]])))
        rows.append(row)
    head = ["model, batch", "our fastest, ms", "fastest peer, ms", "peer / ours"]
    head += [f"{NAMES[RIVALS[name]]} / ours on {NAMES[name]}" for name in summary.backends]
    return [
        "## Against the fastest",
        "Ours layer-wise, at equal rows a step. Above 1, ours takes less time.",
        table(head, rows),
    ]


def _factor(ours: Any, theirs: Any) -> str:
    if ours is None or theirs is None:
        return "–"
    return f"{theirs.milliseconds / ours.milliseconds:,.2f}"


def _xla(summary: Summary) -> list[str]:
    if "tensorflow" not in summary.backends:
        return []
    columns = [("tensorflow", way) for way in WAYS["tensorflow"]]
    head = ["model, batch", *(w.replace("-xla", ", XLA") for _, w in columns)]
    return [
        "## TensorFlow without and with XLA, milliseconds",
        table(head, _by_model(summary, columns, summary.milliseconds_of_way, 1)),
    ]


def _memory(summary: Summary) -> list[str]:
    columns = [
        (name, kind)
        for name in (*summary.backends, *summary.peers)
        for kind in kinds(name)
        if kind != "plain"
        and any(summary.memory(model, name, kind) is not None for model in summary.models)
    ]
    if not columns:
        return []
    head = ["model, batch", *(f"{NAMES[name]} {kind}" for name, kind in columns)]
    parts = [
        "## Peak memory over that of plain training",
        "Beyond what the process has with the framework imported and the model built. First with "
        "compilation, then of later steps alone (Linux only).",
    ]
    for field in ("peak", "steady"):

        def cell(model: str, name: str, kind: str, field: str = field) -> float | None:
            return summary.memory_ratio(model, name, kind, field)

        parts.append(table(head, _with_means(summary, columns, cell)))
    plain = [(name, "plain") for name in (*summary.backends, *summary.peers)]
    parts.append("Plain training takes, in megabytes, compilation included:")
    head = ["model, batch", *(NAMES[name] for name, _ in plain)]
    parts.append(table(head, _by_model(summary, plain, summary.memory, 0)))
    return parts


def _failures(summary: Summary) -> list[str]:
    if not summary.errors:
        return []
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for (framework, way, model), error in summary.errors.items():
        grouped.setdefault((framework, way, error), []).append(model)
    rows = [
        [NAMES[framework], way, ", ".join(models), error.replace("|", "\\|")]
        for (framework, way, error), models in grouped.items()
    ]
    return ["## What could not be measured", table(["framework", "way", "models", "why"], rows)]
