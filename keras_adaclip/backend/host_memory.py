"""The memory of the process and of the machine, on Linux, for `microbatch_size="auto"`."""

import ctypes
import gc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

_CGROUP = Path("/sys/fs/cgroup")
_MEASURED_ON_LINUX_ONLY = (
    'microbatch_size="auto" measures memory, which on a CPU works on Linux only. Give '
    "`microbatch_size` as a number."
)


def in_use() -> int:
    """Return the number of bytes that the process has now."""
    gc.collect()
    # Memory that the C library keeps for later would hide a peak.
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    return _read("/proc/self/status", "VmRSS")


def reset_peak() -> None:
    """Make `peak` start from the memory in use."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        raise ValueError(_MEASURED_ON_LINUX_ONLY) from error


def peak() -> int:
    """Return the largest number of bytes that the process has had since `reset_peak`."""
    return _read("/proc/self/status", "VmHWM")


def peaks(
    run: Callable[[Any], Any],
    arguments: Iterable[Any],
    in_use: Callable[[], int] = in_use,
    reset_peak: Callable[[], Any] = reset_peak,
    peak: Callable[[], int] = peak,
) -> Iterator[int]:
    """Yield the number of bytes that `run` needs for each argument.

    Args:
        run: The function.
        arguments: Its arguments, one a run.
        in_use: Returns the bytes in use. Called once: memory that a run has freed may not be
            returned to the system, and would hide that of the next one.
        reset_peak: Starts a new measurement.
        peak: Returns the largest number of bytes in use since `reset_peak`.

    Raises:
        ValueError: If the system does not say.
    """
    before = in_use()
    for argument in arguments:
        reset_peak()
        run(argument)
        yield peak() - before


def free_memory() -> int:
    """Return the number of bytes that the process may still allocate.

    Raises:
        ValueError: If the system does not say.
    """
    free = _read("/proc/meminfo", "MemAvailable")
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        return min(free, limit - int((_CGROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # There is no limit, or there are no control groups.
        return free


def _read(path: str, name: str) -> int:
    """Return a number of bytes from a file of the kernel."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError as error:
        raise ValueError(_MEASURED_ON_LINUX_ONLY) from error
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))
