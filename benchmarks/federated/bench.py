"""Measures federated rounds in every framework that is installed, and writes the report.

    make bench-federated                                    # or, in an environment of this package:
    python benchmarks/federated/bench.py                    # the three backends, peers if installed
    python benchmarks/federated/bench.py --make-environments .venv-peers # makes the peers' first
    python benchmarks/federated/bench.py --models mlp --series rounds cohort --peers pfl --quick

As the benchmark of steps does it (benchmarks/speed): each measurement is a process of its own,
rounds go over everything, and a second call goes on where the first was stopped.
"""

import argparse
import dataclasses
import time
from pathlib import Path

import rounds_report
import speed_path  # noqa: F401
from bench_options import add_options, frameworks, measure_and_report, settings_of, settle, turns_of
from plans import SERIES, Plan, plans
from results import ResultsFile, revision
from ways import BACKENDS, PEERS, WAYS
from workers import Settings, run
from workloads import MODELS, Workload

_HERE = Path(__file__).parent


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line.

    Args:
        arguments: instead of those of the process.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--series", nargs="+", choices=("rounds", *SERIES), default=["rounds", *SERIES])
    add("--models", nargs="+", choices=MODELS, default=[*MODELS])
    add("--most-in-round", type=int, metavar="CLIENTS", help="leaves out larger cohorts")
    add("--most-in-all", type=int, metavar="CLIENTS", help="leaves out larger populations")
    add("--backends", nargs="*", choices=BACKENDS, default=BACKENDS)
    add("--peers", nargs="*", choices=PEERS, default=PEERS)
    add("--ways", nargs="+", choices=sorted({way for ways in WAYS.values() for way in ways}))
    add_options(parser, _HERE / "results.json", ("processor", "memory"), "round")
    parser.set_defaults(steps=200)
    options = parser.parse_args(arguments)
    settle(options)
    return options


def chosen(options: argparse.Namespace) -> list[Plan]:
    """The plans that the command line asks for.

    Args:
        options: the command line.
    """
    return [
        plan
        for plan in plans(options.series)
        if plan.workload.model in options.models
        and plan.workload.cohort_size <= (options.most_in_round or plan.workload.cohort_size)
        and plan.workload.num_clients <= (options.most_in_all or plan.workload.num_clients)
    ]


def settings_for(workload: Workload, settings: Settings) -> Settings:
    """What a process that measures a workload is told.

    Args:
        workload: what a round trains.
        settings: what every process is told.
    """
    arguments = ("--cohort", str(workload.cohort_size), "--clients", str(workload.num_clients))
    return dataclasses.replace(settings, script=_HERE / "measure.py", arguments=arguments)


def measure_all(options: argparse.Namespace, results: ResultsFile) -> None:
    """Runs every process that the results lack.

    Args:
        options: the command line.
        results: where records are added.
    """
    settings = settings_of(options)
    found = frameworks(options)
    planned = [
        (t, plan, name) for t in turns_of(options) for plan in chosen(options) for name in found
    ]
    for index, ((kind, number), plan, name) in enumerate(planned, 1):
        key = plan.workload.name
        skipped = results.measured(kind, key, name, number) | results.failed(kind, key, name)
        ways = [
            way
            for way in plan.ways.get(name, ())
            if (options.ways is None or way in options.ways) and way not in skipped
        ]
        if not ways:
            continue
        label = "memory" if number is None else f"round {number + 1}"
        print(f"[{index}/{len(planned)}] {label}: {key}, {name}: {', '.join(ways)}", flush=True)
        if options.dry_run:
            continue
        start = time.time()
        model, told = plan.workload.model, settings_for(plan.workload, settings)
        for record in run(found[name], name, model, ways, kind, told):
            results.add({**record, "model": key, "round": number, "revision": revision()})
        print(f"    {time.time() - start:.0f} s", flush=True)


def main() -> None:
    """Measures, then writes the report beside the results."""
    measure_and_report(parse_options(), measure_all, rounds_report.write)


if __name__ == "__main__":
    main()
