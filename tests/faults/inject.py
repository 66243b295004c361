"""Puts each fault into a copy of the package and runs the tests that should catch it.

    KERAS_BACKEND=torch python -m tests.faults.inject [TITLE-PART ...]

prints a Markdown table of the faults and the first test that fails with each. Ends with status 1
where a fault survives.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.faults.table import FAULTS, Fault

ROOT = Path(__file__).parents[2]
_COPIED = ("keras_adaclip", "tests", "conftest.py", "pyproject.toml")


def broken(fault: Fault, root: Path) -> str:
    """The text of the fault's file with the fault in it.

    Raises:
        ValueError: where the text to change does not occur exactly once.
    """
    text = (root / "keras_adaclip" / fault.file).read_text()
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.title}: {fault.old!r} occurs {text.count(fault.old)} times")
    return text.replace(fault.old, fault.new)


def catching_test(fault: Fault) -> str | None:
    """The first test that fails where the fault is in the package, None where none does."""
    with tempfile.TemporaryDirectory() as folder:
        for name in _COPIED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, Path(folder) / name)
        (Path(folder) / "keras_adaclip" / fault.file).write_text(broken(fault, ROOT))
        command = ["-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-x"]
        run = subprocess.run(
            [sys.executable, *command, *fault.tests.split()],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    # What breaks the collection of tests is no test that catches.
    found = re.search(r"^FAILED tests/(.+?)(?: - |$)", run.stdout, re.MULTILINE)
    return found[1] if found else None


def main() -> None:
    """Prints the table."""
    wanted = [
        fault
        for fault in FAULTS
        if not sys.argv[1:] or any(part in fault.title for part in sys.argv[1:])
    ]
    survivors = 0
    print("| fault | first test that catches it |")
    print("| --- | --- |")
    for fault in wanted:
        caught_by = catching_test(fault)
        survivors += caught_by is None
        shown = "**none**" if caught_by is None else f"`{caught_by}`"
        print(f"| {fault.title} | {shown} |", flush=True)
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
