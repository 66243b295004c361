"""Measures one model in one framework: its plain step beside its private ones, in turns.

    python benchmarks/speed/measure.py cnn-256 --framework jax --pin
    python benchmarks/speed/measure.py cnn-256 --framework jax --pin --ways shuffle --memory

prints one JSON object. Times are in processor seconds on one pinned core: two threads that wait for
each other, or for other programs, make wall time jump. On a GPU it is the wall time that counts.
Without `--framework`, the backend that KERAS_BACKEND names. `bench.py` runs this for everything.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from framework import BACKENDS, MODULES, WAYS, load
from suite import SUITE
from turns import Options, median, peak_memory, time_ways

_THREADS = (
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)
_ONE_XLA_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def parse_options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line.

    Args:
        arguments: instead of those of the process.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", choices=SUITE)
    add("--framework", choices=MODULES, default=os.environ.get("KERAS_BACKEND", "tensorflow"))
    add("--ways", nargs="+", help="by default all ways of the framework")
    add("--memory", action="store_true", help="peak memory of one way instead of times")
    add("--device", choices=("cpu", "gpu"), default="cpu")
    add("--pin", action="store_true", help="one core, one thread, processor time")
    add("--repeats", type=int, default=5, help="measurements of each way (%(default)s)")
    add("--seconds", type=float, default=2.0, help="of training a measurement (%(default)s)")
    add("--steps", type=int, default=60, help="the most steps a measurement (%(default)s)")
    add("--limit", type=float, default=120.0, help="most seconds for a first step (%(default)s)")
    options = parser.parse_args(arguments)
    options.ways = options.ways or list(WAYS[options.framework])
    if unknown := sorted(set(options.ways) - set(WAYS[options.framework])):
        parser.error(f"{options.framework} knows {WAYS[options.framework]}, not {unknown}")
    if options.memory and len(options.ways) != 1:
        parser.error("--memory measures one way a process: name it with --ways")
    if options.pin and options.device == "gpu":
        parser.error("--pin is for the CPU")
    return options


def set_up_process(options: argparse.Namespace) -> None:
    """The device, the backend, one core and one thread, before a framework is imported.

    Args:
        options: the command line.
    """
    if options.framework in BACKENDS:
        os.environ["KERAS_BACKEND"] = options.framework
    if options.device == "cpu":
        os.environ.update({"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"})
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if options.pin:
        if hasattr(os, "sched_setaffinity"):  # not on macOS
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        os.environ.update(dict.fromkeys(_THREADS, "1"))
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_ONE_XLA_THREAD}".strip()
    # Some ways take more memory than there is: this process goes first, and no other.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The times or the memory of the ways, and what they were taken with.

    Args:
        options: the command line.
    """
    framework = load(options.framework)
    if options.pin:
        framework.limit_threads()
    benchmark = SUITE[options.model]
    about = {
        "model": options.model,
        "framework": options.framework,
        "device": options.device,
        "clock": "processor time, one core" if options.pin else "wall time",
        "versions": versions(framework.packages),
    }
    if options.memory:
        (way,) = options.ways
        memory = peak_memory(framework, benchmark, way, options.limit)
        return {**about, "memory": {way: memory}}
    clock = time.process_time if options.pin else time.perf_counter
    times = time_ways(
        framework,
        benchmark,
        options.ways,
        Options(options.repeats, options.seconds, options.steps, options.limit, clock),
    )
    medians = {way: median(result) for way, result in times.items()}
    return {**about, "times": times, "medians": medians}


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """The versions of the interpreter and of the packages that are installed.

    Args:
        packages: names of distributions.
    """
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for package in packages:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


if __name__ == "__main__":
    given = parse_options()
    set_up_process(given)
    print(json.dumps(measure(given)))
