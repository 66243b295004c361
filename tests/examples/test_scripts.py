"""The examples run from end to end, on a little data."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_adaclip
from keras_adaclip.schedules import PiecewiseConstant

ROOT = Path(keras_adaclip.__file__).parents[1]

once = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="once is enough")


def run_example(name, tmp_path, *options):
    """What an example prints."""
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / name, *options],
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
    assert "epsilon: " in printed
    assert "differential privacy" in " ".join(printed.split())
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


@once
def test_audit_fashion_mnist(tmp_path):
    for options in (("--fault", "half-noise"), ("--kind", "loss", "--fault", "no-noise")):
        printed = run_example("audit_fashion_mnist.py", tmp_path, "--smoke", *options)
        assert "64 examples, expected batch 16, 1 epochs" in printed
        assert f"Broken on purpose: {options[-1]}." in printed
        assert "Run 1: epsilon is at least" in printed


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


@once
def test_a_schedule_found_on_public_images(tmp_path):
    public = tmp_path / "digits.npz"
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 255, (400, 28, 28)), rng.integers(0, 10, 400)
    np.savez(public, x=x.astype("uint8"), y=y.astype("uint8"))
    options = ("--smoke", "--public", public, "--output", tmp_path / "greedy")
    printed = run_example("tuning/greedy_schedule.py", tmp_path, *options)
    schedule = PiecewiseConstant.load(tmp_path / "greedy" / "schedule.json")
    assert set(schedule.values) <= {0.05, 0.1, 0.05 + 2 * 0.05}
    assert len(schedule.values) == 2
    assert f"{schedule.values[0]:g} throughout" in printed
    assert (tmp_path / "greedy" / "search.png").stat().st_size > 10_000
