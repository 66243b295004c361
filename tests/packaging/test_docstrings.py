"""Every class and function of the package says in one sentence what it is or does."""

import ast

import pytest

from tests.packaging.import_rules import package_modules
from tests.packaging.test_import_direction import ROOT

MODULES = dict(package_modules(ROOT))


def undocumented(source):
    """Line and name of each class or function without a sentence; not of dunders and setters."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    return [
        f"{node.lineno}: {node.name}"
        for node in nodes
        if not (node.name.startswith("__") and node.name.endswith("__"))
        and not any(ast.unparse(each).endswith(".setter") for each in node.decorator_list)
        and not (ast.get_docstring(node) or "").partition("\n")[0].endswith(".")
    ]


@pytest.mark.parametrize("module", MODULES)
def test_every_class_and_function_has_a_docstring(module):
    assert not undocumented(MODULES[module])
