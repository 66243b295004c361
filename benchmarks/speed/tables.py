"""The report in Markdown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from framework import WAYS
from suite import SUITE
from summary import RIVALS, Summary, geometric_mean, kinds, private_kinds

NAMES = {
    "tensorflow": "TensorFlow",
    "jax": "JAX",
    "torch": "PyTorch",
    "opacus": "Opacus",
    "jax-privacy": "JAX Privacy",
    "tensorflow-privacy": "TensorFlow Privacy",
}
"""What the reader calls the frameworks."""

_MISSING = "Not measured yet: `make bench` measures what `results.json` lacks."

Cell = Callable[[str, str, str], float | None]
Column = tuple[str, str]


def markdown(summaries: Sequence[Summary], machine: dict[str, Any], clock: str) -> str:
    """The whole report.

    Args:
        summaries: of the records, by wall time and by processor time.
        machine: from `results.machine`.
        clock: how the times were taken.
    """
    wall, processor = summaries
    parts = [
        "# A private step beside a plain one",
        conditions(wall.versions, machine, clock, "speed/report.py")
        + " On TensorFlow a number is that of the faster of without XLA and with XLA, for the "
        "plain step as for the private ones.",
    ]
    if wall.is_of_gpu:
        parts += _times("Wall time, GPU", wall)
    else:
        parts += _times("Wall time, all cores", wall)
        parts += _times("Processor time, one pinned core", processor)
    parts += _start(wall)
    # Of the ways with and without XLA, memory is that of the faster on one core, where it is taken.
    parts += _memory(processor if processor.models else wall)
    parts += _failures({**wall.errors, **processor.errors})
    return "\n\n".join(parts) + "\n"


def _times(title: str, summary: Summary) -> list[str]:
    if not summary.models:
        return [f"## {title}", _MISSING]
    return [f"## {title}", *_ours(summary), *_peers(summary), *_winners(summary), *_xla(summary)]


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


def _title(column: Column) -> str:
    return f"{NAMES[column[0]]} {column[1]}"


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


def _ours(summary: Summary) -> list[str]:
    """Ratios to the plain step, and milliseconds."""
    if not summary.backends:
        return []
    private = [(name, kind) for name in summary.backends for kind in private_kinds(name)]
    every = [(name, kind) for name in summary.backends for kind in kinds(name)]
    ratios = _with_means(summary, private, summary.ratio)
    milliseconds = _by_model(summary, every, summary.milliseconds, 1)
    return [
        "### Private step over plain step",
        table(["model, batch", *map(_title, private)], ratios),
        "### Milliseconds a step",
        table(["model, batch", *map(_title, every)], milliseconds),
    ]


def _peers(summary: Summary) -> list[str]:
    """Milliseconds, and in brackets the ratio to the plain step of the same framework."""
    columns = [
        (name, kind)
        for name in summary.peers
        for kind in kinds(name)
        if any(summary.milliseconds(model, name, kind) is not None for model in summary.models)
    ]
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
    head = ["model, batch", *map(_title, columns)]
    return [
        "### Peers",
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
        "### Against the fastest",
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
        "### TensorFlow without and with XLA, milliseconds",
        table(head, _by_model(summary, columns, summary.milliseconds_of_way, 1)),
    ]


def _start(summary: Summary) -> list[str]:
    """First fits beside plain ones, and what a second fit takes beyond a plain one."""
    title = "## Seconds of a first fit of two steps"
    models = [model for model in SUITE if any(key[0] == model for key in summary.started)]
    columns = [
        (name, kind)
        for name in NAMES
        for kind in kinds(name)
        if kind != "plain" and any(key[1:] == (name, kind) for key in summary.started)
    ]
    if not columns:
        return [title, _MISSING]

    def pair(fit: str, model: str, name: str, kind: str) -> list[float | None]:
        return [summary.seconds(model, name, way, fit) for way in ("plain", kind)]

    def first(model: str, *column: str) -> str:
        return " / ".join(number(value, 2) for value in pair("first", model, *column))

    def beyond(model: str, *column: str) -> str:
        plain, private = pair("second", model, *column)
        return "–" if plain is None or private is None else f"{private - plain:+.2f}"

    parts = [
        title,
        "Wall time in a new process for each. Compilation counts, imports and the building of the "
        "model do not. On TensorFlow without `jit_compile=True`. First fit, plain / private:",
    ]
    for cell in (first, beyond):
        rows = [[SUITE[m].title, *(cell(m, *column) for column in columns)] for m in models]
        parts.append(table(["model, batch", *map(_title, columns)], rows))
    parts.insert(-1, "The same fit again in the same process, minus the plain one:")
    return parts


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
    head = ["model, batch", *map(_title, columns)]
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
    head = ["model, batch", *(NAMES[name] for name, _ in plain)]
    rows = _by_model(summary, plain, summary.memory, 0)
    title = "Plain training takes, in megabytes, compilation included:"
    return [*parts, title, table(head, rows)]


def _failures(errors: Mapping[tuple[str, str, str, str], str]) -> list[str]:
    if not errors:
        return []
    grouped: dict[tuple[str, str, str, str], list[str]] = {}
    for (framework, way, kind, model), error in errors.items():
        grouped.setdefault((framework, way, kind, error), []).append(model)
    rows = [
        [NAMES[framework], way, kind, ", ".join(models), error.replace("|", "\\|")]
        for (framework, way, kind, error), models in grouped.items()
    ]
    return [
        "## What could not be measured",
        "A way that fails is not tried again in later rounds and measurements.",
        table(["framework", "way", "measurement", "models", "why"], rows),
    ]
