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
        (LINEAR, (0.0, 10), ValueError, "`initial_value` must lie between 1e-30"),
        (LINEAR, (float("nan"), 10), ValueError, "`initial_value` must be finite"),
        (LINEAR, (True, 10), TypeError, "`initial_value` must be a number"),
        (LINEAR, (1.0, 0), ValueError, "`total_steps` must be at least 1"),
        (EXPONENTIAL, (1.0, -1.0, 10), ValueError, "`decay_rate` must lie between"),
        (POWER, (1.0, 10.1), ValueError, "`power` must lie between 0 and 10"),
        (PIECEWISE, ([1.0, 0.0],), ValueError, "`values` must lie between"),
        (PIECEWISE, ([],), ValueError, "`values` must hold at least one value"),
        (PIECEWISE, ("12",), TypeError, "`values` must be a sequence of numbers"),
        (PIECEWISE, ([1.0], 0), ValueError, "`steps_per_epoch` must be at least 1"),
        (ka.schedules.KerasSchedule, (LINEAR(1.0, 10),), TypeError, "`keras.optimizers.schedules"),
        (ka.schedules.get, ("linear",), TypeError, "`schedule` must be a schedule"),
        (LINEAR(1.0, 10).scaled, (0.0,), ValueError, "`factor` must lie between"),
    ],
)
def test_arguments_out_of_range_are_refused(cls, arguments, error, message):
    with pytest.raises(error, match=f"{message}.* Received: "):
        cls(*arguments)


@pytest.mark.parametrize("steps_per_epoch", [None, np.int64(12)])
def test_a_saved_schedule_is_loaded_as_it_was(tmp_path, steps_per_epoch):
    values = [0.1, 1 / 3, 1e-30, 1e30, 5.0]
    path = tmp_path / "schedule.json"
    ka.schedules.PiecewiseConstant(np.array(values), steps_per_epoch).save(path)
    config = {"values": values, "steps_per_epoch": steps_per_epoch}
    assert ka.schedules.PiecewiseConstant.load(str(path)).get_config() == config
    head = {"format": "keras_adaclip.PiecewiseConstant", "version": 1}
    assert json.loads(path.read_text()) == {**head, **config}


def document(**changes):
    good = {"format": "keras_adaclip.PiecewiseConstant", "version": 1, "values": [1.0]}
    return json.dumps({**good, **changes}).encode()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "Expecting property name"),
        (b"\xff\xfe\x00", "utf-8"),
        (b"[1.0]", "not"),
        (document(version=2), r"its format and version are \('keras_adaclip.*', 2\)"),
        (document(values=[1.0, -1.0]), "Argument `values` must lie between"),
        (document(colour="red"), "colour"),
    ],
)
def test_a_file_without_a_schedule_is_refused(tmp_path, text, message):
    path = tmp_path / "schedule.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=rf"schedule\.json does not hold a valid .*{message}"):
        ka.schedules.PiecewiseConstant.load(path)
