"""What a private search keeps in its project directory, apart from keras-tuner's own files.

private_search.json   the settings, the bound on a run, what a model has spent when it is built, and
                      in the end what is released
refused.json          why nothing can be released, where that is so
best/                 the released run's weights
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from keras_adaclip.accounting import Ledger, RunBounds
from keras_adaclip.tuners.project_files import write_whole

FORMAT, VERSION = "keras_adaclip.PrivateSearch", 3
# How a search may have ended.
RELEASED, NO_RUN, FAILED = "released", "no run", "failed"
# What keras-tuner gets of a failed run in the place of NaN, of which it warns. Exact in the single
# precision of its messages between processes.
WORST = float(np.finfo(np.float32).max)
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

    def begin(self, settings: dict[str, Any], first_ledger: Ledger) -> None:
        """Fixes the settings, before the first run.

        Args:
            settings: of the search, as plain values.
            first_ledger: what every model has spent when `build` returns it.
        """
        document = {"format": FORMAT, "version": VERSION, "settings": settings}
        document["first_ledger"] = RunBounds((first_ledger,)).to_list()
        _write(self._file, document)

    @property
    def first_ledger(self) -> Ledger:
        """What every model of the search has spent when `build` returns it."""
        return RunBounds.from_list(self._read()["first_ledger"]).plans[0]

    def end(self, outcome: str, released: dict[str, Any] | None) -> None:
        """Fixes what is released, once for all.

        Raises:
            RuntimeError: where that was done before.
        """
        if self.has_ended:
            raise RuntimeError(
                f"The search in {str(self._folder)!r} has ended already, in another process: what "
                "that has released stands."
            )
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


def refuse_to_overwrite(directory: str | os.PathLike[str] | None, project_name: str | None) -> None:
    """Raises where the folder that `overwrite` would delete holds a search.

    Args:
        directory: as of keras-tuner.
        project_name: as of keras-tuner.

    Raises:
        ValueError: where a search has begun there.
    """
    folder = Path(directory or ".") / (project_name or "untitled_project")
    record = SearchRecord(folder)
    if record.has_begun or record.refusal is not None:
        raise ValueError(
            "Argument `overwrite` must be False here: the folder holds a search that has begun, "
            "and what that has spent stays spent. Give another `project_name`: what both spend "
            f"adds up. Received: overwrite=True, folder {str(folder)!r}"
        )


_OURS = ("private_search.json", "refused.json")


def _write(path: Path, document: dict[str, Any]) -> None:
    write_whole(path, json.dumps(document, indent=2) + "\n")
