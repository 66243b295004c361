"""The files of a private search in its project directory.

private_search.json       the settings, from the beginning; the outcome and what is released, from
                          the end
unreleased.weights.h5     during the search: the weights of the best run so far
best.weights.h5           the weights of the released run
"""

import json
import os
from pathlib import Path
from typing import Any

# Outcomes of a search. Without another one, a search is under way or was interrupted.
RELEASED, NO_RUN, FAILED, REFUSED = "released", "no run", "failed", "refused"
UNFINISHED = "unfinished"
_FORMAT, _VERSION = "keras_adaclip.PrivateSearch", 5
_RECORD, _UNRELEASED, _BEST = "private_search.json", "unreleased.weights.h5", "best.weights.h5"


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
        self.unreleased_weights = self.folder / _UNRELEASED
        self._file = self.folder / _RECORD
        self._settings = json.loads(json.dumps(settings))
        self.check()

    @property
    def outcome(self) -> str | None:
        """The outcome of the search; None before it has begun."""
        return self._read()["outcome"] if self._file.exists() else None

    @property
    def released(self) -> Any:
        """The released run, or the reason why nothing can be released."""
        return self._read()["released"]

    def check(self) -> None:
        """Raise `ValueError` if the search that has begun here has other settings."""
        begun = self._read()["settings"] if self._file.exists() else self._settings
        for name, value in self._settings.items():
            if begun.get(name) != value:
                raise ValueError(
                    f"The search that has begun in {str(self.folder)!r} has another `{name}`. "
                    "Begin another search in another project: the costs of both add up."
                )

    def begin(self) -> None:
        """Claim the folder for good, before the first run.

        Raises:
            FileExistsError: If a search has begun here, perhaps in another process.
        """
        self._write(self._file, "x", UNFINISHED)

    def end(self, outcome: str, released: Any = None) -> None:
        """Fix the outcome once and for all, and delete weights that are not released.

        Args:
            outcome: One of the outcomes above.
            released: The released run, or the reason why nothing can be released.
        """
        if outcome == RELEASED:
            self.unreleased_weights.replace(self.best_weights)
        self.unreleased_weights.unlink(missing_ok=True)
        # Replaced as a whole: a process that dies meanwhile leaves a search without an end.
        unfinished = self._file.with_name(f"{_RECORD}.unfinished")
        self._write(unfinished, "w", outcome, released)
        unfinished.replace(self._file)

    def _read(self) -> dict[str, Any]:
        """Return the record; raise `ValueError` if this release cannot read it."""
        try:
            document: dict[str, Any] = json.loads(self._file.read_text("utf-8"))
        except json.JSONDecodeError:
            document = {}
        if document.get("format") != _FORMAT or document.get("version") != _VERSION:
            raise ValueError(
                f"{str(self._file)!r} is not a record of a private search of this release."
            )
        return document

    def _write(self, path: Path, mode: str, outcome: str, released: Any = None) -> None:
        """Write a record to the disk."""
        document = {"format": _FORMAT, "version": _VERSION, "settings": self._settings}
        document |= {"outcome": outcome, "released": released}
        with path.open(mode, encoding="utf-8") as file:
            file.write(json.dumps(document, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
