"""Runs `measure.py` in a process of its own, and survives what happens to it."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
_WAY = re.compile(r"^way: (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Settings:
    """What every process is told alike; see `measure.py`.

    Args:
        repeats: measurements of each way.
        seconds: of training a measurement.
        steps: the most steps a measurement.
        limit: the most seconds for one step.
        device: "cpu" or "gpu".
        pin: one core, one thread, processor time.
        script: what measures.
        arguments: more of its arguments.
    """

    repeats: int
    seconds: float
    steps: int
    limit: float
    device: str
    pin: bool
    script: Path = _HERE / "measure.py"
    arguments: tuple[str, ...] = ()


def command(
    python: Path, framework: str, model: str, ways: Sequence[str], kind: str, settings: Settings
) -> list[str]:
    """The command of one process.

    Args:
        python: the interpreter.
        framework: a key of `MODULES`.
        model: a key of `SUITE`.
        ways: of the framework.
        kind: "times" or "memory".
        settings: what every process is told.
    """
    line = [str(python), "-W", "ignore", str(settings.script), model, *settings.arguments]
    line += ["--framework", framework, "--ways", *ways, "--device", settings.device]
    for name in ("repeats", "seconds", "steps", "limit"):
        line += [f"--{name}", str(getattr(settings, name))]
    return line + ["--pin"] * settings.pin + ["--memory"] * (kind == "memory")


def run(
    python: Path, framework: str, model: str, ways: Sequence[str], kind: str, settings: Settings
) -> Iterator[dict[str, Any]]:
    """Measures the ways, times of all together, memory each by itself.

    A process that dies takes its measurements with it. The way at whose turn it died is recorded
    with the reason, and the others get another process.

    Args:
        python: the interpreter.
        framework: a key of `MODULES`.
        model: a key of `SUITE`.
        ways: of the framework.
        kind: "times" or "memory".
        settings: what every process is told.

    Yields:
        Records for the file of results.
    """
    remaining = list(ways)
    while remaining:
        chosen = remaining[:1] if kind == "memory" else remaining
        record, culprit, reason = _one(
            command(python, framework, model, chosen, kind, settings), settings
        )
        if record is not None:
            yield record
            remaining = [way for way in remaining if way not in chosen]
            continue
        # Without a way, it did not come as far: none of them can be measured.
        dead = chosen if culprit is None else [culprit]
        failures = {way: {"error": reason} for way in dead}
        yield {"model": model, "framework": framework, "device": settings.device, kind: failures}
        remaining = [way for way in remaining if way not in dead]


def _one(line: list[str], settings: Settings) -> tuple[dict[str, Any] | None, str | None, str]:
    """Runs a process: its record, or the way at which it died and why."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT), "MPLBACKEND": "Agg"}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        code = subprocess.run(line, stdout=output, stderr=errors, env=environment).returncode
        output.seek(0)
        errors.seek(0)
        printed, said = output.read(), errors.read()
    if code == 0:
        return json.loads(printed.strip().splitlines()[-1]), None, ""
    ways = _WAY.findall(said)
    return None, ways[-1] if ways else None, reason_of_death(code, said, settings.limit)


def reason_of_death(code: int, said: str, limit: float) -> str:
    """Why a process ended.

    Args:
        code: its exit status, negative for a signal.
        said: its standard error.
        limit: the seconds that a step may take.
    """
    if "Timeout (" in said:
        return f"no step within {limit:g} s"
    if code == -9:
        return "killed, probably for memory"
    if code < 0:
        return f"died of signal {-code}"
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return (lines[-1] if lines else f"exit status {code}")[:200]
