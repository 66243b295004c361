"""What the records come to: medians, ratios to the plain step, first fits, peaks of memory.

Keras on TensorFlow and TensorFlow Privacy can run with XLA and without. A kind of way stands for
the faster of the two, and so does the plain step that it is compared with.
"""

import statistics
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from framework import BACKENDS, PEERS, WAYS
from results import PROCESSOR, Record
from suite import SUITE

_XLA = "-xla"
RIVALS = {"tensorflow": "tensorflow-privacy", "jax": "jax-privacy", "torch": "opacus"}
"""The peer that runs on the framework that a backend runs on."""


def kinds(framework: str) -> list[str]:
    """The ways of a framework, with and without XLA as one.

    Args:
        framework: a key of `MODULES`.
    """
    return [way for way in WAYS[framework] if not way.endswith(_XLA)]


def private_kinds(framework: str) -> list[str]:
    """The kinds of a framework's private steps.

    Args:
        framework: a key of `MODULES`.
    """
    return [kind for kind in kinds(framework) if not kind.startswith("plain")]


def geometric_mean(values: Iterable[float]) -> float | None:
    """The geometric mean; None of nothing.

    Args:
        values: positive numbers.
    """
    numbers = list(values)
    return statistics.geometric_mean(numbers) if numbers else None


@dataclass(frozen=True)
class Fastest:
    """The fastest of several ways.

    Args:
        framework: whose way it is.
        way: the way.
        milliseconds: of a step.
    """

    framework: str
    way: str
    milliseconds: float


class Summary:
    """Answers questions about records: times by one clock, first fits and memory.

    Args:
        records: of a `ResultsFile`.
        clock: of the times.
    """

    def __init__(self, records: Iterable[Record], clock: str) -> None:
        self.clock = clock
        self.is_of_gpu = False
        self._start: dict[tuple[str, str, str], list[dict[str, float]]] = {}
        self._times: dict[tuple[str, str], list[dict[str, float]]] = {}
        self._memory: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        self.errors: dict[tuple[str, str, str, str], str] = {}
        self.versions: dict[str, dict[str, str]] = {}
        for record in records:
            self._add(record)

    def _add(self, record: Record) -> None:
        model, framework = record["model"], record["framework"]
        if "versions" in record:
            self.versions[framework] = record["versions"]
        self.is_of_gpu |= record.get("device") == "gpu"
        is_timed = record.get("clock", PROCESSOR) == self.clock
        found = {"times": record.get("times", {}) if is_timed else {}}
        found |= {entry: record.get(entry, {}) for entry in ("start", "memory")}
        for entry, results in found.items():
            kind = self.clock if entry == "times" else entry
            for way, result in results.items():
                if "error" in result:
                    self.errors.setdefault((framework, way, kind, model), result["error"])
        times = {
            way: statistics.median(result["milliseconds"])
            for way, result in found["times"].items()
            if result.get("milliseconds")
        }
        if times:
            self._times.setdefault((model, framework), []).append(times)
        for way, result in found["start"].items():
            if "error" not in result:
                self._start.setdefault((model, framework, way), []).append(result)
        for way, result in found["memory"].items():
            if "error" not in result:
                self._memory.setdefault((model, framework), {})[way] = result

    @property
    def started(self) -> Collection[tuple[str, str, str]]:
        """Model, framework and way of each first fit that was measured."""
        return self._start.keys()

    @property
    def models(self) -> list[str]:
        """Those with results, in the order of the suite."""
        return [name for name in SUITE if any(model == name for model, _ in self._times)]

    @property
    def backends(self) -> list[str]:
        """Those with results."""
        return [name for name in BACKENDS if any(other == name for _, other in self._times)]

    @property
    def peers(self) -> list[str]:
        """Those with results."""
        return [name for name in PEERS if any(other == name for _, other in self._times)]

    def milliseconds_of_way(self, model: str, framework: str, way: str) -> float | None:
        """The median over the processes of one way, as it is named.

        Args:
            model: a key of `SUITE`.
            framework: a key of `MODULES`.
            way: of the framework.
        """
        rounds = self._times.get((model, framework), [])
        values = [times[way] for times in rounds if way in times]
        return statistics.median(values) if values else None

    def chosen(self, model: str, framework: str, kind: str) -> str | None:
        """The faster way of a kind, with or without XLA; None where neither was measured.

        Args:
            model: a key of `SUITE`.
            framework: a key of `MODULES`.
            kind: from `kinds`.
        """
        found = {
            way: milliseconds
            for way in (kind, kind + _XLA)
            if (milliseconds := self.milliseconds_of_way(model, framework, way)) is not None
        }
        return min(found, key=found.__getitem__) if found else None

    def milliseconds(self, model: str, framework: str, kind: str) -> float | None:
        """The milliseconds of a step, of the faster way of a kind.

        Args:
            model: a key of `SUITE`.
            framework: a key of `MODULES`.
            kind: from `kinds`.
        """
        way = self.chosen(model, framework, kind)
        return None if way is None else self.milliseconds_of_way(model, framework, way)

    def ratio(self, model: str, framework: str, kind: str) -> float | None:
        """A step over the plain step: the median of what each process found.

        Args:
            model: a key of `SUITE`.
            framework: a key of `MODULES`.
            kind: from `kinds`.
        """
        way = self.chosen(model, framework, kind)
        plain = self.chosen(model, framework, "plain")
        rounds = self._times.get((model, framework), [])
        ratios = [times[way] / times[plain] for times in rounds if way in times and plain in times]
        return statistics.median(ratios) if ratios else None

    def seconds(self, model: str, framework: str, way: str, fit: str) -> float | None:
        """The seconds of a fit of two steps, the median over the processes.

        Args:
            model: a key of `SUITE`.
            framework: a key of `MODULES`.
            way: of the framework, without XLA on TensorFlow.
            fit: "first" or "second" of a process.
        """
        values = [result[fit] for result in self._start.get((model, framework, way), [])]
        return statistics.median(values) if values else None

    def memory(self, model: str, framework: str, kind: str, field: str = "peak") -> float | None:
        """Megabytes beyond the built model, of the faster way of a kind.

        Args:
            model: a key of `SUITE`.
            framework: a key of `MODULES`.
            kind: from `kinds`.
            field: "peak" or "steady".
        """
        way = self.chosen(model, framework, kind)
        result = self._memory.get((model, framework), {}).get(way or "")
        return None if result is None else result[field]

    def memory_ratio(
        self, model: str, framework: str, kind: str, field: str = "peak"
    ) -> float | None:
        """Memory over the plain step's.

        Args:
            model: a key of `SUITE`.
            framework: a key of `MODULES`.
            kind: from `kinds`.
            field: "peak" or "steady".
        """
        mine = self.memory(model, framework, kind, field)
        plain = self.memory(model, framework, "plain", field)
        return mine / plain if mine is not None and plain else None

    def fastest(self, model: str, frameworks: Iterable[str]) -> Fastest | None:
        """The fastest private way of peers; of this package the default, at equal rows a step.

        Args:
            model: a key of `SUITE`.
            frameworks: among which.
        """
        found = [
            Fastest(framework, kind, milliseconds)
            for framework in frameworks
            for kind in (["shuffle"] if framework in BACKENDS else private_kinds(framework))
            if (milliseconds := self.milliseconds(model, framework, kind)) is not None
        ]
        return min(found, key=lambda each: each.milliseconds) if found else None
