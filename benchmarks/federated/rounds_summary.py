"""What the records of rounds come to: medians, ratios of rounds, peaks of memory."""

import statistics
from collections.abc import Iterable
from typing import Any

import speed_path  # noqa: F401
from results import Record
from ways import BACKENDS, PEERS
from workloads import Workload

_XLA = "-xla"


class RoundsSummary:
    """Figures by workload, framework and way.

    On TensorFlow a way stands for the faster of without XLA and with XLA; on JAX "loop" for the
    faster of a loop over the batches and none.

    Args:
        records: of the file of results.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._times: dict[tuple[str, str, str], list[float]] = {}
        self._memory: dict[tuple[str, str, str], dict[str, float]] = {}
        self.errors: dict[tuple[str, str, str], str] = {}
        self.versions: dict[str, dict[str, str]] = {}
        self.device = "cpu"
        seen: dict[str, None] = {}
        for record in records:
            framework, key = record["framework"], record["model"]
            seen[framework] = None
            self.device = record.get("device", self.device)
            self.versions.setdefault(framework, record.get("versions", {}))
            for kind in ("times", "memory"):
                for way, result in record.get(kind, {}).items():
                    self._add(kind, (key, framework, way), result)
        self.backends = [name for name in BACKENDS if name in seen]
        self.peers = [name for name in PEERS if name in seen]

    def _add(self, kind: str, place: tuple[str, str, str], result: dict[str, Any]) -> None:
        if "error" in result:
            self.errors[place] = result["error"]
        elif kind == "memory":
            self._memory[place] = result
        elif result["milliseconds"]:
            self._times.setdefault(place, []).append(statistics.median(result["milliseconds"]))

    def measured(self, workload: Workload) -> bool:
        """Whether there is anything of a workload.

        Args:
            workload: what a round trains.
        """
        return any(key == workload.name for key, _, _ in [*self._times, *self._memory])

    def milliseconds(self, workload: Workload, framework: str, way: str) -> float | None:
        """The time of a round: the median over processes of medians within each.

        Args:
            workload: what a round trains.
            framework: a key of `MODULES`.
            way: without "-xla" and "-unrolled".
        """
        found = [
            statistics.median(times)
            for (key, name, other), times in self._times.items()
            if (key, name) == (workload.name, framework) and _kind(other) == way
        ]
        return min(found, default=None)

    def ratio(
        self, workload: Workload, backend: str, framework: str, way: str, ours: str = "ours"
    ) -> float | None:
        """How often as long as another's a round of this package takes.

        Args:
            workload: what a round trains.
            backend: of this package.
            framework: with which it is compared.
            way: of that framework.
            ours: the way of this package.
        """
        above = self.milliseconds(workload, backend, ours)
        below = self.milliseconds(workload, framework, way)
        return None if above is None or below is None else above / below

    def memory(
        self, workload: Workload, framework: str, way: str, in_all: bool = True
    ) -> float | None:
        """Peak memory in megabytes.

        Args:
            workload: what a round trains.
            framework: a key of `MODULES`.
            way: as it was measured.
            in_all: of whole processes (on a GPU, of the device); otherwise what the rounds added
                to what the process had used before the first, which is not known of Flower.
        """
        result = self._memory.get((workload.name, framework, way))
        if result is None:
            return None
        peak, base = result["peak"], result["base"]
        if framework == "flower" or self.device == "gpu":
            return peak if in_all else None
        return peak + base if in_all else peak


def _kind(way: str) -> str:
    return way.removesuffix(_XLA).removesuffix("-unrolled")
