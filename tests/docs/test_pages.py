"""The code on every page runs and prints the output below it; the files that a page names exist."""

import ast
import itertools
import json
import re
import shlex
import subprocess
import sys
import urllib.request

import keras
import numpy as np
import pytest

from tests.docs import pages, smoke
from tests.packaging.import_rules import LAYERS

# Functions that make the names a page assumes. All other pages define theirs.
NAMES = {
    "docs/audit.md": smoke.images_to_audit,
    "docs/federated.md": smoke.file_of_clients,
    "docs/from_jax_privacy.md": smoke.model_and_data,
    "docs/from_opacus.md": smoke.model_and_data,
    "docs/from_tensorflow_privacy.md": lambda: smoke.model_and_data(activation=None),
    "docs/index.md": smoke.model_and_data,
    "docs/report.md": smoke.trained_model,
    "docs/speed.md": smoke.benchmark_network,
}
# Pages whose output comes from real data, or from a long run.
NOT_COMPARED = {
    *("README.md", "docs/audit.md", "docs/from_jax_privacy.md"),
    *("docs/from_tensorflow_privacy.md", "docs/quickstart.md", "docs/report.md"),
    *("docs/tutorials/images.md", "docs/tutorials/tabular.md", "docs/tutorials/text.md"),
}
TEXTS = {pages.name_of(path): path.read_text(encoding="utf-8") for path in pages.PAGES}
WITH_CODE = [name for name, text in TEXTS.items() if any(b.is_run for b in pages.blocks(text))]

every_page = pytest.mark.parametrize("name", TEXTS)


@pytest.mark.filterwarnings("ignore:`RandomSearch` compares private models")
@pytest.mark.parametrize("name", WITH_CODE)
def test_the_code_runs_and_prints_what_the_page_says(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if name in {*NAMES, *NOT_COMPARED}:
        smoke.make_small(monkeypatch)
    names = {"__name__": "page"} | NAMES.get(name, dict)()
    pages.run(pages.ROOT / name, names, compare=name not in NOT_COMPARED)
    if name == "docs/sharp_edges.md":
        assert_sharp_edges(names)
    if name == "docs/guides/deployment.md":
        assert_served(names)


def assert_sharp_edges(names):
    """Assert the promises in the text, on the results of the code beside it."""
    assert not {"loss", "accuracy"} & set(names["published"])
    # Joined ledgers cost more than each, and less than the sum.
    separate = [candidate.privacy_spent(1e-5).epsilon for candidate in names["candidates"]]
    assert max(separate) < names["together"] < sum(separate)
    # Epsilon is for the people of the page.
    assert (names["spent"].unit, names["spent"].rows_per_unit) == ("person", 2)
    assert keras.models.load_model("release.keras").optimizer.seed is None


def assert_served(names):
    """Assert that the server of the page answers with the predictions of the private model."""
    found = pages.blocks(TEXTS["docs/guides/deployment.md"])
    (server,) = (block.text for block in found if block.options == 'title="serve.py"')
    (rows,) = (
        re.search(r"--data '(.+?)'", block.text)[1] for block in found if block.language == "sh"
    )
    # A free port, which the server says.
    *_, last = server.splitlines()
    start = last.replace("8000", "0").replace("HTTPServer", "server = HTTPServer", 1)
    server = server.replace(last, start.replace(".serve_forever()", ""))
    server += "print(server.server_port, flush=True)\nserver.handle_request()\n"
    without = 'import sys\nsys.modules["keras_adaclip"] = None\n'
    process = subprocess.Popen([sys.executable, "-c", without + server], stdout=subprocess.PIPE)
    with process:
        port = int(process.stdout.readline())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", rows.encode()) as answer:
            found = json.load(answer)
    expected = names["model"].predict(np.asarray(json.loads(rows), "float32"), verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@every_page
def test_code_of_other_libraries_is_python_and_scripts_take_their_options(name):
    for block in pages.blocks(TEXTS[name]):
        if block.language == "python":
            ast.parse(block.text)
    for command in re.findall(r"\bpython ((?:examples|benchmarks)/\S+\.py[^`\n#]*)", TEXTS[name]):
        script, *words = shlex.split(command)
        assert (pages.ROOT / script).is_file(), script
        # Options come from modules beside the script, too.
        sources = (pages.ROOT / script.split("/")[0]).rglob("*.py")
        source = "".join(module.read_text(encoding="utf-8") for module in sources)
        options = (word.split("=")[0] for word in words if word.startswith("--"))
        assert [option for option in options if f'"{option}"' not in source] == [], script


@every_page
def test_the_files_that_a_page_names_exist(name):
    pattern = r"`((?:benchmarks|docs|examples|tests|keras_adaclip)/[\w./]+)`"
    named = re.findall(pattern, TEXTS[name])
    roots = [pages.ROOT]
    if name == "docs/architecture.md":
        named = set(re.findall(r"(?<![\w./])[\w/]+(?:\.py|/)(?![\w.])", TEXTS[name]))
        assert len(named) > 30
        roots.append(pages.ROOT / "keras_adaclip")
    assert [each for each in named if not any((root / each).exists() for root in roots)] == []


def test_the_architecture_lists_every_layer_in_its_order():
    listed = TEXTS["docs/architecture.md"].split("## The folders")[1].split("```")[1]
    lines = (line.replace(".py", "").split() for line in listed.splitlines())
    names = [name for words in lines for name in itertools.takewhile(LAYERS.__contains__, words)]
    assert names == [layer for layer in LAYERS if not layer.startswith("__")]


def test_links_of_the_readme_lead_to_files():
    """The build of the documentation checks the links of its pages."""
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", TEXTS["README.md"])
    assert [each for each in targets if not (pages.ROOT / each).exists()] == []
