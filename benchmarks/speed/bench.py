"""Measures the suite in every framework that is installed, and writes the report.

    make bench                                              # or, in an environment of this package:
    python benchmarks/speed/bench.py                        # the three backends, peers if installed
    python benchmarks/speed/bench.py --make-environments .venv-peers     # makes the peers' first
    python benchmarks/speed/bench.py --models cnn-256 --frameworks jax opacus --quick

Each measurement is a process of its own, one at a time. Rounds go over everything, so that a noisy
minute hits all alike, and the results are written after each process: a second call goes on where
the first was stopped.
"""

import argparse
import time
from pathlib import Path

import report
from bench_options import add_options, frameworks, measure_and_report, settings_of, settle
from framework import BACKENDS, MODULES, PEERS, WAYS
from results import ResultsFile, revision
from suite import SUITE
from workers import run

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
    add("--models", nargs="+", choices=SUITE, default=[*SUITE])
    add("--frameworks", nargs="+", choices=MODULES, help="backends and peers; default: all")
    add("--backends", nargs="*", choices=BACKENDS, default=BACKENDS)
    add("--peers", nargs="*", choices=PEERS, default=PEERS)
    add("--ways", nargs="+", choices=sorted({way for ways in WAYS.values() for way in ways}))
    add_options(parser, _HERE / "results.json")
    options = parser.parse_args(arguments)
    if options.frameworks:
        options.backends = [name for name in options.frameworks if name in BACKENDS]
        options.peers = [name for name in options.frameworks if name in PEERS]
    settle(options)
    return options


def measure_all(options: argparse.Namespace, results: ResultsFile) -> None:
    """Runs every process that the results lack.

    Args:
        options: the command line.
        results: where records are added.
    """
    settings = settings_of(options)
    found = frameworks(options)
    # Memory comes last: a median of times needs every round, a peak one process.
    rounds = [*range(options.rounds), *([] if options.no_memory else [None])]
    planned = [(r, model, name) for r in rounds for model in options.models for name in found]
    for index, (round_number, model, name) in enumerate(planned, 1):
        kind = "memory" if round_number is None else "times"
        done = results.measured(kind, model, name, round_number)
        failed = results.errors("times", model, name) | results.errors("memory", model, name)
        ways = [
            way
            for way in WAYS[name]
            if (options.ways is None or way in options.ways) and way not in done | failed.keys()
        ]
        if not ways:
            continue
        if kind == "times":  # ratios are taken within a process: a plain step is always there
            ways += [way for way in WAYS[name] if way.startswith("plain") and way not in ways]
        label = "memory" if round_number is None else f"round {round_number + 1}"
        print(f"[{index}/{len(planned)}] {label}: {model}, {name}: {', '.join(ways)}", flush=True)
        if options.dry_run:
            continue
        start = time.time()
        for record in run(found[name], name, model, ways, kind, settings):
            results.add({**record, "round": round_number, "revision": revision()})
        print(f"    {time.time() - start:.0f} s", flush=True)


def main() -> None:
    """Measures, then writes the report beside the results."""
    measure_and_report(parse_options(), measure_all, report.write)


if __name__ == "__main__":
    main()
