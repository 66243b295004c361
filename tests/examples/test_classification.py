"""The examples of private classification run from end to end, with every clipping method."""

import re
import runpy
import sys
from pathlib import Path

import keras
import pytest

import keras_adaclip as ka

FOLDER = Path(ka.__file__).parents[1] / "examples"
# PyTorch compiles nothing, so a few steps take the least time there.
if keras.backend.backend() != "torch":
    pytest.skip("once is enough", allow_module_level=True)
pytest.importorskip("matplotlib")

from private_classification import SETTINGS, parse_options, private_optimizer  # noqa: E402

SCRIPTS = {
    name: runpy.run_path(str(FOLDER / f"{name}.py"), run_name="example")
    for name in ("mnist", "fashion_mnist", "cifar10", "imagenette", "imdb", "adult")
}


def run_script(name, monkeypatch, capsys, *options):
    """What a script prints."""
    monkeypatch.setattr(sys, "argv", [name, "--verbose", "2", *map(str, options)])
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    return capsys.readouterr().out


def options_of(name, *arguments):
    return parse_options("Title.", SCRIPTS[name]["TASK"], [str(one) for one in arguments])


# `test_scripts.py` runs the demo on Fashion-MNIST.
@pytest.mark.parametrize("name", ["mnist", "imagenette", "imdb", "adult"])
def test_smoke(name, monkeypatch, capsys, tmp_path):
    figure = tmp_path / "run.png"
    printed = run_script(name, monkeypatch, capsys, "--smoke", "--seed", 1, "--output", figure)
    task = SCRIPTS[name]["TASK"]
    assert f"Data: made-up data, in the shape of {task.title}; backend: " in printed
    epsilon = re.search(r"\(epsilon = (\S+), delta = \S+\)-differential privacy after", printed)
    assert 0.9 * task.epsilon < float(epsilon[1]) <= task.epsilon
    assert "nan" not in printed
    assert figure.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("clipping", SETTINGS)
def test_what_is_left_open_has_a_value(clipping, tmp_path, monkeypatch):
    # Calibration takes half a second, and has tests of its own.
    monkeypatch.setattr(ka.accounting, "calibrate_noise_multiplier", lambda *_, **__: 2.5)
    schedule = tmp_path / "schedule.json"
    ka.schedules.PiecewiseConstant([0.5, 0.25]).save(schedule)
    more = ["--schedule", schedule] if clipping == "transfer" else []
    for name, script in SCRIPTS.items():
        task = script["TASK"]
        if clipping not in task.trainings:
            continue
        options = options_of(name, "--clipping", clipping, *more)
        assert options.epochs == task.trainings[clipping].epochs
        assert set(options.settings) == set(SETTINGS[clipping])
        optimizer = private_optimizer(options, num_examples=9_000)
        assert isinstance(optimizer.clipping, ka.clipping.ClippingStrategy)


def test_the_plan_takes_no_settings_of_others(capsys):
    for option in ("--learning-rate", "--clip-norm"):
        with pytest.raises(SystemExit):
            options_of("adult", option, 0.1)
        assert f"--clipping planned has no {option}" in capsys.readouterr().err
