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
