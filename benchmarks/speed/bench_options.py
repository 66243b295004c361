"""What can be said of a whole benchmark on the command line, and what follows from it."""

import argparse
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import environments
from results import KINDS, ResultsFile, machine
from workers import Settings


def add_options(
    parser: argparse.ArgumentParser, output: Path, kinds: Iterable[str] = KINDS, unit: str = "step"
) -> None:
    """Adds what to measure, how long, with what, and where the results go.

    Args:
        parser: of the command line.
        output: the file of results unless another is given.
        kinds: keys of `KINDS`.
        unit: what is timed.
    """
    add = parser.add_argument
    add("--environments", type=Path, default=environments.ROOT / ".venv-peers", metavar="DIR")
    add("--make-environments", type=Path, metavar="DIR", help="make what is missing there, use it")
    add("--output", type=Path, default=output, metavar="FILE")
    add("--rounds", type=int, default=3, help="processes for each model and framework")
    add("--repeats", type=int, default=3, help="measurements of each way a process")
    add("--seconds", type=float, default=2.0, help="of training a measurement")
    add("--steps", type=int, default=60, help=f"the most {unit}s a measurement")
    add("--limit", type=float, default=120.0, help=f"most seconds for one {unit}")
    add("--process-limit", type=float, metavar="SECONDS", help="most seconds for a process")
    add("--kinds", nargs="+", choices=kinds, default=[*kinds], help="what to measure")
    add("--device", choices=("cpu", "gpu"), default="cpu")
    add("--quick", action="store_true", help=f"one round of very few {unit}s: does it run?")
    add("--dry-run", action="store_true", help="only print what would run")


def settle(options: argparse.Namespace) -> None:
    """Lets some options decide about others.

    Args:
        options: with what `add_options` has added.
    """
    options.environments = options.make_environments or options.environments
    if options.quick:
        options.rounds, options.repeats, options.seconds, options.steps = 1, 1, 0.3, 4
    if options.device == "gpu":  # processor time says nothing there
        kinds = ["wall" if kind == "processor" else kind for kind in options.kinds]
        options.kinds = [*dict.fromkeys(kinds)]


def turns_of(options: argparse.Namespace) -> list[tuple[str, int | None]]:
    """Kinds and rounds in their order. Memory is last: it needs one process, a median all rounds.

    Args:
        options: with what `add_options` has added.
    """
    timed = [kind for kind in options.kinds if kind != "memory"]
    turns: list[tuple[str, int | None]] = [(k, r) for r in range(options.rounds) for k in timed]
    return turns + [("memory", None)] * ("memory" in options.kinds)


def frameworks(options: argparse.Namespace) -> dict[str, Path]:
    """The interpreter for each framework that can be measured.

    Args:
        options: with `backends` and `peers`, and with what `add_options` has added.
    """
    found = {name: Path(sys.executable) for name in options.backends}
    for peer in options.peers:
        if options.make_environments is not None and not options.dry_run:
            environments.make(options.environments, peer, options.device)
        if environments.is_made(options.environments, peer):
            found[peer] = environments.interpreter(options.environments, peer)
        elif find_spec(peer.replace("-", "_")):
            found[peer] = Path(sys.executable)
        else:
            print(f"Not installed, and left out: {peer} (--make-environments DIR makes it)")
    return found


def settings_of(options: argparse.Namespace) -> Settings:
    """What every process is told.

    Args:
        options: with what `add_options` has added.
    """
    return Settings(
        repeats=options.repeats,
        seconds=options.seconds,
        steps=options.steps,
        limit=options.limit,
        process_limit=options.process_limit,
        device=options.device,
    )


def measure_and_report(
    options: argparse.Namespace,
    measure_all: Callable[[argparse.Namespace, ResultsFile], None],
    write: Callable[[ResultsFile, Path], list[Path]],
) -> None:
    """Measures what the results lack, then writes the report beside them.

    Args:
        options: the command line.
        measure_all: adds what is missing.
        write: writes the report and returns its files.
    """
    results = ResultsFile(options.output)
    here = machine()
    if results.records and results.machine != here:
        sys.exit(f"{options.output} is of another machine: give another --output")
    results.machine = here
    measure_all(options, results)
    if results.records and not options.dry_run:
        for path in write(results, options.output):
            print(f"Written: {path}")
