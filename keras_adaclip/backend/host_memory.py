"""The memory of the process and of the machine, on Linux."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PROCESS = Path("/proc/self")
_CGROUP = Path("/sys/fs/cgroup")
# Written to `clear_refs`, it resets the peak to the memory in use.
_RESET_PEAK = "5"


def peak_during(function: Callable[[], Any]) -> int:
    """Return the largest number of bytes that the process has while `function` runs.

    Raises:
        ValueError: If the system does not say.
    """
    try:
        (_PROCESS / "clear_refs").write_text(_RESET_PEAK)
    except OSError as error:
        raise _not_measured(error) from error
    function()
    return _read(_PROCESS / "status", "VmHWM")


def in_use() -> int:
    """Return the number of bytes that the process has now.

    Raises:
        ValueError: If the system does not say.
    """
    gc.collect()
    # Memory that the C library keeps for later would hide a peak.
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    return _read(_PROCESS / "status", "VmRSS")


def free_memory() -> int:
    """Return the number of bytes that the process may still allocate.

    Raises:
        ValueError: If the system does not say.
    """
    free = _read(Path("/proc/meminfo"), "MemAvailable")
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        return min(free, limit - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # There is no limit, or there are no control groups.
        return free


def _read(path: Path, name: str) -> int:
    """Return a number of bytes from a file of the kernel."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise _not_measured(error) from error
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def _not_measured(error: OSError) -> ValueError:
    return ValueError(
        'microbatch_size="auto" measures memory, which on a CPU works on Linux only. Give '
        f"`microbatch_size` as a number. ({error})"
    )
