"""Whether the wheel and the source archive hold the files of this checkout. Run by `make package`.

python tests/packaging/distribution.py build/package
"""

import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Files and folders of the source archive.
SOURCES = (
    *("keras_adaclip", "tests", "examples", "benchmarks", "docs"),
    *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"),
    *("Makefile", "conftest.py", "mkdocs.yml", "pyproject.toml"),
)


def files_under(*sources: str) -> set[str]:
    """Return the names, relative to the checkout, of the files that a person wrote."""
    paths = {path for each in sources for path in (ROOT / each, *(ROOT / each).rglob("*"))}
    names = {path.relative_to(ROOT) for path in paths if path.is_file()}
    return {
        name.as_posix()
        for name in names
        if not any(part.startswith(".") or part == "__pycache__" for part in name.parts)
        and name.parts[:2] != ("examples", "output")
    }


def problems_of_wheel(names: set[str]) -> list[str]:
    """Return what a wheel lacks or has beside the package, its licence and its metadata."""
    expected = files_under("keras_adaclip")
    metadata = {name for name in names if name.partition("/")[0].endswith(".dist-info")}
    found = [f"the wheel lacks {name}" for name in sorted(expected - names)]
    found += [f"the wheel has {name}" for name in sorted(names - metadata - expected)]
    endings = ("/METADATA", "/licenses/LICENSE")
    return found + [
        f"the wheel lacks {ending}"
        for ending in endings
        if not any(name.endswith(ending) for name in metadata)
    ]


def main(folder: Path) -> int:
    """Check the one wheel and the one source archive in a folder."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if not name.endswith("/")}
    with tarfile.open(sdist) as archive:
        in_sdist = {member.name.partition("/")[2] for member in archive if member.isfile()}
    problems = problems_of_wheel(in_wheel)
    missing = {"PKG-INFO", *files_under(*SOURCES)} - in_sdist
    problems += [f"the source archive lacks {name}" for name in sorted(missing)]
    counts = f"{wheel.name}: {len(in_wheel)} files; {sdist.name}: {len(in_sdist)} files"
    print(*problems, counts, sep="\n")
    return len(problems) > 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
