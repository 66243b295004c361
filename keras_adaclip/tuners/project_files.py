"""Files of a search that are there whole or not at all, whenever the process is killed."""

import os
import uuid
from pathlib import Path


def write_whole(path: str | os.PathLike[str], text: str, *, is_lasting: bool = False) -> None:
    """Replaces a file by one with this text.

    Args:
        path: the file; its folder is there.
        text: what it is to hold.
        is_lasting: whether it must have reached the disk when this returns, so that it outlives
            the machine and not just the process.
    """
    path = Path(path)
    unfinished = unfinished_path(path)
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(text)
        if is_lasting:
            file.flush()
            os.fsync(file.fileno())
    unfinished.replace(path)
    if is_lasting:
        # The names are the folders' contents, and a trial's folder may be as new as its file.
        _bring_to_disk(path.parent)
        _bring_to_disk(path.parent.parent)


def unfinished_path(path: Path) -> Path:
    """A name beside `path` that no other process takes."""
    return path.with_name(f"{path.name}.{uuid.uuid4().hex}.unfinished")


def _bring_to_disk(folder: Path) -> None:
    """Waits until the names in a folder have reached the disk, where the system can tell."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
