"""Puts each fault into a copy of the package and runs the tests that should catch it.

    python -m tests.faults.inject [TITLE-PART ...]

prints a Markdown table of the faults and the first test that fails with each. Ends with status 1
if a fault survives. Needs PyTorch and TensorFlow; takes about half an hour on two cores.
"""

import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
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
    for old, new in fault.changes:
        if text.count(old) != 1:
            raise ValueError(f"{fault.title}: {old!r} occurs {text.count(old)} times")
        text = text.replace(old, new)
    return text


def first_failure(tests: str, backend: str, fault: Fault | None = None) -> str | None:
    """The first of the tests that fails with a fault in the package; None if none does."""
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
            env={**os.environ, "PYTHONPATH": folder, "KERAS_BACKEND": backend},
            capture_output=True,
            text=True,
            check=False,
        )
    # A fault that breaks the collection of tests was not caught by any of them.
    found = re.search(r"^FAILED tests/(.+?)(?: - |$)", run.stdout, re.MULTILINE)
    return found[1] if found else None


def caught(fault: Fault) -> bool:
    """Injects a fault, prints its row of the table, and tells whether a test has failed."""
    caught_by = first_failure(fault.tests, fault.backend, fault)
    shown = "**none**" if caught_by is None else f"`{caught_by}`"
    print(f"| {fault.title} | {shown} |", flush=True)
    return caught_by is not None


def main() -> None:
    """Prints the table."""
    parts = sys.argv[1:] or [""]
    wanted = [fault for fault in FAULTS if any(part in fault.title for part in parts)]
    for backend in dict.fromkeys(fault.backend for fault in wanted):
        names = (fault.tests.split() for fault in wanted if fault.backend == backend)
        tests = " ".join(dict.fromkeys(itertools.chain.from_iterable(names)))
        if (failed := first_failure(tests, backend)) is not None:
            sys.exit(f"Without any fault {failed} fails.")
    print("| fault | first test that catches it |")
    print("| --- | --- |")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sys.exit(0 if all(list(pool.map(caught, wanted))) else 1)


if __name__ == "__main__":
    main()
