"""The code on every page runs and prints what stands below it; what it names is there."""

import ast
import re
import shlex
from dataclasses import dataclass
from typing import Any

import pytest

from tests.docs import pages, smoke


@dataclass(frozen=True)
class Setting:
    """How the code of a page is run.

    Args:
        names: makes what the page takes to be there already; None where it brings all.
        compare: whether it prints here what it prints on the page: with real data it does not.
    """

    names: Any = None
    compare: bool = True


# Pages that need something. All others bring what they need and print what they say.
SETTINGS = {
    "README.md": Setting(compare=False),
    "docs/audit.md": Setting(smoke.images_to_audit, compare=False),
    "docs/from_jax_privacy.md": Setting(smoke.a_model_and_data, compare=False),
    "docs/from_opacus.md": Setting(smoke.a_model_and_data),
    "docs/from_tensorflow_privacy.md": Setting(smoke.a_model_of_logits_and_data, compare=False),
    "docs/index.md": Setting(smoke.a_model_and_data),
    "docs/quickstart.md": Setting(compare=False),
    "docs/report.md": Setting(smoke.a_trained_model, compare=False),
    "docs/speed.md": Setting(smoke.the_network_of_the_benchmark),
}
# These have tests of their own, which ask more.
ELSEWHERE = {"docs/federated.md", "docs/sharp_edges.md", "docs/tuning.md"}

PAGES = pages.all_pages()
RUN_HERE = [
    path
    for path in PAGES
    if pages.name_of(path) not in ELSEWHERE and pages.has_code(path.read_text(encoding="utf-8"))
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("path", RUN_HERE, ids=pages.name_of)
def test_the_code_runs_and_prints_what_the_page_says(path, monkeypatch):
    setting = SETTINGS.get(pages.name_of(path), Setting())
    smoke.make_small(monkeypatch)
    names = {} if setting.names is None else setting.names()
    pages.run(path, names, compare=setting.compare)


def test_the_settings_are_of_pages_with_code():
    assert set(SETTINGS) <= set(map(pages.name_of, RUN_HERE))
    assert set(map(pages.name_of, PAGES)) >= ELSEWHERE


@pytest.mark.parametrize("path", PAGES, ids=pages.name_of)
def test_code_of_other_libraries_is_python(path):
    for block in pages.blocks(path.read_text(encoding="utf-8")):
        if block.language == "python":
            ast.parse(block.text)


@pytest.mark.parametrize("path", PAGES, ids=pages.name_of)
def test_the_scripts_that_a_page_runs_are_there_and_take_their_options(path):
    for command in re.findall(
        r"\bpython ((?:examples|benchmarks)/\S+\.py[^`\n#]*)", path.read_text(encoding="utf-8")
    ):
        script, *words = shlex.split(command)
        assert (pages.ROOT / script).is_file(), script
        # Options come from modules beside the script, too.
        sources = (pages.ROOT / script.split("/")[0]).rglob("*.py")
        source = "".join(module.read_text(encoding="utf-8") for module in sources)
        for word in words:
            option = word.split("=")[0]
            assert not option.startswith("--") or f'"{option}"' in source, f"{script} {option}"


@pytest.mark.parametrize("path", PAGES, ids=pages.name_of)
def test_files_of_the_repository_that_a_page_names_are_there(path):
    named = re.findall(
        r"`((?:benchmarks|docs|examples|tests|keras_adaclip)/[\w./]+)`",
        path.read_text(encoding="utf-8"),
    )
    missing = [name for name in named if not (pages.ROOT / name).exists()]
    assert not missing


def test_the_navigation_has_every_page():
    navigation = (pages.ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r": ([\w/]+\.md)$", navigation, flags=re.MULTILINE))
    # Each notebook becomes a page beside it.
    written = {*pages.DOCS.rglob("*.md"), *pages.DOCS.rglob("*.ipynb")}
    page_names = {path.relative_to(pages.DOCS).with_suffix(".md").as_posix() for path in written}
    assert listed == page_names
