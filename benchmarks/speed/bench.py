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
from bench_options import add_options, frameworks, measure_and_report, settings_of, settle, turns_of
from framework import BACKENDS, MODULES, PEERS, PLAIN, WAYS
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
    planned = [
        (t, model, name) for t in turns_of(options) for model in options.models for name in found
    ]
    for index, ((kind, number), model, name) in enumerate(planned, 1):
        # XLA is not what Keras starts with on TensorFlow.
        known = [way for way in WAYS[name] if kind != "start" or not way.endswith("-xla")]
        done = results.measured(kind, model, name, number)
        skipped = done | results.failed(kind, model, name)
        asked = [way for way in known if options.ways is None or way in options.ways]
        ways = [way for way in asked if way not in skipped]
        if not ways:
            continue
        # Ratios of times are taken within a process: a plain step is always there.
        present = ways if kind in ("wall", "processor") else {*ways, *skipped}
        ways += [way for way in known if way in PLAIN and way not in present]
        label = kind if number is None else f"{kind}, round {number + 1}"
        print(f"[{index}/{len(planned)}] {label}: {model}, {name}: {', '.join(ways)}", flush=True)
        if options.dry_run:
            continue
        start = time.time()
        for record in run(found[name], name, model, ways, kind, settings):
            results.add({**record, "round": number, "revision": revision()})
        print(f"    {time.time() - start:.0f} s", flush=True)


def main() -> None:
    """Measures, then writes the report beside the results."""
    measure_and_report(parse_options(), measure_all, report.write)


if __name__ == "__main__":
    main()
