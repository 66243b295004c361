"""The results file: one row a run, appended so that an interrupted comparison goes on."""

import contextlib
import csv
import hashlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .runs import RESULTS, Run

try:
    import fcntl
except ImportError:  # not on Windows, where one process at a time can work on a folder
    fcntl = None  # type: ignore[assignment]

_KEYS = tuple(field.name for field in fields(Run))
COLUMNS = ("experiment", *_KEYS, *RESULTS)


@dataclass(frozen=True)
class Result:
    """What a run gave."""

    accuracy: float
    epsilon_spent: float
    seconds: float
    accuracy_by_epoch: tuple[float, ...]
    threshold_by_epoch: tuple[float, ...]
    accuracy_of_average: float | None = None
    computed_on: str = ""


class ResultsFile:
    """`runs.csv` in a folder that several processes may share.

    Args:
        folder: the folder; made where it is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "runs.csv"
        self._claims = folder / ".claims"
        folder.mkdir(parents=True, exist_ok=True)

    def read(self) -> dict[tuple[str, ...], Result]:
        """Every finished run by its key; a row that was cut off in the middle counts for none."""
        if not self.path.exists():
            return {}
        complete, newline, _ = self.path.read_text(encoding="utf-8").rpartition("\n")
        rows = csv.DictReader(io.StringIO(complete + newline))
        return {tuple(row[name] for name in _KEYS): _result(row) for row in rows}

    def append(self, experiment: str, run: Run, result: dict[str, Any]) -> None:
        """Adds a row: in one write, and on the disk when this returns.

        Args:
            experiment: for which the run was made first.
            run: the run.
            result: the values of `RESULTS`.
        """
        values = [json.dumps(v) if isinstance(v, list) else v for v in map(result.get, RESULTS)]
        with _locked(self.path) as file:
            header, newline, rows = file.read().partition(b"\n")
            complete = rows[: rows.rfind(b"\n") + 1]
            added = _line([experiment, *run.key, *values]).encode()
            if header + newline == _line(COLUMNS).encode():
                file.truncate(len(header + newline + complete))
            else:  # There is none yet, or that of a version with fewer columns.
                file.truncate(0)
                added = _line(COLUMNS).encode() + complete + added
            file.write(added)
            file.flush()
            os.fsync(file.fileno())

    @contextlib.contextmanager
    def claim(self, run: Run) -> Iterator[bool]:
        """Whether this process may make the run; the claim ends with the block or the process.

        Args:
            run: the run to claim.
        """
        self._claims.mkdir(exist_ok=True)
        path = self._claims / hashlib.sha256("\n".join(run.key).encode()).hexdigest()[:24]
        with path.open("ab") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    yield False
                    return
            # Another process may have finished it since the results were read.
            yield run.key not in self.read()


def _result(row: dict[str, str]) -> Result:
    # The first runs that were made lack it.
    average = row.get("accuracy_of_average")
    return Result(
        accuracy=float(row["accuracy"]),
        epsilon_spent=float(row["epsilon_spent"]),
        seconds=float(row["seconds"]),
        accuracy_by_epoch=tuple(json.loads(row["accuracy_by_epoch"])),
        threshold_by_epoch=tuple(json.loads(row["threshold_by_epoch"])),
        accuracy_of_average=float(average) if average else None,
        computed_on=row.get("computed_on") or "",
    )


def _line(values: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[Any]:
    with path.open("ab+") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file
