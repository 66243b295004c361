"""The clipping methods of the literature compared on Fashion-MNIST, as in Lin et al. 2022.

    python benchmarks/accuracy/compare.py greedy --public-data digits.npz
    python benchmarks/accuracy/compare.py greedy --public-data digits.npz --network b3
    python benchmarks/accuracy/compare.py run
    python benchmarks/accuracy/compare.py tables
    python benchmarks/accuracy/compare.py figures

`greedy` finds the thresholds to transfer, on public images (`x` of shape (n, 28, 28), labels `y`).
`run` makes the runs that are missing; interrupt it at any time, and start it again to go on.
Several processes may run at once. All of it goes to one folder: `runs.csv` with one row a run,
`tables.md` and the figures. On two cores the whole takes most of a day.

    python benchmarks/accuracy/compare.py --smoke    # into build/accuracy_smoke

does all of it once on a little data, in half a minute.
"""

import argparse
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]
_OUTPUT = _ROOT / "benchmarks" / "utility"
# A smoke run must not write among the results.
_SMOKE_OUTPUT = _ROOT / "build" / "accuracy_smoke"


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "command", nargs="?", choices=("greedy", "run", "tables", "figures"), default="run"
    )
    add = parser.add_argument
    add(
        "--output",
        type=Path,
        help=f"folder of the results ({_OUTPUT}; with --smoke, {_SMOKE_OUTPUT})",
    )
    add("--data-set", default="fashion_mnist")
    add("--accountant", choices=("pld", "rdp"), default="pld")
    add("--methods", nargs="+", metavar="METHOD", help="only these")
    add("--experiments", nargs="+", metavar="EXPERIMENT", help="only these")
    add("--network", choices=("b1", "b3"), help="only experiments with it; of `greedy`: b1")
    add("--minutes", type=float, default=math.inf, help="begin no run later than this")
    add("--threads", type=int, help="TensorFlow's, for sharing a machine between processes")
    add("--public-data", type=Path, help="for `greedy`: an .npz file of digits")
    add("--searches", type=int, default=1, help="of `greedy`, to be averaged (%(default)s)")
    add("--smoke", action="store_true", help="everything, on a little data")
    options = parser.parse_args()
    options.output = options.output or (_SMOKE_OUTPUT if options.smoke else _OUTPUT)
    return options


def limit_threads(number: int) -> None:
    """Tells TensorFlow, before it is imported, how many threads to compute with."""
    for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
        os.environ[name] = str(number)


def main() -> None:
    """Does what the command line says."""
    options = parse_options()
    if options.threads is not None:
        limit_threads(options.threads)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.path.insert(0, str(_ROOT))
    from benchmarks.accuracy import commands

    if options.smoke:
        commands.smoke(options.output)
        return
    scale = commands.Scale()
    if options.command == "greedy":
        if options.public_data is None:
            sys.exit("`greedy` needs --public-data FILE.npz")
        if options.searches < 1:
            sys.exit(f"`--searches` must be at least 1. Received: {options.searches}")
        commands.greedy(
            options.public_data,
            options.data_set,
            options.network or "b1",
            options.output,
            scale,
            options.searches,
        )
        return
    context = _chosen(commands.context(options.output), options)
    stages = commands.stages(options.experiments, options.network)
    if options.command == "run":
        is_complete = commands.run(context, options.output, scale, stages, options.minutes)
        sys.exit(0 if is_complete else 3)
    elif options.command == "tables":
        print(commands.write_tables(context, options.output))
    else:
        print(*commands.write_figures(context, options.output), sep="\n")


def _chosen(context: Any, options: argparse.Namespace) -> Any:
    unknown = set(options.methods or ()) - set(context.methods)
    if unknown:
        sys.exit(f"Unknown methods: {', '.join(sorted(unknown))}. Known: {context.methods}")
    return replace(
        context,
        data_set=options.data_set,
        accountant=options.accountant,
        methods=tuple(options.methods or context.methods),
    )


if __name__ == "__main__":
    main()
