"""The examples run from end to end, on a little data."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import keras_adaclip

ROOT = Path(keras_adaclip.__file__).parents[1]


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="once is enough")
def test_fashion_mnist(tmp_path):
    script = ROOT / "examples" / "fashion_mnist.py"
    if not script.exists():
        pytest.skip("the examples are not part of this installation")
    run = subprocess.run(
        [sys.executable, script, "--smoke", "--output", tmp_path / "run.png", "--verbose", "2"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    for words in (
        "Data: ",
        "Noise multiplier",
        "epsilon: ",
        "Test accuracy",
        "differential privacy",
    ):
        assert words in " ".join(run.stdout.split())
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
