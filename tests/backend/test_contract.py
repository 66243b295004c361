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
BACKENDS = ("tensorflow", "jax", "torch")


def functions(folder):
    """The names of the functions and classes that the files of a backend define."""
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name


def has_default(name):
    return "raise NotImplementedError" not in inspect.getsource(getattr(contract, name))


@pytest.mark.parametrize("name", BACKENDS)
def test_each_backend_defines_what_has_no_default(name):
    own = set(functions(FOLDER / name))
    assert {each for each in backend.__all__ if not has_default(each)} <= own


@pytest.mark.parametrize("name", backend.__all__)
def test_an_override_takes_the_arguments_of_the_contract(name):
    stated, found = getattr(contract, name), getattr(backend, name)
    if inspect.isclass(stated):
        assert issubclass(found, stated)
    elif name != "train_step":  # takes what Keras's trainer hands to it
        assert list(inspect.signature(found).parameters) == list(
            inspect.signature(stated).parameters
        )


def test_the_backend_that_runs_overrides_the_defaults():
    module = importlib.import_module(f"keras_adaclip.backend.{keras.backend.backend()}")
    assert all(getattr(backend, name) is getattr(module, name) for name in functions_of(module))


def functions_of(module):
    return [name for name in backend.__all__ if hasattr(module, name)]
