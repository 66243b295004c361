"""Whether the wheel and the source archive hold what they should. Run by `make package`.

    python tests/packaging/distribution.py build/package

compares them with the files of this checkout and prints how many each has.
"""

import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Folders whose every file belongs into the source archive.
SOURCES = ("keras_adaclip", "tests", "examples", "benchmarks", "docs")
SINGLE_FILES = (
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "conftest.py",
    "mkdocs.yml",
    "pyproject.toml",
)


def files_under(folder: str) -> Iterator[str]:
    """Names, relative to the checkout, of what a person wrote in a folder."""
    for path in sorted((ROOT / folder).rglob("*")):
        name = path.relative_to(ROOT)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
        if path.is_file() and not hidden and name.parts[:2] != ("examples", "output"):
            yield name.as_posix()


def problems_of_wheel(names: set[str]) -> Iterator[str]:
    """What is wrong with the names in a wheel: the package, its licence, its metadata, no more."""
    expected = set(files_under("keras_adaclip"))
    added = {name for name in names if not name.partition("/")[0].endswith(".dist-info")}
    yield from (f"the wheel lacks {name}" for name in sorted(expected - names))
    yield from (f"the wheel has {name}" for name in sorted(added - expected))
    if "keras_adaclip/py.typed" not in names:
        yield "the wheel lacks py.typed"
    for ending in ("/METADATA", "/licenses/LICENSE"):
        if not any(name.endswith(ending) for name in names - added):
            yield f"the wheel lacks {ending}"


def problems_of_sdist(names: set[str]) -> Iterator[str]:
    """What is wrong with the names in a source archive, its top folder taken off."""
    expected = {*SINGLE_FILES, "PKG-INFO"}
    expected.update(name for folder in SOURCES for name in files_under(folder))
    yield from (f"the source archive lacks {name}" for name in sorted(expected - names))


def main(folder: Path) -> int:
    """Checks the one wheel and the one source archive in a folder."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if not name.endswith("/")}
    with tarfile.open(sdist) as archive:
        in_sdist = {member.name.partition("/")[2] for member in archive if member.isfile()}
    problems = [*problems_of_wheel(in_wheel), *problems_of_sdist(in_sdist)]
    print(*problems, sep="\n", end="\n" if problems else "")
    print(f"{wheel.name}: {len(in_wheel)} files; {sdist.name}: {len(in_sdist)} files")
    return len(problems) > 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
