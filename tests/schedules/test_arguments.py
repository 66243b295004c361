"""Arguments that are not valid for a schedule, and files that hold none."""

import json

import numpy as np
import pytest

import keras_adaclip as ka

LINEAR, EXPONENTIAL = ka.schedules.LinearDecay, ka.schedules.ExponentialDecay
POWER, PIECEWISE = ka.schedules.PowerDecay, ka.schedules.PiecewiseConstant


@pytest.mark.parametrize(
    ("cls", "arguments", "error", "message"),
    [
        (LINEAR, (0.0, 10), ValueError, "`initial_value` must be positive, between 1e-30"),
        (LINEAR, (1e31, 10), ValueError, "`initial_value` must be positive, between 1e-30"),
        (LINEAR, (float("nan"), 10), ValueError, "`initial_value` must be finite"),
        (LINEAR, (True, 10), TypeError, "`initial_value` must be a number"),
        (LINEAR, (1.0, 0), ValueError, "`total_steps` must be at least 1"),
        (LINEAR, (1.0, 1.5), TypeError, "`total_steps` must be an integer"),
        (EXPONENTIAL, (1.0, -1.0, 10), ValueError, "`decay_rate` must be positive"),
        (EXPONENTIAL, (1.0, 2.0, 2**31), ValueError, "`total_steps` must lie between 1"),
        (POWER, (-1.0,), ValueError, "`initial_value` must be positive"),
        (POWER, (1.0, 10.1), ValueError, "`power` must lie between 0 and 10"),
        (POWER, (1.0, 0.5, True), TypeError, "`steps_per_epoch` must be an integer"),
        (PIECEWISE, ([1.0, 0.0],), ValueError, "`values` must be positive"),
        (PIECEWISE, ([],), ValueError, "`values` must hold at least one value"),
        (PIECEWISE, ("12",), TypeError, "`values` must be a sequence of numbers"),
        (PIECEWISE, ([1.0], 0), ValueError, "`steps_per_epoch` must be at least 1"),
        (ka.schedules.KerasSchedule, (LINEAR(1.0, 10),), TypeError, "`keras.optimizers.schedules"),
    ],
)
def test_arguments_out_of_range_are_refused(cls, arguments, error, message):
    with pytest.raises(error, match=f"{message}.* Received: "):
        cls(*arguments)


def test_values_may_be_any_numbers():
    schedule = ka.schedules.PiecewiseConstant(np.array([2, 1], np.float32), np.int64(3))
    assert schedule.get_config() == {"values": [2.0, 1.0], "steps_per_epoch": 3}


@pytest.mark.parametrize("steps_per_epoch", [None, 12])
def test_a_saved_schedule_is_loaded_as_it_was(tmp_path, steps_per_epoch):
    values = [0.1, 1 / 3, 1e-30, 1e30, 5.0]
    schedule = ka.schedules.PiecewiseConstant(values, steps_per_epoch)
    path = tmp_path / "schedule.json"
    schedule.save(path)
    schedule.save(str(path))
    loaded = ka.schedules.PiecewiseConstant.load(str(path))
    assert loaded.get_config() == {"values": values, "steps_per_epoch": steps_per_epoch}
    assert json.loads(path.read_text()) == {
        "format": "keras_adaclip.PiecewiseConstant",
        "version": 1,
        "values": values,
        "steps_per_epoch": steps_per_epoch,
    }


def document(**changes):
    good = {"format": "keras_adaclip.PiecewiseConstant", "version": 1, "values": [1.0]}
    return json.dumps({**good, **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not a JSON file"),
        (b"\xff\xfe\x00", "is not a JSON file"),
        (document(format="other"), "its `format` must be"),
        (document(version=2), r"reads version 1\. Received: version=2"),
        (document(values=[1.0, -1.0]), "not valid: Argument `values` must be positive"),
        (document(colour="red"), "not valid: .*colour"),
        ('{"format": "keras_adaclip.PiecewiseConstant", "version": 1}', "not valid: .*values"),
    ],
)
def test_a_file_that_holds_no_schedule_is_named(tmp_path, text, message):
    path = tmp_path / "schedule.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=rf"schedule\.json .*{message}"):
        ka.schedules.PiecewiseConstant.load(path)
