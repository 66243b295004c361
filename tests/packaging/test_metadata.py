"""Version, change log and the code in the documents belong together."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import keras_adaclip

ROOT = Path(__file__).resolve().parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def test_package_says_the_version_of_pyproject():
    assert keras_adaclip.__version__ == VERSION


def test_changelog_has_the_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(VERSION)}\]", changelog, flags=re.MULTILINE)


def test_citation_has_the_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(VERSION)}$", citation, flags=re.MULTILINE)


def test_package_is_typed():
    assert (Path(keras_adaclip.__file__).parent / "py.typed").exists()


def test_readme_shows_code():
    assert python_blocks((ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_code_blocks_compile(document):
    for block in python_blocks(document.read_text(encoding="utf-8")):
        ast.parse(block)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_in_code_blocks_exist(document):
    """Every `ka.some.name` in a document is a name of the package."""
    for block in python_blocks(document.read_text(encoding="utf-8")):
        for name in re.findall(r"\bka\.([A-Za-z_][\w.]*)", block):
            owner = keras_adaclip
            for part in name.rstrip(".").split("."):
                assert hasattr(owner, part), f"{document.name} names ka.{name}"
                owner = getattr(owner, part)
