"""What the package imports, what it asks pip for, and what it tells its users to install."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import keras_adaclip
from tests.packaging.import_rules import BACKEND_LIBRARIES, imported_names, package_modules
from tests.packaging.releases import PYPROJECT, lower_bound, name_of, requirements

ROOT = PYPROJECT.parent
PACKAGE = Path(keras_adaclip.__file__).parent
PROJECT = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
# Extras for those who work on the package; nothing in it imports what they bring.
FOR_DEVELOPERS = {"docs", "test"}
# Imported under another name than pip knows it by.
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "jaxlib": "jax"}

# Prints which modules each part of the package asks for while it is imported, also those that
# something else has imported before. Keras itself imports TensorFlow, scikit-learn and matplotlib
# where they are there, so that `sys.modules` would tell nothing.
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


DEPENDENCIES = {_normal(name_of(line)) for line in PROJECT["dependencies"]}
OPTIONAL = {
    _normal(name_of(line))
    for extra, lines in EXTRAS.items()
    if extra not in FOR_DEVELOPERS
    for line in lines
}


def foreign_imports(tree, module, is_package):
    """Pairs of line and top module of all that neither Python nor the package brings."""
    for line, name in imported_names(tree, module, is_package):
        top = name.split(".")[0]
        if top not in sys.stdlib_module_names and top not in {"keras_adaclip", "__future__"}:
            yield line, top


def test_every_import_can_be_asked_for():
    unknown = [
        f"{module}:{line}: {top}"
        for module, is_package, source in package_modules(PACKAGE)
        for line, top in foreign_imports(ast.parse(source), module, is_package)
        if distribution(top) not in DEPENDENCIES | OPTIONAL
    ]
    assert not unknown, f"neither a dependency nor in an extra: {unknown}"


def test_every_dependency_is_imported():
    imported = {
        distribution(top)
        for module, is_package, source in package_modules(PACKAGE)
        for _, top in foreign_imports(ast.parse(source), module, is_package)
    }
    assert imported >= DEPENDENCIES


def test_importing_the_package_needs_no_extra():
    """Only dependencies and the backend that runs: keras-tuner, matplotlib and so on come later."""
    output = subprocess.run(
        [sys.executable, "-c", _RECORD_IMPORTS],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    ).stdout
    backend, asked = json.loads(output.splitlines()[-1])
    foreign = {
        (importer, top)
        for importer, top in map(tuple, asked)
        if top not in sys.stdlib_module_names and top != "keras_adaclip"
    }
    assert ("keras_adaclip.models.private_model", "keras") in foreign
    for importer, top in foreign:
        in_backend = importer.startswith("keras_adaclip.backend.")
        allowed = {backend, f"{backend}lib"} if in_backend else set()
        assert distribution(top) in DEPENDENCIES or top in allowed, f"{importer} imports {top}"


def test_no_backend_is_forced_on_the_user():
    assert not DEPENDENCIES & BACKEND_LIBRARIES
    assert {"tensorflow", "jax", "torch"} <= set(EXTRAS)


def test_extras_that_users_are_told_of_exist():
    """In documents, commands and error messages."""
    patterns = ("*.md", "Makefile", "docs/*.md", "examples/**/*.py", "keras_adaclip/**/*.py")
    told = set()
    for path in sorted(path for pattern in patterns for path in ROOT.glob(pattern)):
        text = path.read_text(encoding="utf-8")
        for names in re.findall(r'(?:keras-adaclip|"\.)\[([a-z,-]*)\]', text):
            told.update(names.split(","))
            assert set(names.split(",")) <= set(EXTRAS), f"{path.name} names [{names}]"
    assert told >= {"tensorflow", "jax", "torch", "tuner", "plots", "tensorflow-privacy"}


def test_every_requirement_has_a_lower_bound():
    """A release that nobody has tried is none that the package supports."""
    assert "numpy==1.26" in map(lower_bound, requirements())
    assert "jax==0.5" in map(lower_bound, requirements(["jax"]))
    for requirement in requirements(EXTRAS):
        assert lower_bound(requirement)
    with pytest.raises(ValueError, match="numpy<3"):
        lower_bound("numpy<3")
