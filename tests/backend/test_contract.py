"""Every backend keeps the contract."""

import ast
import importlib
import inspect
from pathlib import Path

import keras
import pytest

from keras_adaclip import backend
from keras_adaclip.backend import contract

FOLDER = Path(backend.__file__).parent


def defined_by(node):
    if isinstance(node, ast.Assign):
        return [
            each.id for target in node.targets for each in ast.walk(target) if "id" in vars(each)
        ]
    return [node.name] if isinstance(node, ast.FunctionDef | ast.ClassDef) else []


@pytest.mark.parametrize("name", ["tensorflow", "jax", "torch"])
def test_each_backend_defines_what_has_no_default(name):
    defined = {
        each
        for path in FOLDER.glob(f"{name}_*.py")
        for node in ast.parse(path.read_text()).body
        for each in defined_by(node)
    }
    sources = {each: inspect.getsource(getattr(contract, each)) for each in backend.__all__}
    without = {each for each, text in sources.items() if "raise NotImplementedError" in text}
    assert without <= defined


def test_overrides_are_offered_and_take_the_arguments_of_the_contract():
    overrides = {}
    for part in ("gradients", "steps"):
        name = f"keras_adaclip.backend.{keras.backend.backend()}_{part}"
        overrides |= vars(importlib.import_module(name))
    for name in backend.__all__:
        stated, found = getattr(contract, name), getattr(backend, name)
        assert found is overrides.get(name, stated), name
        if inspect.isclass(stated):
            assert issubclass(found, stated), name
        elif name != "train_step":  # takes what Keras's trainer hands to it
            own, expected = (inspect.signature(each).parameters for each in (found, stated))
            assert list(own) == list(expected), name
