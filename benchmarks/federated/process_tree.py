"""Processor time and memory of this process and of all that it has started, on Linux.

Ray starts processes that stay: the system tells of children only when they have ended.
"""

import os
from pathlib import Path

_PROC = Path("/proc")


def processor_seconds() -> float:
    """Processor time of this process and of all below it, ended ones included."""
    ticks = 0
    for process in descendants(os.getpid()):
        fields = _stat(process)
        # utime, stime, and those of children that have ended
        ticks += sum(map(int, fields[11:15])) if fields else 0
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_resident_bytes() -> int:
    """The sum of the highest memory of this process and of each below it.

    Pages that processes share count for each, and not all processes are at their highest at once.
    """
    total = 0
    for process in descendants(os.getpid()):
        try:
            lines = (_PROC / str(process) / "status").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return total


def descendants(root: int) -> list[int]:
    """A process and all below it.

    Args:
        root: its number.
    """
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for process in found:
        found += children.get(process, [])
    return found


def _stat(process: int) -> list[str]:
    """The fields of a process from its state on; none where it has ended."""
    try:
        text = (_PROC / str(process) / "stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()
