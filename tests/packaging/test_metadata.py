"""Version, change log and citation belong together."""

import re
from pathlib import Path

import keras_adaclip
from tests.packaging.releases import PROJECT, PYPROJECT

ROOT, VERSION = PYPROJECT.parent, PROJECT["version"]


def test_every_place_says_the_version_of_pyproject():
    assert keras_adaclip.__version__ == VERSION
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(VERSION)}\]", changelog, flags=re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(rf"^version: {re.escape(VERSION)}$", citation, flags=re.MULTILINE)


def test_package_is_typed():
    assert (Path(keras_adaclip.__file__).parent / "py.typed").exists()
