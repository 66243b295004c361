"""Promises of every schedule: the formula on the host and in compiled steps, and its config."""

import inspect
import json

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

import keras_adaclip as ka
from tests import oracles
from tests.gradients.support import compiled

STEPS_PER_EPOCH = 7
VALUES = [3.0, 2.5, 2.75, 0.125, 1e-3]
LAST_STEP = 2**31 - 1
STEPS = [*range(60), 99, 100, 101, 1000, 2**24 + 1, LAST_STEP]
POLYNOMIAL = keras.optimizers.schedules.PolynomialDecay(1.5, 50, end_learning_rate=0.3)

# Every exported schedule, and its formula in plain NumPy.
SCHEDULES = {
    "LinearDecay": (
        ka.schedules.LinearDecay(3.0, 100),
        lambda step: oracles.linear_decay(step, 3.0, 100),
    ),
    "ExponentialDecay": (
        ka.schedules.ExponentialDecay(3.0, 1.7, 2**27),
        lambda step: oracles.exponential_decay(step, 3.0, 1.7, 2**27),
    ),
    "PowerDecay": (
        ka.schedules.PowerDecay(3.0, 0.7, STEPS_PER_EPOCH),
        lambda step: oracles.power_decay(step, 3.0, 0.7, STEPS_PER_EPOCH),
    ),
    "PiecewiseConstant": (
        ka.schedules.PiecewiseConstant(VALUES, STEPS_PER_EPOCH),
        lambda step: oracles.piecewise_constant(step, VALUES, STEPS_PER_EPOCH),
    ),
    "KerasSchedule": (
        ka.schedules.KerasSchedule(POLYNOMIAL, factor=2.0),
        lambda step: 2.0 * (0.3 + 1.2 * (1.0 - min(step, 50) / 50)),
    ),
}
every_schedule = pytest.mark.parametrize("name", SCHEDULES)


def as_tensor(value, dtype="int32"):
    return ops.convert_to_tensor(value, dtype=dtype)


def host_values(schedule, **arguments):
    return np.array([schedule.value_at(step, **arguments) for step in STEPS])


def value_of(tensor):
    assert keras.backend.standardize_dtype(tensor.dtype) == "float32"
    return float(ops.convert_to_numpy(tensor))


def test_the_battery_holds_every_exported_schedule():
    exported = {
        name
        for name, value in vars(ka.schedules).items()
        if inspect.isclass(value)
        and issubclass(value, ka.schedules.Schedule)
        and not inspect.isabstract(value)
    }
    assert exported == set(SCHEDULES)


@every_schedule
def test_host_and_compiled_steps_follow_the_formula(name):
    schedule, oracle = SCHEDULES[name]
    expected = np.array([oracle(step) for step in STEPS])
    rtol = 1e-6 if name == "KerasSchedule" else 1e-13  # Keras's own are float32
    np.testing.assert_allclose(host_values(schedule), expected, rtol=rtol)
    function = compiled(schedule)
    found = [value_of(function(as_tensor(step))) for step in STEPS]
    np.testing.assert_allclose(found, expected, rtol=2e-6)


@every_schedule
def test_the_config_comes_back(name):
    schedule, _ = SCHEDULES[name]
    config = schedule.get_config()
    assert set(config) == set(inspect.signature(type(schedule)).parameters)
    serialized = keras.saving.serialize_keras_object(schedule)
    for again in (type(schedule).from_config(config), ka.schedules.get(serialized)):
        assert again.get_config() == config
        np.testing.assert_array_equal(host_values(again), host_values(schedule))
    assert repr(schedule).startswith(f"{name}({next(iter(config))}=")


@every_schedule
def test_scaling_multiplies_every_value(name):
    schedule, _ = SCHEDULES[name]
    scaled = schedule.scaled(np.float32(0.3))
    assert type(scaled) is type(schedule)
    expected = host_values(schedule) * float(np.float32(0.3))
    np.testing.assert_allclose(host_values(scaled), expected, rtol=1e-12)


@every_schedule
def test_steps_are_integers_of_any_kind(name):
    schedule, oracle = SCHEDULES[name]
    variable = keras.Variable(40, dtype="int32", trainable=False)
    for step in (40, np.int64(40), np.array(40), as_tensor(40), variable):
        assert value_of(schedule(step)) == pytest.approx(oracle(40), rel=2e-6)
    for step, error in ((-1, ValueError), (2**31, ValueError), (1.0, TypeError), (True, TypeError)):
        for call in (schedule, schedule.value_at):
            with pytest.raises(error, match="Argument `step` must"):
                call(step)


BY_EPOCH = {
    "PowerDecay": lambda steps_per_epoch=None: ka.schedules.PowerDecay(3.0, 1.0, steps_per_epoch),
    "PiecewiseConstant": lambda steps_per_epoch=None: ka.schedules.PiecewiseConstant(
        [3.0 / epoch for epoch in range(1, 100)], steps_per_epoch
    ),
}
every_schedule_by_epoch = pytest.mark.parametrize("name", BY_EPOCH)


@every_schedule_by_epoch
def test_the_number_of_steps_in_an_epoch_comes_with_the_schedule_or_the_step(name):
    schedule, told = BY_EPOCH[name](), BY_EPOCH[name](10)
    assert schedule.needs_steps_per_epoch
    for call in (schedule, schedule.value_at):
        with pytest.raises(ValueError, match=rf"`{name}` counts in epochs .* steps_per_epoch=None"):
            call(5)
        with pytest.raises(ValueError, match="`steps_per_epoch` must be at least 1"):
            call(5, steps_per_epoch=0)
    np.testing.assert_array_equal(host_values(schedule, steps_per_epoch=10), host_values(told))
    found = compiled(schedule)(as_tensor(47), as_tensor(10))
    assert value_of(found) == pytest.approx(told.value_at(47), rel=2e-6)
    # The schedule's own number goes before that of a call.
    np.testing.assert_array_equal(host_values(told, steps_per_epoch=3), host_values(told))


@given(epoch=st.integers(1, 98), steps_per_epoch=st.integers(1, LAST_STEP // 99))
@every_schedule_by_epoch
def test_an_epoch_begins_at_its_first_step_and_not_one_before(name, epoch, steps_per_epoch):
    """Also where float32 holds neither the step nor its quotient."""
    schedule = BY_EPOCH[name](steps_per_epoch)
    for step, expected in (
        (epoch * steps_per_epoch - 1, 3.0 / epoch),
        (epoch * steps_per_epoch, 3.0 / (epoch + 1)),
    ):
        assert schedule.value_at(step) == pytest.approx(expected, rel=1e-14)
        assert value_of(schedule(as_tensor(step))) == pytest.approx(expected, rel=1e-6)


@keras.saving.register_keras_serializable(package="tests")
class Negative(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return -ops.cast(step, "float32")


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ka.schedules.ExponentialDecay(1.0, 2.0, 1), 1e-30),
        (ka.schedules.ExponentialDecay(1.0, 0.5, 1), 1e30),
        (ka.schedules.PowerDecay(1e-30, 10.0, 1), 1e-30),
        (ka.schedules.KerasSchedule(Negative()), 1e-30),
    ],
    ids=["falls", "grows", "power", "negative"],
)
def test_values_stay_positive_and_finite(schedule, expected):
    assert schedule.value_at(LAST_STEP) == pytest.approx(expected, rel=1e-12)
    assert value_of(schedule(as_tensor(LAST_STEP))) == pytest.approx(expected, rel=1e-6)


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
