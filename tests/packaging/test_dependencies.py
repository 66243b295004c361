"""Imports and dependencies, the extras that users are told of, the backend, and the version."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import keras_adaclip
from keras_adaclip import _keras_backend
from tests.packaging.import_rules import BACKEND_LIBRARIES, imported_names, package_modules
from tests.packaging.releases import EXTRAS, PROJECT, PYPROJECT, lower_bound, name_of, requirements

ROOT = PYPROJECT.parent
PACKAGE = Path(keras_adaclip.__file__).parent
# Extras for those who work on the package; nothing in it imports what they bring.
FOR_DEVELOPERS = {"docs", "test"}
# Imported under another name than pip knows it by.
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "jaxlib": "jax"}

# Prints which modules each part of the package imports. `sys.modules` does not tell: Keras itself
# imports TensorFlow, scikit-learn and matplotlib if they are installed.
_RECORD_IMPORTS = """
import builtins, json
import keras
plain_import, asked = builtins.__import__, set()
def recording(name, globals=None, locals=None, fromlist=(), level=0):
    importer = (globals or {}).get("__name__", "")
    if level == 0 and importer.split(".")[0] == "keras_adaclip":
        asked.add((importer, name.split(".")[0]))
    return plain_import(name, globals, locals, fromlist, level)
builtins.__import__ = recording
import keras_adaclip
builtins.__import__ = plain_import
print(json.dumps([keras.backend.backend(), sorted(asked)]))
"""


def distribution(module):
    """What pip calls a module that is imported."""
    return _normal(DISTRIBUTIONS.get(module, module))


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


DEPENDENCIES = {_normal(name_of(line)) for line in requirements()}
ALL = {_normal(name_of(line)) for line in requirements(EXTRAS.keys() - FOR_DEVELOPERS)}


def is_foreign(top):
    """Whether neither Python nor the package brings a module."""
    return top not in sys.stdlib_module_names and top != "keras_adaclip"


def test_imports_are_the_dependencies_and_what_extras_bring():
    imported = {
        distribution(name.split(".")[0])
        for module, source in package_modules(PACKAGE)
        for _, name in imported_names(ast.parse(source))
        if is_foreign(name.split(".")[0])
    }
    assert DEPENDENCIES <= imported <= ALL


def test_importing_the_package_needs_no_extra():
    """Only dependencies and the backend that runs: keras-tuner, matplotlib and so on come later."""
    command = [sys.executable, "-c", _RECORD_IMPORTS]
    output = subprocess.check_output(command, text=True, cwd=ROOT)
    backend, asked = json.loads(output.splitlines()[-1])
    assert ["keras_adaclip.models.private_model", "keras"] in asked
    for importer, top in asked:
        if not is_foreign(top):
            continue
        in_backend = importer.startswith("keras_adaclip.backend.")
        allowed = {backend, f"{backend}lib"} if in_backend else set()
        assert distribution(top) in DEPENDENCIES or top in allowed, f"{importer} imports {top}"


def test_no_backend_is_forced_on_the_user():
    assert not DEPENDENCIES & BACKEND_LIBRARIES
    assert {"tensorflow", "jax", "torch"} <= set(EXTRAS)


def test_extras_that_users_are_told_of_exist():
    """In documents, commands and error messages."""
    patterns = ("*.md", "Makefile", "docs/*.md", "examples/**/*.py", "keras_adaclip/**/*.py")
    paths = (path for pattern in patterns for path in ROOT.glob(pattern))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    found = re.findall(r'(?:keras-adaclip|"\.)\[([a-z,-]*)\]', "".join(texts))
    told = {extra for extras in found for extra in extras.split(",")}
    users = {"tensorflow", "jax", "torch", "tuner", "plots", "tensorflow-privacy"}
    assert users <= told <= set(EXTRAS)


def test_every_requirement_has_a_lower_bound():
    """A release that nobody has tried is none that the package supports."""
    assert {"numpy==1.26", "jax==0.5"} <= set(map(lower_bound, requirements(EXTRAS)))
    with pytest.raises(ValueError, match="numpy<3"):
        lower_bound("numpy<3")


# The backend

_WITHOUT_TENSORFLOW = "import sys; sys.modules['tensorflow'] = None; import keras_adaclip"


def test_the_import_says_how_to_choose():
    """In a process of its own, since this one has imported Keras."""
    command = [sys.executable, "-c", _WITHOUT_TENSORFLOW]
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    last_line = run.stderr.strip().splitlines()[-1]
    assert re.match("ImportError: .* TensorFlow, which is not installed.*KERAS_BACKEND=", last_line)


@pytest.mark.parametrize(
    ("missing", "installed", "expected"),
    [
        ("jaxlib.xla", ["torch"], "on JAX, .* one that is .* KERAS_BACKEND=torch.$"),
        ("torch", [], r"on PyTorch, .* keras-adaclip\[tensorflow\], \[jax\] or \[torch\]"),
        ("h5py", ["torch"], "^None$"),
    ],
)
def test_only_what_is_installed_is_offered(missing, installed, expected, monkeypatch):
    monkeypatch.setattr(_keras_backend, "find_spec", lambda name: name in installed or None)
    assert re.search(expected, str(_keras_backend.explain(missing)))


def test_every_place_says_the_version_of_pyproject():
    version = PROJECT["version"]
    assert keras_adaclip.__version__ == version
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert (PACKAGE / "py.typed").exists()
