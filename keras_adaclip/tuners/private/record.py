"""The files of a private search in its project directory, beside those of keras-tuner.

private_search.json   the settings, the bound on a run, the ledger of a model when it is built, and
                      at the end what is released
refused.json          the reason, if nothing can be released
best/                 the weights of the released run
private_search.lock   held by the process that searches
"""

import contextlib
import json
import os
import shutil
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
RELEASED, NO_RUN, FAILED = "released", "no run", "failed"
# Files of a run.
WEIGHTS, BUILD_CONFIG = "checkpoint.weights.h5", "build_config.json"
_FORMAT, _VERSION = "keras_adaclip.PrivateSearch", 3
_RECORD, _REFUSAL, _LOCK = "private_search.json", "refused.json", "private_search.lock"


class SearchRecord:
    """The record of one search.

    Args:
        project_dir: the folder.
    """

    def __init__(self, project_dir: str | os.PathLike[str]) -> None:
        self._folder = Path(project_dir)
        self._file = self._folder / _RECORD
        self.best_folder = self._folder / "best"

    @property
    def has_begun(self) -> bool:
        """Whether a search has begun here."""
        return self._file.exists()

    @property
    def has_ended(self) -> bool:
        """Whether the search has ended, so that its release is fixed."""
        return self.has_begun and "outcome" in self._read()

    @property
    def refusal(self) -> str | None:
        """The reason why nothing can be released; None if there is none."""
        path = self._folder / _REFUSAL
        return str(json.loads(path.read_text("utf-8"))["reason"]) if path.exists() else None

    @property
    def first_ledger(self) -> Ledger:
        """The ledger of every model of the search when `build` returns it."""
        return RunBounds.from_list(self._read()["first_ledger"]).plans[0]

    def begin(self, settings: dict[str, Any], first_ledger: Ledger) -> None:
        """Fixes the settings, before the first run.

        Args:
            settings: of the search, as plain values.
            first_ledger: the ledger of every model when `build` returns it.
        """
        ledger = RunBounds((first_ledger,)).to_list()
        document = {"format": _FORMAT, "version": _VERSION, "settings": settings}
        write_whole(self._file, {**document, "first_ledger": ledger})

    def check(self, settings: dict[str, Any]) -> None:
        """Checks that the search that has begun here is the one at hand.

        Args:
            settings: of the search at hand, as plain values.

        Raises:
            ValueError: if a setting differs.
        """
        begun = self._read()["settings"]
        for name, value in json.loads(json.dumps(settings)).items():
            if begun.get(name) != value:
                raise ValueError(
                    f"The search that has begun in {str(self._folder)!r} has another `{name}`. "
                    "Continue it with the same settings, or begin another search in another "
                    "project: the costs of both add up. "
                    f"Received: {name}={str(value)[:200]}, begun with {str(begun.get(name))[:200]}"
                )

    def refuse(self, reason: str) -> None:
        """Ends the search without a release, for good."""
        if self.refusal is None:
            write_whole(self._folder / _REFUSAL, {"reason": reason})

    def end(self, outcome: str, released: dict[str, Any] | None = None) -> None:
        """Fixes what is released, once and for all.

        Raises:
            RuntimeError: if that is fixed already.
        """
        if self.has_ended:
            raise RuntimeError(
                f"The search in {str(self._folder)!r} has ended already, and its release is fixed."
            )
        write_whole(self._file, {**self._read(), "outcome": outcome, "released": released})

    def result(self) -> tuple[str, dict[str, Any] | None]:
        """The arguments of `end`."""
        document = self._read()
        return document["outcome"], document["released"]

    def keep_best(self, trial_dir: str | os.PathLike[str]) -> None:
        """Copies the weights of the run that is released."""
        self.best_folder.mkdir(exist_ok=True)
        for name in (WEIGHTS, BUILD_CONFIG):
            shutil.copyfile(Path(trial_dir) / name, self.best_folder / name)

    def remove_trials(self) -> None:
        """Deletes keras-tuner's files, which tell of other runs and of their number."""
        for path in self._folder.iterdir():
            if path.name.startswith("trial_") and path.is_dir():
                shutil.rmtree(path)
            elif ".json" in path.suffixes and path.name not in (_RECORD, _REFUSAL):
                path.unlink()

    def refuse_to_overwrite(self) -> None:
        """Checks that `overwrite` would delete no search.

        Raises:
            ValueError: if a search has begun here.
        """
        if self.has_begun or self.refusal is not None:
            raise ValueError(
                "Argument `overwrite` must be False: the folder holds a search that has begun, and "
                "its cost stays spent. Give another `project_name`: the costs of both add up. "
                f"Received: overwrite=True, folder {str(self._folder)!r}"
            )

    def _read(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._file.read_text("utf-8"))
        if document.get("format") != _FORMAT or document.get("version") != _VERSION:
            raise ValueError(
                f"{str(self._file)!r} is not a record of a private search of this release."
            )
        return document


@contextlib.contextmanager
def search_lock(project_dir: str | os.PathLike[str]) -> Iterator[None]:
    """Keeps other searches out of the folder: two of them would release two runs.

    The operating system holds the lock, and lets go of it when the process ends, however it does.

    Args:
        project_dir: the folder, which exists.

    Raises:
        RuntimeError: if another search holds the lock, or the file system has no locks.
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
                "lock files. Two searches would release two runs, and epsilon is that of one. "
                f"Wait until it ends, or choose another `directory`. Received: {error}"
            ) from error
        try:
            yield
        finally:
            if sys.platform != "win32":
                # Closing the file would not unlock it while a child process has it open.
                fcntl.flock(file, fcntl.LOCK_UN)


def write_whole(path: Path, document: dict[str, Any]) -> None:
    """Replaces a JSON file: a process that dies meanwhile leaves the old one.

    Args:
        path: the file, in a folder that exists.
        document: its contents.
    """
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(json.dumps(document, indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
