"""What a private search keeps in its project directory, apart from keras-tuner's own files.

private_search.json   the settings, the bound on a run, and in the end what is released
refused.json          why nothing can be released, where that is so
best/                 the released run's weights
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

FORMAT, VERSION = "keras_adaclip.PrivateSearch", 1
# How a search may have ended.
RELEASED, NO_RUN, FAILED = "released", "no run", "failed"
WEIGHTS, BUILD_CONFIG = "checkpoint.weights.h5", "build_config.json"


class SearchRecord:
    """The files of one search.

    Args:
        project_dir: the folder.
    """

    def __init__(self, project_dir: str | os.PathLike[str]) -> None:
        self._folder = Path(project_dir)

    @property
    def best_folder(self) -> Path:
        """Where the released run's weights are."""
        return self._folder / "best"

    @property
    def has_begun(self) -> bool:
        """Whether a search has begun here."""
        return self._file.exists()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, and what it releases stands fast."""
        return self.has_begun and "outcome" in self._read()

    @property
    def refusal(self) -> str | None:
        """Why nothing can be released; None where there is no reason."""
        path = self._folder / "refused.json"
        return str(json.loads(path.read_text("utf-8"))["reason"]) if path.exists() else None

    def refuse(self, reason: str) -> None:
        """Ends the search of all its processes, and releases nothing."""
        if self.refusal is None:
            _write(self._folder / "refused.json", {"reason": reason})

    def check(self, settings: dict[str, Any]) -> None:
        """Raises where the search that has begun here is another one.

        Args:
            settings: of the search at hand, as plain values.

        Raises:
            ValueError: where a setting differs.
        """
        begun = self._read()["settings"]
        plain = json.loads(json.dumps(settings))
        for name, value in plain.items():
            if begun.get(name) != value:
                raise ValueError(
                    f"The search that has begun in {str(self._folder)!r} has another `{name}`. "
                    "Go on with the same settings, or begin another search in another project: "
                    "what both spend adds up. "
                    f"Received: {name}={str(value)[:200]}, begun with {str(begun.get(name))[:200]}"
                )

    def begin(self, settings: dict[str, Any]) -> None:
        """Fixes the settings, before the first run."""
        document = {"format": FORMAT, "version": VERSION, "settings": settings}
        _write(self._file, document)

    def end(self, outcome: str, released: dict[str, Any] | None) -> None:
        """Fixes what is released."""
        _write(self._file, {**self._read(), "outcome": outcome, "released": released})

    def result(self) -> tuple[str, dict[str, Any] | None]:
        """What `end` has fixed."""
        document = self._read()
        return document["outcome"], document["released"]

    def keep_best(self, trial_dir: str | os.PathLike[str]) -> None:
        """Copies the weights of the run that is released."""
        self.best_folder.mkdir(exist_ok=True)
        for name in (WEIGHTS, BUILD_CONFIG):
            shutil.copyfile(Path(trial_dir) / name, self.best_folder / name)

    def remove_trials(self) -> None:
        """Deletes all that tells of other runs, and how many they were."""
        for path in self._folder.iterdir():
            if path.name.startswith("trial_") and path.is_dir():
                shutil.rmtree(path)
            elif path.suffix == ".json" and path.name not in _OURS:
                path.unlink()

    @property
    def _file(self) -> Path:
        return self._folder / "private_search.json"

    def _read(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self._file.read_text("utf-8"))
        if document.get("format") != FORMAT or document.get("version") != VERSION:
            raise ValueError(
                f"{str(self._file)!r} is no record of a private search that this release reads."
            )
        return document


_OURS = ("private_search.json", "refused.json")


def _write(path: Path, document: dict[str, Any]) -> None:
    """Writes a file at once: an interrupted process leaves the old one or the new one."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    draft.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    os.replace(draft, path)
