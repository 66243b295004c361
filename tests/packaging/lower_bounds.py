"""The oldest releases that `pyproject.toml` allows, as constraints for pip.

    python tests/packaging/lower_bounds.py tensorflow jax > oldest.txt

prints `numpy==1.26` for `numpy>=1.26`, and so on, for the dependencies and the extras named.
"""

import re
import sys
import tomllib
from collections.abc import Iterable
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


if __name__ == "__main__":
    print("\n".join(lower_bound(requirement) for requirement in requirements(sys.argv[1:])))
