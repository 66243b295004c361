"""One process at a time searches in a folder: two would each release a best run of their own."""

import json
import os
import socket
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# Files that this very process holds: a number of a process that has died may be given to another.
_HELD: set[Path] = set()


class SearchLock:
    """A file that stands in the folder for the time of a search, and says whose search it is.

    What a dead process of this machine has left is taken over.

    Args:
        project_dir: the folder, which is there.

    Raises:
        RuntimeError: on entering, where another search is under way.
    """

    def __init__(self, project_dir: str | os.PathLike[str]) -> None:
        self._path = (Path(project_dir) / "private_search.lock").absolute()

    def __enter__(self) -> Self:
        owner = {"process": os.getpid(), "host": socket.gethostname()}
        for _ in range(2):
            try:
                descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                self._remove_if_stale()
                continue
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(owner, file)
            _HELD.add(self._path)
            return self
        raise RuntimeError(
            f"Another search is under way in {str(self._path.parent)!r}: "
            f"{json.dumps(self._owner())}. Two of them would release two runs, and epsilon is that "
            f"of one. Wait for its end; if it runs no more, delete {str(self._path)!r}."
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _HELD.discard(self._path)
        self._path.unlink(missing_ok=True)

    def _owner(self) -> Any:
        """Who holds the file; None where it is not there, or not written yet."""
        try:
            return json.loads(self._path.read_text("utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def _remove_if_stale(self) -> None:
        """Removes the file of a dead process, unless another one was quicker."""
        owner = self._owner()
        if owner is None or not self._has_died(owner):
            return
        taken = self._path.with_name(f"{self._path.name}.{uuid.uuid4().hex}")
        try:
            self._path.rename(taken)
        except FileNotFoundError:
            return
        if json.loads(taken.read_text("utf-8") or "null") != owner:
            # That of a process which has taken over meanwhile.
            taken.rename(self._path)
        else:
            taken.unlink()

    def _has_died(self, owner: dict[str, Any]) -> bool:
        if owner["host"] != socket.gethostname():
            return False
        if owner["process"] == os.getpid():
            return self._path not in _HELD
        if os.name != "posix":
            # Asking for a process would end it there.
            return False
        try:
            os.kill(owner["process"], 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            # It is another user's.
            return False
        return False
