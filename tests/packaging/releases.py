"""The oldest releases that `pyproject.toml` allows, and those that an environment has.

    python tests/packaging/releases.py oldest tensorflow jax > constraints.txt
    python tests/packaging/releases.py installed tensorflow jax

The first prints `numpy==1.26` for `numpy>=1.26` and so on, as constraints for pip; the second one
line for a log. Both are about the dependencies and about the extras named.
"""

import platform
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"


def requirements(extras: Iterable[str] = ()) -> list[str]:
    """The dependencies of `pyproject.toml`, then those of the extras."""
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    found = list(project["dependencies"])
    for extra in extras:
        found += project["optional-dependencies"][extra]
    return found


def name_of(requirement: str) -> str:
    """`mkdocstrings[python]>=0.26` is about `mkdocstrings`."""
    return re.match(r"[A-Za-z0-9][\w.-]*", requirement)[0]


def lower_bound(requirement: str) -> str:
    """`numpy>=1.26` allows nothing older than `numpy==1.26`."""
    bound = re.search(r"[>=]=\s*([\w.]+)", requirement)
    if bound is None:
        raise ValueError(f"Expected a requirement with `>=` or `==`. Received: {requirement}")
    return f"{name_of(requirement)}=={bound[1]}"


def installed(requirement: str) -> str:
    """The requirement's name with the release that this environment has."""
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
