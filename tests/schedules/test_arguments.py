"""Arguments that make no schedule, and files that hold none."""

import json

import numpy as np
import pytest

import keras_adaclip as ka

BAD_VALUES = [
    (0.0, ValueError, "must be positive"),
    (-1.0, ValueError, "must be positive"),
    (1e-31, ValueError, "must be positive, between 1e-30 and 1e"),
    (1e31, ValueError, "must be positive, between 1e-30 and 1e"),
    (float("nan"), ValueError, "must be finite"),
    (float("inf"), ValueError, "must be finite"),
    (True, TypeError, "must be a number"),
    ("1", TypeError, "must be a number"),
    (None, TypeError, "must be a number"),
]
BAD_COUNTS = [
    (0, ValueError, "must (be at least 1|lie between 1 and 2147483647)"),
    (2**31, ValueError, "must (be at least 1|lie between 1 and 2147483647)"),
    (1.5, TypeError, "must be an integer"),
    (True, TypeError, "must be an integer"),
]
GOOD = {
    ka.schedules.LinearDecay: {"initial_value": 1.0, "total_steps": 10},
    ka.schedules.ExponentialDecay: {"initial_value": 1.0, "decay_rate": 2.0, "total_steps": 10},
    ka.schedules.PowerDecay: {"initial_value": 1.0, "power": 0.5, "steps_per_epoch": 10},
    ka.schedules.PiecewiseConstant: {"values": [1.0], "steps_per_epoch": 10},
}


@pytest.mark.parametrize(("value", "error", "message"), BAD_VALUES)
@pytest.mark.parametrize(
    ("cls", "argument"),
    [
        (cls, argument)
        for cls, arguments in GOOD.items()
        for argument in arguments
        if argument in ("initial_value", "decay_rate", "values")
    ],
)
def test_a_value_that_is_none_is_refused(cls, argument, value, error, message):
    value = [1.0, value] if argument == "values" else value
    with pytest.raises(error, match=f"Argument `{argument}` {message}.* Received: {argument}="):
        cls(**{**GOOD[cls], argument: value})


@pytest.mark.parametrize(("value", "error", "message"), BAD_COUNTS)
@pytest.mark.parametrize(
    ("cls", "argument"),
    [
        (cls, argument)
        for cls, arguments in GOOD.items()
        for argument in arguments
        if argument in ("total_steps", "steps_per_epoch")
    ],
)
def test_a_count_that_is_none_is_refused(cls, argument, value, error, message):
    with pytest.raises(error, match=f"Argument `{argument}` {message}.* Received: {argument}="):
        cls(**{**GOOD[cls], argument: value})


@pytest.mark.parametrize("power", [-0.1, 10.1])
def test_a_power_out_of_range_is_refused(power):
    with pytest.raises(ValueError, match=r"`power` must lie between 0 and 10\. Received: power="):
        ka.schedules.PowerDecay(1.0, power)


@pytest.mark.parametrize("values", ["12", 1.0, None])
def test_values_must_be_a_sequence(values):
    with pytest.raises(TypeError, match=r"`values` must be a sequence of numbers\. Received"):
        ka.schedules.PiecewiseConstant(values)
    with pytest.raises(ValueError, match="`values` must hold at least one value"):
        ka.schedules.PiecewiseConstant([])


def test_keras_schedules_are_wrapped_alone():
    with pytest.raises(TypeError, match=r"`schedule` must be a `keras\.optimizers\.schedules"):
        ka.schedules.KerasSchedule(ka.schedules.LinearDecay(1.0, 10))


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
        ("", "is not a JSON file"),
        ("{", "is not a JSON file"),
        (b"\xff\xfe\x00", "is not a JSON file"),
        ("[1.0, 2.0]", "its `format` must be 'keras_adaclip.PiecewiseConstant'"),
        (document(format="other"), "its `format` must be"),
        (document(version=2), r"reads version 1\. Received: version=2"),
        (document(version=None), r"Received: version=None"),
        (document(values=[]), "not valid: Argument `values` must hold at least one value"),
        (document(values=[1.0, -1.0]), "not valid: Argument `values` must be positive"),
        (document(values=[float("nan")]), "not valid: Argument `values` must be finite"),
        (document(values="1"), "not valid: Argument `values` must be a sequence"),
        (document(values=["1"]), "not valid: Argument `values` must be a number"),
        (document(steps_per_epoch=0), "not valid: Argument `steps_per_epoch`"),
        (document(colour="red"), "not valid: .*colour"),
        ('{"format": "keras_adaclip.PiecewiseConstant", "version": 1}', "not valid: .*values"),
    ],
)
def test_a_file_that_holds_no_schedule_is_named(tmp_path, text, message):
    path = tmp_path / "schedule.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=rf"schedule\.json .*{message}"):
        ka.schedules.PiecewiseConstant.load(path)


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        ka.schedules.PiecewiseConstant.load(tmp_path / "missing.json")
