"""The command line: what it prints, how it fails, and that it does without Keras."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import keras
import pytest

import keras_adaclip as ka
from keras_adaclip.__main__ import main
from keras_adaclip.accounting import plan

if keras.backend.backend() != "torch":
    pytest.skip("nothing of it knows a backend; once is enough", allow_module_level=True)

RUN = {"epsilon": "3", "delta": "1e-5", "examples": "6000", "batch-size": "256", "epochs": "10"}


def words(command="plan", **changes):
    values = {**RUN, **{name.replace("_", "-"): value for name, value in changes.items()}}
    pairs = [(f"--{name}", value) for name, value in values.items() if value is not None]
    return [command, *(word for pair in pairs for word in pair)]


def test_a_plan_is_that_of_the_function(capsys):
    assert main(words(parameters="500")) == 0
    run = {"delta": 1e-5, "num_examples": 6_000, "batch_size": 256, "epochs": 10}
    expected = plan(target_epsilon=3.0, num_parameters=500, **run)
    assert capsys.readouterr().out == f"{expected}\n"
    assert main(words(epsilon=None, noise="9", sampling="shuffle", accountant="rdp")) == 0
    shown = capsys.readouterr().out
    assert "(RDP)  <- solved for" in shown
    assert "noise multiplier                   9\n" in shown
    assert "shuffled passes" in shown
    # A warning takes one line.
    assert main(words(delta="0.001")) == 0
    warned = capsys.readouterr().err
    assert warned.startswith("Warning: Argument --delta should be well below")
    assert warned.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "arguments are required: {plan,report}"),
        (["audit"], "invalid choice: 'audit'"),
        (words(epochs="ten"), "argument --epochs: invalid int value: 'ten'"),
        (words(noise="1.0"), "Exactly one of --epsilon, --epochs and --noise must"),
        (words(epsilon="-1"), "--epsilon must be positive. Received: --epsilon=-1.0"),
        (words(batch_size="7000"), "Argument --batch-size must lie between 1 and 6000"),
        (words(delta=None, examples=None), "are required: --delta, --examples"),
        (words(epochs=None, noise="0.01"), "No --epochs reaches the target epsilon"),
        (words(delta="0"), "--delta must lie strictly between 0 and 1"),
        (words(colour="red"), "unrecognized arguments: --colour red"),
    ],
)
def test_errors_take_one_line_and_end_with_status_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("keras-adaclip")
    assert message in captured.err


@pytest.mark.parametrize("command", ["plan", "report"])
def test_each_flag_has_a_text_and_examples_run(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = capsys.readouterr().out
    options, examples = shown.split("options:")[1].split("examples:")
    for option in re.split(r"\n  (?=-)", options)[1:]:
        assert len(option.split()) > 4, option
    lines = re.findall(r"^ +keras-adaclip (.+)$", examples, flags=re.MULTILINE)
    assert len(lines) == {"plan": 4, "report": 3}[command]
    for line in lines if command == "plan" else []:
        assert main(shlex.split(line)) == 0
    assert all(len(line) <= 100 for line in shown.splitlines())


@pytest.mark.parametrize(
    ("arguments", "status", "libraries"),
    [
        (["--help"], 0, {"keras", "numpy", "dp_accounting"}),
        (["--version"], 0, {"keras", "numpy", "dp_accounting"}),
        (words(delta="2"), 2, {"keras"}),
        (["report", "none.keras", "--delta", "1e-5"], 2, {"keras"}),
    ],
)
def test_it_runs_without_keras(arguments, status, libraries):
    command = [sys.executable, "-X", "importtime", "-m", "keras_adaclip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status
    lines = done.stderr.splitlines()
    imports = [line for line in lines if line.startswith("import time:")]
    assert len(lines) - len(imports) == (status == 2)  # The error alone.
    assert {line.split("|")[-1].strip() for line in imports}.isdisjoint(libraries)
    assert bool(done.stdout) == (status == 0)


@pytest.mark.parametrize(
    ("arguments", "original", "is_command"),
    [
        (["/usr/bin/keras-adaclip", "plan"], ["python", "/usr/bin/keras-adaclip", "plan"], True),
        (["-m", "plan"], ["python", "-X", "dev", "-m", "keras_adaclip", "plan"], True),
        (["-m"], ["python", "-mkeras_adaclip"], True),
        (["-m", "keras_adaclip"], ["python", "-m", "pdb", "keras_adaclip"], False),
        (["keras-adaclip.py"], ["python", "keras-adaclip.py"], False),
        (["-c", "keras_adaclip"], ["python", "-c", "...", "keras_adaclip"], False),
        ([""], ["python"], False),
        ([], [], False),
    ],
)
def test_only_the_command_leaves_keras_out(arguments, original, is_command, monkeypatch):
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.setattr(sys, "orig_argv", original)
    assert ka._is_command() is is_command


def test_the_package_lists_its_public_names_and_its_command():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"keras-adaclip": f"{main.__module__}:{main.__name__}"}
    assert sorted(dir(ka)) == sorted(ka.__all__)
    assert all(getattr(ka, name) is not None for name in dir(ka))
