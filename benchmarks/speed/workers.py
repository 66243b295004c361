"""Runs `measure.py` in a process of its own, and survives what happens to it."""

import contextlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import KINDS, PROCESSOR, clock_of

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
        process_limit: the most seconds for a process; None for no limit.
        device: "cpu" or "gpu".
        script: what measures.
        arguments: more of its arguments.
    """

    repeats: int
    seconds: float
    steps: int
    limit: float
    process_limit: float | None
    device: str
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
        kind: a key of `KINDS`.
        settings: what every process is told.
    """
    line = [str(python), "-W", "ignore", str(settings.script), model, *settings.arguments]
    line += ["--framework", framework, "--ways", *ways, "--device", settings.device]
    for name in ("repeats", "seconds", "steps", "limit"):
        line += [f"--{name}", str(getattr(settings, name))]
    line += ["--pin"] * (clock_of(kind, settings.device) == PROCESSOR)
    return line + [f"--{kind}"] * (kind in ("start", "memory"))


def run(
    python: Path, framework: str, model: str, ways: Sequence[str], kind: str, settings: Settings
) -> Iterator[dict[str, Any]]:
    """Measures the ways: times of all together, starts and memory each by itself.

    A process that dies takes its measurements with it. The way at whose turn it died is recorded
    with the reason, and the others get another process.

    Args:
        python: the interpreter.
        framework: a key of `MODULES`.
        model: a key of `SUITE`.
        ways: of the framework.
        kind: a key of `KINDS`.
        settings: what every process is told.

    Yields:
        Records for the file of results.
    """
    remaining = list(ways)
    while remaining:
        chosen = remaining[:1] if kind in ("start", "memory") else remaining
        record, culprit, reason = _one(
            command(python, framework, model, chosen, kind, settings), settings
        )
        if record is not None:
            yield record
            remaining = [way for way in remaining if way not in chosen]
            continue
        # Without a way, it did not come as far: none of them can be measured.
        dead = chosen if culprit is None else [culprit]
        yield {
            "model": model,
            "framework": framework,
            "device": settings.device,
            "clock": clock_of(kind, settings.device),
            KINDS[kind][0]: {way: {"error": reason} for way in dead},
        }
        remaining = [way for way in remaining if way not in dead]


def _one(line: list[str], settings: Settings) -> tuple[dict[str, Any] | None, str | None, str]:
    """Runs a process: its record, or the way at which it died and why."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "MPLBACKEND": "Agg"}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        limit, code = settings.process_limit, None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = subprocess.run(
                line, stdout=output, stderr=errors, env=environment, timeout=limit
            ).returncode
        output.seek(0)
        errors.seek(0)
        printed, said = output.read(), errors.read()
    if code == 0:
        return json.loads(printed.strip().splitlines()[-1]), None, ""
    ways = _WAY.findall(said)
    reason = reason_of_death(code, said, settings.limit) if code is not None else ""
    return None, ways[-1] if ways else None, reason or f"no result within {limit:g} s"


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
