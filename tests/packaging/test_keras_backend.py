"""Without the backend that Keras chooses, the import says how to choose another."""

import os
import re
import subprocess
import sys

import pytest

from keras_adaclip import _keras_backend
from tests.packaging.releases import PYPROJECT

_WITHOUT_TENSORFLOW = "import sys; sys.modules['tensorflow'] = None; import keras_adaclip"


def test_the_import_says_how_to_choose():
    """In a process of its own, since this one has imported Keras."""
    run = subprocess.run(
        [sys.executable, "-c", _WITHOUT_TENSORFLOW],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        cwd=PYPROJECT.parent,
    )
    last_line = run.stderr.strip().splitlines()[-1]
    assert last_line.startswith(
        "ImportError: Keras is to run on TensorFlow, which is not installed"
    )
    assert "KERAS_BACKEND=" in last_line


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
