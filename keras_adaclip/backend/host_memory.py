"""How much memory of the machine a computation takes, as Linux counts it."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PROCESS = Path("/proc/self")
_CGROUP = Path("/sys/fs/cgroup")
# What to write to `clear_refs` to make the peak start anew from what is in use.
_RESET_PEAK = "5"


def peak_during(function: Callable[[], Any]) -> int:
    """The bytes that the process has at most while `function` runs.

    Raises:
        ValueError: where the system does not tell.
    """
    try:
        (_PROCESS / "clear_refs").write_text(_RESET_PEAK)
        function()
        return _status("VmHWM")
    except OSError as error:
        raise _untold(error) from error


def in_use() -> int:
    """The bytes that the process has now.

    Raises:
        ValueError: where the system does not tell.
    """
    gc.collect()
    _return_free_memory()
    try:
        return _status("VmRSS")
    except OSError as error:
        raise _untold(error) from error


def free_memory() -> int:
    """The bytes that the process may still take.

    Raises:
        ValueError: where the system does not tell.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError as error:
        raise ValueError(
            'microbatch_size="auto" needs to know how much memory there is: give `memory_limit`, '
            f"in bytes. ({error})"
        ) from error
    free = next(_kibibytes(line) for line in lines if line.startswith("MemAvailable"))
    try:
        most = int((_CGROUP / "memory.max").read_text())
        free = min(free, most - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # No limit is set, or there are no such groups.
        pass
    return free


def _untold(error: OSError) -> ValueError:
    return ValueError(
        'microbatch_size="auto" measures the memory of a step, and on a CPU that takes Linux. '
        f"Give a number. ({error})"
    )


def _status(name: str) -> int:
    lines = (_PROCESS / "status").read_text().splitlines()
    return next(_kibibytes(line) for line in lines if line.startswith(name))


def _kibibytes(line: str) -> int:
    return 1024 * int(line.split()[1])


def _return_free_memory() -> None:
    """Gives back what the C library keeps for later, where it can: it would hide a peak."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
