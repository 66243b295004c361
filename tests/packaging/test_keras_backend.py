"""What whoever has not chosen the backend that is installed is told."""

import os
import subprocess
import sys

import pytest

import keras_adaclip
from keras_adaclip import _keras_backend

_WITHOUT_TENSORFLOW = "import sys; sys.modules['tensorflow'] = None; import keras_adaclip"


def test_the_import_says_how_to_choose():
    """In a process of its own, since this one has imported Keras."""
    run = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TENSORFLOW],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        cwd=os.path.dirname(os.path.dirname(keras_adaclip.__file__)),
    )
    last_line = run.stderr.strip().splitlines()[-1]
    assert last_line.startswith(
        "ImportError: Keras is to run on TensorFlow, which is not installed"
    )
    assert "KERAS_BACKEND=" in last_line


@pytest.mark.parametrize("module", ["jax", "jaxlib.xla", "jax.numpy"])
def test_only_what_is_installed_is_offered(monkeypatch, module):
    monkeypatch.setattr(_keras_backend, "find_spec", lambda name: name == "torch" or None)
    message = _keras_backend.explain(module)
    assert message == (
        "Keras is to run on JAX, which is not installed. Choose one that is installed, by the "
        "environment variable KERAS_BACKEND=torch."
    )


def test_without_any_backend_the_extras_are_named(monkeypatch):
    monkeypatch.setattr(_keras_backend, "find_spec", lambda name: None)
    message = _keras_backend.explain("torch")
    assert "PyTorch" in message
    assert "pip install keras-adaclip[tensorflow], [jax] or [torch]" in message


def test_other_modules_are_none_of_its_business():
    assert _keras_backend.explain("h5py") is None
    assert _keras_backend.explain("") is None
