"""The files of a private search in its project directory.

private_search.json   the settings, and the ledger of a new model; during the search its state,
                      with the secret number of runs; at the end the outcome and what is released
run_0.weights.h5      during the search: the weights of the best run so far, and those of the run
run_1.weights.h5      under way
best.weights.h5       the weights of the released run
private_search.lock   held by the process that searches
"""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_adaclip.accounting import Ledger, RunBounds

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

# Outcomes of a search.
RELEASED, NO_RUN, FAILED, REFUSED = "released", "no run", "failed", "refused"
_FORMAT, _VERSION = "keras_adaclip.PrivateSearch", 4
_RECORD, _LOCK, _BEST = "private_search.json", "private_search.lock", "best.weights.h5"


@dataclasses.dataclass(frozen=True)
class SearchState:
    """The state of a search that has not ended.

    Args:
        num_runs: The secret number of runs.
        num_done: The number of runs that have ended.
        values: The hyperparameters of the run under way; None between two runs.
        best: The best run so far: its `hyperparameters`, `score`, `build_config` and `slot`, the
            number of its file; None if no run has a finite score.
        trained: Digests of the weights that private training has left, after every epoch.
    """

    num_runs: int
    num_done: int = 0
    values: dict[str, Any] | None = None
    best: dict[str, Any] | None = None
    trained: list[str] = dataclasses.field(default_factory=list)

    @property
    def free_slot(self) -> int:
        """The number of the file that does not hold the best weights."""
        return 0 if self.best is None else 1 - int(self.best["slot"])


class SearchRecord:
    """The record of one search.

    Args:
        project_dir: The folder.
        settings: The settings of the search, as plain values.

    Raises:
        ValueError: If the search that has begun in the folder has other settings.
    """

    def __init__(self, project_dir: str | os.PathLike[str], settings: dict[str, Any]) -> None:
        self.folder = Path(project_dir)
        self.best_weights = self.folder / _BEST
        self._file = self.folder / _RECORD
        self._settings = json.loads(json.dumps(settings))
        self.check()
        if self.outcome is not None:
            self._remove_runs()  # left by a process that was killed at the end

    @property
    def has_begun(self) -> bool:
        """Whether a search has begun here."""
        return self._file.exists()

    @property
    def outcome(self) -> str | None:
        """The outcome of the search; None before it has ended."""
        return self._read().get("outcome") if self.has_begun else None

    @property
    def released(self) -> Any:
        """The released run, or the reason why nothing can be released."""
        return self._read()["released"]

    @property
    def first_ledger(self) -> Ledger:
        """The ledger of every model of the search when `build` returns it."""
        return RunBounds.from_list(self._read()["first_ledger"]).plans[0]

    @property
    def state(self) -> SearchState:
        """The state of the search, which has not ended."""
        return SearchState(**self._read()["state"])

    def begin(self, first_ledger: Ledger, num_runs: int) -> None:
        """Fix the settings and the number of runs, before the first run.

        Args:
            first_ledger: The ledger of every model when `build` returns it.
            num_runs: The secret number of runs.
        """
        ledger = RunBounds((first_ledger,)).to_list()
        document = {"format": _FORMAT, "version": _VERSION, "settings": self._settings}
        state = dataclasses.asdict(SearchState(num_runs))
        self._write({**document, "first_ledger": ledger, "state": state})

    def check(self) -> None:
        """Raise `ValueError` if the search that has begun here has other settings."""
        begun = self._read()["settings"] if self.has_begun else self._settings
        for name, value in self._settings.items():
            if begun.get(name) != value:
                raise ValueError(
                    f"The search that has begun in {str(self.folder)!r} has another `{name}`. "
                    "Continue it with the same settings, or begin another search in another "
                    "project: the costs of both add up."
                )

    def save(self, state: SearchState) -> None:
        """Write the state of the search."""
        self._write({**self._read(), "state": dataclasses.asdict(state)})

    def end(self, outcome: str, released: Any = None) -> None:
        """Fix the outcome once and for all, and delete the state and the weights of other runs.

        Args:
            outcome: One of the outcomes above.
            released: The released run, or the reason why nothing can be released.
        """
        document = self._read()
        del document["state"]
        self._write({**document, "outcome": outcome, "released": released})
        self._remove_runs()

    def run_weights(self, slot: int) -> Path:
        """The file with the weights of a run.

        Args:
            slot: The number of the file, 0 or 1.
        """
        return self.folder / f"run_{slot}.weights.h5"

    def keep_best(self, slot: int) -> None:
        """Give the weights of the best run their final name, unless they have it already."""
        if self.run_weights(slot).exists():
            self.run_weights(slot).replace(self.best_weights)

    def _remove_runs(self) -> None:
        """Delete the weights of all runs but the released one."""
        for slot in (0, 1):
            self.run_weights(slot).unlink(missing_ok=True)

    def _read(self) -> dict[str, Any]:
        """Return the record; raise `ValueError` if this release cannot read it."""
        document: dict[str, Any] = json.loads(self._file.read_text("utf-8"))
        if document.get("format") != _FORMAT or document.get("version") != _VERSION:
            raise ValueError(
                f"{str(self._file)!r} is not a record of a private search of this release."
            )
        return document

    def _write(self, document: dict[str, Any]) -> None:
        """Replace the record as a whole: a process that dies meanwhile leaves the old one."""
        unfinished = self._file.with_name(f"{_RECORD}.unfinished")
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._file)


@contextlib.contextmanager
def search_lock(project_dir: str | os.PathLike[str]) -> Iterator[None]:
    """Keep other searches out of the folder, since two searches would release two runs.

    The operating system holds the lock, and releases it when the process ends, however it ends.

    Args:
        project_dir: The folder, which exists.

    Raises:
        RuntimeError: If another search holds the lock, or the file system has no locks.
    """
    path = Path(project_dir) / _LOCK
    with path.open("a", encoding="utf-8") as file:
        try:
            if sys.platform == "win32":
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RuntimeError(
                f"Another search is running in {str(path.parent)!r}, or its file system cannot "
                "lock files. Two searches would release two runs, but epsilon is that of one. "
                f"Wait until it ends, or choose another `directory`. Received: {error}"
            ) from error
        try:
            yield
        finally:
            if sys.platform != "win32":
                # Closing the file would not unlock it while a child process has it open.
                fcntl.flock(file, fcntl.LOCK_UN)
