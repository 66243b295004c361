"""The oldest releases that `pyproject.toml` allows, and those that an environment has.

    python tests/packaging/releases.py oldest tensorflow jax > constraints.txt
    python tests/packaging/releases.py installed tensorflow jax

The first command prints constraints for pip, `numpy==1.26` for `numpy>=1.26`. The second prints one
line for a log. Both cover the dependencies and the extras named.
"""

import platform
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
PROJECT = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def requirements(extras: Iterable[str] = ()) -> list[str]:
    """Return the dependencies of `pyproject.toml`, then those of the extras."""
    return [*PROJECT["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]


def name_of(requirement: str) -> str:
    """Return the project of a requirement: `mkdocstrings` of `mkdocstrings[python]>=0.26`."""
    return re.match(r"[A-Za-z0-9][\w.-]*", requirement)[0]


def lower_bound(requirement: str) -> str:
    """Return the oldest release that a requirement allows: `numpy==1.26` of `numpy>=1.26`."""
    bound = re.search(r"[>=]=\s*([\w.]+)", requirement)
    if bound is None:
        raise ValueError(f"Expected a requirement with `>=` or `==`. Received: {requirement}")
    return f"{name_of(requirement)}=={bound[1]}"


def installed(requirement: str) -> str:
    """Return the project of a requirement, with the release that this environment has."""
    name = name_of(requirement)
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} missing"


if __name__ == "__main__":
    command, *extras = sys.argv[1:]
    if command == "oldest":
        print(*map(lower_bound, requirements(extras)), sep="\n")
    else:
        python = f"Python {platform.python_version()}"
        print(python, *map(installed, requirements(extras)), sep=", ")
