"""Trains each program of the suite plainly and privately, and writes what happened to a table.

    KERAS_BACKEND=torch python benchmarks/programs/run.py --only mnist_convnet
    python benchmarks/programs/run.py --backend jax --ways private exact

Every program and way has a process of its own. Ways: "plain" and "private" train with the
program's loss, metrics, callbacks and optimizer; "exact" compares a step without noise and without
random layers to the sum of the clipped gradients of single rows, which plain Keras computes.

A process takes ten seconds to a minute on a free core, and minutes with a network of
`keras.applications`; all programs take one to three hours.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WAYS = ("plain", "private", "exact")
FIELDS = (
    *("program", "source", "backend", "outcome", "looped", "error_over_norm"),
    *("step_ratio", "first_step_ratio", "memory_ratio"),
)


def measured(name: str, way: str, backend: str, limit: float) -> dict[str, Any]:
    """Return what a process of its own reports on a way of a program.

    Args:
        name: Of the program.
        way: One of `WAYS`.
        backend: Of Keras.
        limit: Seconds after which the process ends.
    """
    script = str(Path(__file__).with_name("measure.py"))
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment["PYTHONPATH"] = f"{Path(script).parents[2]}:{os.environ.get('PYTHONPATH', '')}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            process = subprocess.run(
                [sys.executable, script, name, way],
                capture_output=True,
                text=True,
                cwd=folder,
                env=environment,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return {"crash": f"no result after {limit:g} seconds"}
    try:
        return json.loads(process.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"crash": f"exit {process.returncode}: {process.stderr[-300:]}"}


def row(name: str, source: str, backend: str, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a row of the table.

    Args:
        name: Of the program.
        source: Its address.
        backend: Of Keras.
        found: What `measured` has returned, by way.
    """
    plain, private, exact = (found.get(way, {}) for way in WAYS)
    result = {"program": name, "source": source, "backend": backend}
    for kind in ("left_out", "refusal", "crash"):
        for way, report in found.items():
            if kind in report:
                where = "" if way == "private" else f" ({way})"
                return {**result, "outcome": f"{kind}{where}: {report[kind]}"}
    error = exact.get("error")
    outcome = "trains" if error is None else ("exact" if error < 1e-4 else "not exact")
    result |= {"outcome": outcome, "error_over_norm": error, "looped": private.get("looped")}
    for field in ("step", "first_step", "memory"):
        if field in plain and field in private:
            result[f"{field}_ratio"] = round(private[field] / max(plain[field], 1e-9), 2)
    return result


def main() -> None:
    """Run what the command line asks for; rows are written as they come."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default=os.environ.get("KERAS_BACKEND", "tensorflow"))
    parser.add_argument("--only", nargs="+", help="names of programs; default all")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--limit", type=float, default=600.0, help="seconds a process")
    parser.add_argument("--output", type=Path, help="CSV file; default programs-BACKEND.csv")
    options = parser.parse_args()
    os.environ["KERAS_BACKEND"] = options.backend
    from all_programs import SUITE

    if unknown := sorted(set(options.only or ()) - set(SUITE)):
        parser.error(f"Known programs are {', '.join(SUITE)}. Received: {', '.join(unknown)}")
    output = options.output or Path(f"programs-{options.backend}.csv")
    with output.open("w", newline="") as file:
        table = csv.DictWriter(file, FIELDS)
        table.writeheader()
        for name in options.only or SUITE:
            program = SUITE[name]
            if reason := program.left_out.get(options.backend):
                found = {"private": {"left_out": reason}}
            else:
                found = {
                    way: measured(name, way, options.backend, options.limit) for way in options.ways
                }
            entry = row(name, program.source, options.backend, found)
            table.writerow(entry)
            file.flush()
            print(json.dumps(entry), flush=True)


if __name__ == "__main__":
    main()
