"""What every measuring process does alike: its options, one core and one thread, its versions."""

import argparse
import contextlib
import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from framework import Framework
from results import PROCESSOR, WALL
from turns import Options, first_seconds, median, peak_memory, time_ways

_THREADS = (
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
)
_ONE_XLA_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def add_options(parser: argparse.ArgumentParser, unit: str = "step") -> None:
    """Adds what can be said of any measurement.

    Args:
        parser: of the command line.
        unit: what is timed.
    """
    add = parser.add_argument
    add("--ways", nargs="+", help="by default all ways of the framework")
    add("--start", action="store_true", help="first and second training of one way, seconds")
    add("--memory", action="store_true", help="peak memory of one way instead of times")
    add("--device", choices=("cpu", "gpu"), default="cpu")
    add("--pin", action="store_true", help="one core, one thread, processor time")
    add("--repeats", type=int, default=5, help="measurements of each way (%(default)s)")
    add("--seconds", type=float, default=2.0, help="of training a measurement (%(default)s)")
    add("--steps", type=int, default=60, help=f"the most {unit}s a measurement (%(default)s)")
    limit = f"most seconds for a first {unit} (%(default)s)"
    add("--limit", type=float, default=120.0, help=limit)


def check_options(
    parser: argparse.ArgumentParser, options: argparse.Namespace, known: tuple[str, ...]
) -> None:
    """Fills in the ways, and ends the program where the options do not fit together.

    Args:
        parser: of the command line.
        options: with a `framework`, and with what `add_options` has added.
        known: the ways of the framework.
    """
    options.ways = options.ways or list(known)
    if unknown := sorted(set(options.ways) - set(known)):
        parser.error(f"{options.framework} knows {known}, not {unknown}")
    if (options.memory or options.start) and len(options.ways) != 1:
        parser.error("--start and --memory measure one way a process: name it with --ways")
    if options.pin and options.device == "gpu":
        parser.error("--pin is for the CPU")


def set_up_process(device: str, pin: bool) -> None:
    """The device, one core and one thread, before a framework is imported.

    Args:
        device: "cpu" or "gpu".
        pin: whether to keep to one core and one thread.
    """
    if device == "cpu":
        os.environ.update({"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"})
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if pin:
        if hasattr(os, "sched_setaffinity"):  # not on macOS
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        os.environ.update(dict.fromkeys(_THREADS, "1"))
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_ONE_XLA_THREAD}".strip()
    # Some ways take more memory than there is: this process goes first, and no other.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def measured(framework: Framework, benchmark: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Times, start or memory of the ways, and what they were taken with.

    Args:
        framework: what is measured.
        benchmark: what its `build` is handed.
        options: with `model` and `framework`, and with what `add_options` has added.
    """
    if options.pin:
        framework.limit_threads()
    about = {
        "model": options.model,
        "framework": options.framework,
        "device": options.device,
        "clock": PROCESSOR if options.pin else WALL,
        "versions": versions(framework.packages),
    }
    for entry, take in (("start", first_seconds), ("memory", peak_memory)):
        if getattr(options, entry):
            (way,) = options.ways
            return {**about, entry: {way: take(framework, benchmark, way, options.limit)}}
    clock = framework.clock if options.pin else time.perf_counter
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
