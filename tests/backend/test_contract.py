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


@pytest.mark.parametrize("name", ["tensorflow", "jax", "torch"])
def test_each_backend_defines_what_has_no_default(name):
    defined = {
        node.name
        for path in (FOLDER / name).glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    sources = {each: inspect.getsource(getattr(contract, each)) for each in backend.__all__}
    without = {each for each, text in sources.items() if "raise NotImplementedError" in text}
    assert without <= defined


def test_overrides_are_offered_and_take_the_arguments_of_the_contract():
    module = importlib.import_module(f"keras_adaclip.backend.{keras.backend.backend()}")
    for name in backend.__all__:
        stated, found = getattr(contract, name), getattr(backend, name)
        assert found is getattr(module, name, stated), name
        if inspect.isclass(stated):
            assert issubclass(found, stated), name
        elif name != "train_step":  # takes what Keras's trainer hands to it
            own, expected = (inspect.signature(each).parameters for each in (found, stated))
            assert list(own) == list(expected), name
