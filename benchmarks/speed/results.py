"""The file of results: every process that measured something, added as soon as it ends."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

Record = dict[str, Any]

WALL, PROCESSOR = "wall time", "processor time, one core"
"""The clocks: on all cores, and on one pinned core."""

KINDS: dict[str, tuple[str, str]] = {
    "wall": ("times", WALL),
    "processor": ("times", PROCESSOR),
    "start": ("start", WALL),
    "memory": ("memory", PROCESSOR),
}
"""What can be measured: its entry in a record, and the clock on a CPU."""


def clock_of(kind: str, device: str) -> str:
    """The clock of a measurement.

    Args:
        kind: a key of `KINDS`.
        device: "cpu" or "gpu".
    """
    return WALL if device == "gpu" else KINDS[kind][1]


class ResultsFile:
    """`results.json`, read at the start and written anew after each addition.

    A record has `model`, `framework`, `round` (None for memory) and what `measure.py` printed: with
    `clock`, and `times`, `start` or `memory`, by way.

    Args:
        path: of the file, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        content = json.loads(path.read_text()) if path.exists() else {}
        self.machine: dict[str, Any] = content.get("machine", {})
        self.records: list[Record] = content.get("records", [])

    def add(self, record: Record) -> None:
        """Adds a record and writes the file.

        Args:
            record: what a process measured.
        """
        self.records.append(record)
        self.write()

    def write(self) -> None:
        """Writes the file, in one move so that an interruption leaves the old one."""
        lines = ",\n".join(json.dumps(record) for record in self.records)
        text = f'{{"machine": {json.dumps(self.machine)},\n"records": [\n{lines}\n]}}\n'
        temporary = self.path.with_suffix(".part")
        temporary.write_text(text)
        temporary.replace(self.path)

    def measured(self, kind: str, model: str, framework: str, round_number: int | None) -> set[str]:
        """The ways that a round has a result for, errors included.

        Args:
            kind: a key of `KINDS`.
            model: a key of `SUITE`.
            framework: a key of `MODULES`.
            round_number: of the round; None for memory.
        """
        entry, clock = KINDS[kind]
        return {
            way
            for record in self._of(model, framework)
            if record["round"] == round_number
            and (entry != "times" or record.get("clock", PROCESSOR) == clock)
            for way in record.get(entry, ())
        }

    def failed(self, kind: str, model: str, framework: str) -> set[str]:
        """The ways that have failed in any round. Failures on one core say nothing of all cores.

        Args:
            kind: a key of `KINDS`.
            model: a key of `SUITE`.
            framework: a key of `MODULES`.
        """
        return {
            way
            for record in self._of(model, framework)
            if kind not in ("wall", "start") or record.get("clock", PROCESSOR) == WALL
            for entry in ("times", "start", "memory")
            for way, result in record.get(entry, {}).items()
            if "error" in result
        }

    def _of(self, model: str, framework: str) -> list[Record]:
        return [
            record
            for record in self.records
            if record["model"] == model and record["framework"] == framework
        ]


def machine() -> dict[str, Any]:
    """What the measurements are taken on."""
    names: dict[str, str] = {}
    memory = None
    if Path("/proc/cpuinfo").exists():
        lines = [line.split(":", 1) for line in Path("/proc/cpuinfo").read_text().splitlines()]
        names = {key[0].strip(): key[1].strip() for key in reversed(lines) if len(key) == 2}
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cpu = names.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in names:  # the name alone can be as short as the maker's
        cpu += f" (family {names['cpu family']}, model {names.get('model', '?')})"
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gigabytes": None if memory is None else round(memory, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "accelerator": _command("nvidia-smi", "--query-gpu=name", "--format=csv,noheader"),
    }


def revision() -> str | None:
    """The commit of this checkout, with a plus sign where files differ from it."""
    name = _command("git", "rev-parse", "--short", "HEAD")
    if name is None:
        return None
    changed = _command(
        "git", "status", "--porcelain", "--untracked-files=no", "--", "keras_adaclip"
    )
    return name + ("+" if changed else "")


def _command(*line: str) -> str | None:
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, cwd=Path(__file__).parent.parent.parent
        )
    except OSError:
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
