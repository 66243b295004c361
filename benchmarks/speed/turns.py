"""Times ways of training in turns, or takes start or peak memory of one, within one process.

What a call of `fit` costs once does not count: the time of a step is taken inside of the run, or is
the difference of two runs of different lengths. Ways whose steps take seconds run once.
"""

import ctypes
import faulthandler
import gc
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework import Framework, Train
from suite import Benchmark

_SHORT = 2
_SLOW_SECONDS = 4.0
_QUICK_SECONDS = 0.5
_MEGABYTE = 2**20


@dataclass(frozen=True)
class Options:
    """How long to measure.

    Args:
        repeats: measurements of each way.
        seconds: of training a measurement.
        steps: the most steps a measurement.
        limit: seconds after which a way that has not finished a step ends the process.
        clock: tells the time in seconds.
    """

    repeats: int
    seconds: float
    steps: int
    limit: float
    clock: Callable[[], float]


def first_line(error: BaseException) -> str:
    """The kind of an error and the first line of what it says, at most 200 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0] == "in user code:":  # TensorFlow's own traceback: the error ends it
        return lines[-1][:200]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]


def announce(way: str) -> None:
    """Tells on standard error which way is at work: who reads it knows at whom a process died."""
    print(f"way: {way}", file=sys.stderr, flush=True)


def time_ways(
    framework: Framework, benchmark: Benchmark, ways: Sequence[str], options: Options
) -> dict[str, dict[str, Any]]:
    """The milliseconds of a step in each way.

    Args:
        framework: from `framework.load`.
        benchmark: the model.
        ways: names of ways of the framework.
        options: how long to measure.

    Returns:
        For each way `milliseconds` (one for each repeat), `first_call_seconds` (one step,
        compilation included) and `steps` (of a measurement), or `error`.
    """
    results: dict[str, dict[str, Any]] = {}
    trains: dict[str, Train] = {}
    for way in ways:
        announce(way)
        try:
            train = framework.build(benchmark, way)
            results[way] = _calibrated(train, options)
            trains[way] = train
        except Exception as error:
            results[way] = {"error": first_line(error)}
    for repeat in range(options.repeats):
        for way, train in trains.items():
            if repeat and results[way]["steps"] == 1:
                continue
            announce(way)
            milliseconds = 1e3 * _seconds_of_step(train, results[way]["steps"], options)
            results[way]["milliseconds"].append(milliseconds)
    return results


def _calibrated(train: Train, options: Options) -> dict[str, Any]:
    """Compiles, and finds how many steps a measurement should have."""
    first = _seconds(train, 1, options, limited=True)
    num_steps = 1 if first > 5 * _SLOW_SECONDS else _SHORT
    estimate = _seconds(train, num_steps, options, limited=True) / num_steps
    if estimate >= _SLOW_SECONDS and num_steps > 1:  # it may have compiled for this length
        estimate = _seconds(train, num_steps, options) / num_steps
    if estimate < _QUICK_SECONDS:  # what a run costs once can be most of it
        estimate = max(_seconds_of_step(train, _SHORT, options), estimate / 20)
    steps = 1
    if estimate < _SLOW_SECONDS:
        steps = max(4, min(options.steps, round(options.seconds / estimate)))
        _seconds(train, _SHORT + steps, options)  # whatever depends on the length is compiled now
    return {"milliseconds": [], "first_call_seconds": first, "steps": steps}


def _seconds_of_step(train: Train, steps: int, options: Options) -> float:
    if steps == 1:
        return _seconds(train, 1, options)
    inside = train(_SHORT + steps)()
    if isinstance(inside, dict):
        return inside[options.clock] / steps
    short = _seconds(train, _SHORT, options)
    return (_seconds(train, _SHORT + steps, options) - short) / steps


def _seconds(train: Train, steps: int, options: Options, limited: bool = False) -> float:
    run = train(steps)
    if limited:
        # Ends the process even where a framework's own code does not come back.
        faulthandler.dump_traceback_later(options.limit * steps, exit=True)
    start = options.clock()
    run()
    seconds = options.clock() - start
    faulthandler.cancel_dump_traceback_later()
    return seconds


def first_seconds(framework: Framework, benchmark: Benchmark, way: str, limit: float) -> Any:
    """The seconds that a first training takes, and a second one with the same data.

    To be called once, in a process that does nothing else.

    Args:
        framework: from `framework.load`.
        benchmark: the model.
        way: name of a way of the framework.
        limit: seconds after which a step that has not finished ends the process.

    Returns:
        `first` and `second`, of two steps each, the building of the model not included. Or `error`.
    """
    announce(way)
    options = Options(1, 1.0, _SHORT, limit, time.perf_counter)
    try:
        train = framework.build(benchmark, way)
        first, second = (_seconds(train, _SHORT, options, limited=True) for _ in range(2))
        return {"first": first, "second": second}
    except Exception as error:
        return {"error": first_line(error)}


def peak_memory(framework: Framework, benchmark: Benchmark, way: str, limit: float) -> Any:
    """How much memory training takes beyond the imported framework and the built model.

    To be called once, in a process that does nothing else.

    Args:
        framework: from `framework.load`.
        benchmark: the model.
        way: name of a way of the framework.
        limit: seconds after which a step that has not finished ends the process.

    Returns:
        Megabytes: `base` of the process with framework, model and data before it trains, `peak`
        beyond that, compilation included, and `steady`, the peak of later steps beyond that (None
        where the system does not tell). On an accelerator `peak` is that of its own memory. Or
        `error`.
    """
    announce(way)
    try:
        train = framework.build(benchmark, way)
        options = Options(1, 1.0, 2, limit, time.perf_counter)
        run = train(2)
        base, base_now = _peak_resident(), _status("VmRSS")
        faulthandler.dump_traceback_later(2 * limit, exit=True)
        run()
        faulthandler.cancel_dump_traceback_later()
        peak = _peak_resident()
        if framework.memory is not None:
            return {"base": base, "peak": framework.memory() / _MEGABYTE, "steady": None}
        steady = None
        if base_now is not None and _reset_peak():
            _seconds(train, 2, options)
            high = _status("VmHWM")
            steady = None if high is None else high - base_now
        return {"base": base, "peak": peak - base, "steady": steady}
    except Exception as error:
        return {"error": first_line(error)}


def _peak_resident() -> float:
    """Megabytes; Linux counts in kilobytes, macOS in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / _MEGABYTE


def _status(field: str) -> float | None:
    """A line of Linux's /proc/self/status, in megabytes."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) / 1024 if found else None


def _reset_peak() -> bool:
    """Gives back what compilation has left behind, and lets Linux forget the peak so far."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # another C library than GNU's
        return False
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def median(result: dict[str, Any]) -> float | None:
    """The median milliseconds of a result of `time_ways`; None for an error."""
    times = result.get("milliseconds")
    return statistics.median(times) if times else None
