"""The examples run from end to end, on a little data."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import keras_adaclip

ROOT = Path(keras_adaclip.__file__).parents[1]

once = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="once is enough")


def run_example(name, tmp_path, *options):
    """What an example prints."""
    script = ROOT / "examples" / name
    if not script.exists():
        pytest.skip("the examples are not part of this installation")
    run = subprocess.run(
        [sys.executable, script, *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


@once
def test_fashion_mnist(tmp_path):
    options = ("--smoke", "--output", tmp_path / "run.png", "--verbose", "2")
    printed = run_example("fashion_mnist.py", tmp_path, *options)
    for words in (
        "Data: ",
        "Noise multiplier",
        "epsilon: ",
        "Test accuracy",
        "differential privacy",
    ):
        assert words in " ".join(printed.split())
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


@once
@pytest.mark.parametrize("noise", [(), ("--without-noise",)])
def test_audit_fashion_mnist(tmp_path, noise):
    options = ("--smoke", "--output", tmp_path / "audit.png", *noise)
    printed = run_example("audit_fashion_mnist.py", tmp_path, *options)
    assert "64 canaries, expected batch 16, 1 epochs" in printed
    assert ("training has 0.000" in printed) == bool(noise)
    assert "of 1 bounds lie above epsilon" in printed
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")


@once
def test_compare_clipping(tmp_path):
    printed = run_example("compare_clipping.py", tmp_path, "--smoke", "--output", tmp_path)
    assert "4 of 4 runs are there, 0 failed" in printed
    assert "| transfer (Lin) |" in (tmp_path / "tables.md").read_text()
    assert (tmp_path / "runs.csv").read_text().count("\n") == 1 + 4
    for name in ("thresholds_paper", "accuracy_paper", "thresholds_tuned", "accuracy_tuned"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@once
def test_best_fashion_mnist(tmp_path):
    result = tmp_path / "result.csv"
    printed = run_example("best_fashion_mnist.py", tmp_path, "--smoke", "--output", result)
    for words in ("directions stand out of the noise", "Test accuracy", "differential privacy"):
        assert words in " ".join(printed.split())
    assert result.read_text().startswith("seed,accuracy,epsilon,seconds")


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="once is enough")
@pytest.mark.parametrize(
    ("script", "searched"),
    [("search_quantile", "target_quantile"), ("search_decay", "decay_power")],
)
def test_tuning(script, searched, tmp_path):
    options = ("--smoke", "--output", tmp_path / "trials", "--verbose", "0")
    printed = run_example(f"tuning/{script}.py", tmp_path, *options)
    words = printed.split("Best of 2 trials: ")[1]
    assert f"{searched} 0." in words.splitlines()[0]
    assert "Its test accuracy: " in words
    # One trial, all trials, a search that pays for the selection.
    alone, together, selected = (float(n) for n in re.findall(r"^  epsilon (\S+)", words, re.M))
    assert alone <= 2.7 < together
    assert alone < selected
    assert len(list((tmp_path / "trials").glob("*/trial_*"))) == 2
