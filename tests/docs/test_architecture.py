"""The page on the architecture names files that are there, and every folder of the package."""

import re
from pathlib import Path

from tests.packaging.import_rules import LAYERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def test_every_file_on_the_page_is_there():
    names = set(re.findall(r"(?<![\w./])[\w/]+(?:\.py|/)(?![\w.])", PAGE))
    assert len(names) > 30
    missing = {
        name
        for name in names - {"keras_adaclip/"}
        if not any((root / name).exists() for root in (ROOT / "keras_adaclip", ROOT))
    }
    assert not missing


def test_every_folder_of_the_package_is_on_the_page():
    folders = {layer for layer in LAYERS if (ROOT / "keras_adaclip" / layer).is_dir()}
    listed = PAGE.split("## The folders")[1].split("## The path")[0]
    assert folders == {name for name in folders if re.search(rf"\b{name}\b", listed)}
