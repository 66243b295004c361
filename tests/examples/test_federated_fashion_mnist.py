"""`examples/federated/fashion_mnist.py`: a small run, its file of runs and its report."""

import csv
import runpy
import sys
from pathlib import Path

import keras
import pytest

import keras_adaclip as ka

FOLDER = Path(ka.__file__).parents[1] / "examples" / "federated"
pytest.importorskip("matplotlib")

import fashion_mnist_report as report  # noqa: E402


def row(kind, value, noise, seed, accuracy, clipped="[0.9, 0.7, 0.6, 0.5, 0.5, 0.5]"):
    return {
        "kind": kind,
        "value": str(value),
        "noise_multiplier": str(noise),
        "seed": str(seed),
        "accuracy": str(accuracy),
        "norm_by_epoch": "[0.2, 0.3, 0.4, 0.4, 0.4, 0.4]",
        "clipped_by_epoch": clipped,
    }


ROWS = [
    row("quantile", 0.5, 0.0, 1, 0.85),
    row("quantile", 0.5, 0.0, 2, 0.87),
    row("quantile", 0.5, 0.1, 1, 0.80),
    row("fixed", 0.2, 0.0, 1, 0.84),
    row("fixed", 0.4, 0.0, 1, 0.865),
    row("fixed", 0.4, 0.1, 1, 0.79),
]


def test_the_table_has_means_and_the_distance_to_the_best_fixed_norm():
    text = report.tables(ROWS)
    assert "| quantile 0.5 | 86.0 ± 1.4 (2) | 80.0 (1) |" in text
    assert "| fixed norm 0.2 | 84.0 (1) | – |" in text
    assert "| best fixed norm − median | +0.50 | -1.00 |" in text
    assert "| quantile 0.5 | 0.10 | 0.50 | 0.50 |" in text


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="it compiles nothing: seconds")
@pytest.mark.filterwarnings("ignore:.*not covered by epsilon")
def test_a_small_run_and_its_report(tmp_path, monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(
            sys, "argv", ["fashion_mnist.py", "--output", str(tmp_path), *arguments]
        )
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(FOLDER / "fashion_mnist.py"), run_name="__main__")
        assert not ended.value.code
        return capsys.readouterr().out

    assert "[2/2]" in run("--smoke")
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(each["kind"], each["value"]) for each in rows] == [
        ("quantile", "0.5"),
        ("fixed", "1.0"),
    ]
    assert all(0.2 < float(each["accuracy"]) < 0.9 for each in rows)
    for name in ("tables.md", "accuracy.png", "tracking.png"):
        assert (tmp_path / name).stat().st_size > 0
    # What is there is not made again.
    assert "[1/" not in run("--smoke")
