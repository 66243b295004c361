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
_COPIED = ("keras_adaclip", "tests", "docs", "conftest.py", "pyproject.toml")


def broken(fault: Fault, root: Path) -> str:
    """The text of the fault's file with the fault in it.

    Raises:
        ValueError: where the text to change does not occur exactly once.
    """
    text = (root / "keras_adaclip" / fault.file).read_text()
    for old, new in ((fault.old, fault.new), *([fault.also] if fault.also else [])):
        if text.count(old) != 1:
            raise ValueError(f"{fault.title}: {old!r} occurs {text.count(old)} times")
        text = text.replace(old, new)
    return text


def first_failure(fault: Fault | None, tests: str) -> str | None:
    """The first of the tests that fails with a fault in the package, None where none does."""
    with tempfile.TemporaryDirectory() as folder:
        for name in _COPIED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, Path(folder) / name)
        if fault is not None:
            (Path(folder) / "keras_adaclip" / fault.file).write_text(broken(fault, ROOT))
        command = ["-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-x"]
        run = subprocess.run(
            [sys.executable, *command, *tests.split()],
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
    all_tests = " ".join(dict.fromkeys(name for fault in wanted for name in fault.tests.split()))
    if (failed := first_failure(None, all_tests)) is not None:
        sys.exit(f"Without any fault {failed} fails.")
    survivors = 0
    print("| fault | first test that catches it |")
    print("| --- | --- |")
    for fault in wanted:
        caught_by = first_failure(fault, fault.tests)
        survivors += caught_by is None
        shown = "**none**" if caught_by is None else f"`{caught_by}`"
        print(f"| {fault.title} | {shown} |", flush=True)
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
