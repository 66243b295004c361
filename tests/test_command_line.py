"""`python -m keras_adaclip`: what it prints, and how it fails."""

import subprocess
import sys

import keras
import pytest

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


def test_each_option_reaches_the_plan(capsys):
    assert main(words(epsilon=None, noise="9", sampling="shuffle", accountant="rdp")) == 0
    shown = capsys.readouterr().out
    assert "(RDP)  <- solved for" in shown
    assert "noise multiplier                   9\n" in shown
    assert "shuffled passes" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "arguments are required: command"),
        (["audit"], "invalid choice: 'audit'"),
        (words(epochs="ten"), "argument --epochs: invalid int value: 'ten'"),
        (words(noise="1.0"), "Exactly one of `target_epsilon`"),
        (words(delta=None, examples=None), "are required: --delta, --examples"),
        (words(epochs=None, noise="0.01"), "No `epochs` reaches the target epsilon"),
        (words(delta="0"), "`delta` must lie strictly between 0 and 1"),
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
    assert captured.err.startswith("python -m keras_adaclip")
    assert message in captured.err


def test_a_warning_takes_one_line(capsys):
    assert main(words(delta="0.001")) == 0
    warned = capsys.readouterr().err
    assert warned.startswith("Warning: Argument `delta` should be well below")
    assert warned.count("\n") == 1


def test_it_runs_as_a_module():
    command = [sys.executable, "-m", "keras_adaclip", *words(delta="2")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "`delta` must lie strictly between 0 and 1" in done.stderr.splitlines()[-1]
