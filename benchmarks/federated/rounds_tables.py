"""The report of rounds in Markdown."""

from collections.abc import Callable
from typing import Any

import speed_path  # noqa: F401
from plans import COHORTS, MODELS, SERIES
from rounds_summary import RoundsSummary
from tables import conditions, number, table
from ways import NAMES
from workloads import Workload

Column = tuple[str, str]
"""A framework and a way."""

_OURS = {
    "ours": "fixed cohorts",
    "poisson": "Poisson cohorts",
    "one-by-one": "one client after another",
}
_GROWING: dict[str, Callable[[Workload], str]] = {
    "cohort": lambda workload: f"{workload.cohort_size} clients a round",
    "population": lambda workload: f"{workload.num_clients:,} clients",
    "model": lambda workload: f"{workload.about.num_trainable:,} weights",
}


def markdown(summary: RoundsSummary, machine: dict[str, Any], clock: str) -> str:
    """The whole report.

    Args:
        summary: of the records.
        machine: from `results.machine`.
        clock: how the times were taken.
    """
    parts = [
        "# Federated rounds",
        conditions(summary.versions, machine, clock, "federated/rounds_report.py")
        + " On TensorFlow a number is that of the faster of without XLA and with XLA, and the loop "
        "in JAX is the faster of two.",
        *_rounds(summary),
        *_ratios(summary),
        *_memory(summary),
        *(part for name in SERIES for part in _series(summary, name)),
        *_failures(summary),
    ]
    return "\n\n".join(parts) + "\n"


def _workloads(summary: RoundsSummary) -> list[Workload]:
    every = [Workload(model, cohort) for model in MODELS for cohort in COHORTS]
    return [workload for workload in every if summary.measured(workload)]


def _label(workload: Workload) -> str:
    return f"{workload.about.title}, {workload.cohort_size}"


def _columns(summary: RoundsSummary, *ours: str) -> list[Column]:
    columns = [(name, way) for way in (*ours, "loop") for name in summary.backends]
    return columns + [(name, "private") for name in summary.peers]


def _title(column: Column) -> str:
    framework, way = column
    return NAMES[framework] + (f" {way}" if way != "private" else "")


def _rounds(summary: RoundsSummary) -> list[str]:
    """Milliseconds and rounds a second."""
    workloads = _workloads(summary)
    if not workloads:
        return []
    columns = _columns(summary, "ours")
    times = [
        [_label(each), *(number(summary.milliseconds(each, *column), 1) for column in columns)]
        for each in workloads
    ]
    rates = []
    for each in workloads:
        found = [summary.milliseconds(each, *column) for column in columns]
        rates.append([_label(each), *(number(v and 1e3 / v, 2) for v in found)])
    ways = [(name, way) for name in summary.backends for way in _OURS]
    own = [
        [_label(each), *(number(summary.milliseconds(each, *way), 1) for way in ways)]
        for each in workloads
    ]
    head = ["model, clients a round", *map(_title, columns)]
    return [
        "## Milliseconds a round",
        table(head, times),
        "## Rounds a second",
        table(head, rates),
        "## This package's ways, milliseconds a round",
        table(
            ["model, clients a round", *(f"{NAMES[name]} {_OURS[way]}" for name, way in ways)], own
        ),
    ]


def _ratios(summary: RoundsSummary) -> list[str]:
    """This package over the others."""
    workloads = _workloads(summary)
    if not workloads:
        return []
    pairs = [(backend, backend, "loop") for backend in summary.backends]
    pairs += [(backend, peer, "private") for peer in summary.peers for backend in summary.backends]
    head = [
        f"{NAMES[backend]} / {'its loop' if way == 'loop' else NAMES[other]}"
        for backend, other, way in pairs
    ]
    rows = [
        [_label(each), *(number(summary.ratio(each, *pair), 2) for pair in pairs)]
        for each in workloads
    ]
    return [
        "## This package over the others: time of a round\n\n"
        "Below 1 this package is faster. The loops neither clip nor add noise.",
        table(["model, clients a round", *head], rows),
    ]


def _memory(summary: RoundsSummary) -> list[str]:
    workloads = _workloads(summary)
    columns = _columns(summary, "ours")
    head = ["model, clients a round", *map(_title, columns)]
    parts = []
    for in_all, title in (
        (True, "of the whole process, or processes"),
        (False, "beyond what the process had used before its first round"),
    ):
        rows = [
            [
                _label(each),
                *(number(summary.memory(each, *column, in_all), 0) for column in columns),
            ]
            for each in workloads
        ]
        if any(cell != number(None, 0) for row in rows for cell in row[1:]):
            parts += [f"## Peak memory in megabytes, {title}", table(head, rows)]
    return parts


def _series(summary: RoundsSummary, name: str) -> list[str]:
    """Time and memory where one thing grows."""
    workloads = [each for each in SERIES[name] if summary.measured(each)]
    if len(workloads) < 2:
        return []
    columns = _columns(summary, "ours")
    grows = _GROWING[name]

    def cells(workload: Workload, column: Column) -> str:
        time = number(summary.milliseconds(workload, *column), 1)
        return f"{time}; {number(summary.memory(workload, *column, False), 0)}"

    rows = [[grows(each), *(cells(each, column) for column in columns)] for each in workloads]
    fixed = workloads[0]
    about = [fixed.about.title if name != "model" else "dense layers"]
    about += [f"{fixed.cohort_size} clients a round"] * (name != "cohort")
    about += [f"{fixed.num_clients:,} clients in all"] * (name != "population")
    return [
        f"## As the {name} grows: milliseconds a round; megabytes beyond the first\n\n"
        f"{', '.join(about)}.",
        table(["", *map(_title, columns)], rows),
    ]


def _failures(summary: RoundsSummary) -> list[str]:
    rows = [
        [NAMES[framework], way, key, reason.replace("|", "\\|")]
        for (key, framework, way), reason in sorted(summary.errors.items())
    ]
    if not rows:
        return []
    return ["## What was not measured", table(["framework", "way", "workload", "why"], rows)]
