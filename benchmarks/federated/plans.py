"""What is measured: workloads, each in some frameworks and ways."""

import dataclasses
from collections.abc import Sequence

from ways import BACKENDS, WAYS
from workloads import Workload


@dataclasses.dataclass(frozen=True)
class Plan:
    """One workload.

    Args:
        workload: what a round trains.
        ways: those measured, by framework.
    """

    workload: Workload
    ways: dict[str, tuple[str, ...]]


_SCALED = {**dict.fromkeys(BACKENDS, ("ours", "loop")), "pfl": ("private",), "flower": ("private",)}
"""What is followed where something grows."""

COHORTS, MODELS = (50, 500), ("linear", "mlp", "cnn")
SERIES: dict[str, tuple[Workload, ...]] = {
    "cohort": tuple(Workload("mlp", cohort) for cohort in (10, 50, 200, 500)),
    "population": tuple(
        Workload("mlp", num_clients=number) for number in (1_000, 10_000, 100_000, 1_000_000)
    ),
    "model": tuple(Workload(name) for name in ("linear", "mlp", "mlp-512", "mlp-1024", "mlp-2048")),
}
"""Workloads in which one thing grows."""

# Flower starts a node for each client, and registers them one by one.
_MOST_CLIENTS = {"flower": 10_000}


def plans(series: Sequence[str]) -> list[Plan]:
    """What to measure, each workload once.

    Args:
        series: "rounds", the comparison, and keys of `SERIES`.
    """
    found: dict[Workload, Plan] = {}
    if "rounds" in series:
        for model in MODELS:
            for cohort in COHORTS:
                workload = Workload(model, cohort)
                found[workload] = Plan(workload, WAYS)
    for name in series:
        for workload in SERIES.get(name, ()):
            ways = {
                framework: chosen
                for framework, chosen in _SCALED.items()
                if workload.num_clients <= _MOST_CLIENTS.get(framework, workload.num_clients)
            }
            found.setdefault(workload, Plan(workload, ways))
    return list(found.values())
