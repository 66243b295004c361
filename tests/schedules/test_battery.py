"""What every schedule must do: the formula on the host and in compiled steps, and come back."""

import inspect

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

# Every exported schedule, as a test of its own would build it, and its formula in plain NumPy.
SCHEDULES = {
    "LinearDecay": (
        lambda: ka.schedules.LinearDecay(3.0, 100),
        lambda step: oracles.linear_decay(step, 3.0, 100),
    ),
    "ExponentialDecay": (
        lambda: ka.schedules.ExponentialDecay(3.0, 1.7, 2**27),
        lambda step: oracles.exponential_decay(step, 3.0, 1.7, 2**27),
    ),
    "PowerDecay": (
        lambda: ka.schedules.PowerDecay(3.0, 0.7, STEPS_PER_EPOCH),
        lambda step: oracles.power_decay(step, 3.0, 0.7, STEPS_PER_EPOCH),
    ),
    "PiecewiseConstant": (
        lambda: ka.schedules.PiecewiseConstant(VALUES, STEPS_PER_EPOCH),
        lambda step: oracles.piecewise_constant(step, VALUES, STEPS_PER_EPOCH),
    ),
    "KerasSchedule": (
        lambda: ka.schedules.KerasSchedule(
            keras.optimizers.schedules.PolynomialDecay(1.5, 50, end_learning_rate=0.3), factor=2.0
        ),
        lambda step: 2.0 * (0.3 + 1.2 * (1.0 - min(step, 50) / 50)),
    ),
}
every_schedule = pytest.mark.parametrize("name", SCHEDULES)


def build(name):
    return SCHEDULES[name][0]()


def oracle(name, steps=STEPS):
    return np.array([SCHEDULES[name][1](step) for step in steps])


def as_tensor(value, dtype="int32"):
    return ops.convert_to_tensor(value, dtype=dtype)


def as_variable(value):
    return keras.Variable(value, dtype="int32", trainable=False)


def host_values(schedule, steps=STEPS, **arguments):
    values = [schedule.value_at(step, **arguments) for step in steps]
    assert {type(value) for value in values} == {float}
    return np.array(values)


def tensor_values(schedule, steps=STEPS, **arguments):
    """Values in one compiled function of the step."""
    function = compiled(lambda step: schedule(step, **arguments))
    return np.array([value_of(function(as_tensor(step))) for step in steps])


def value_of(tensor):
    assert keras.backend.standardize_dtype(tensor.dtype) == "float32"
    assert tuple(tensor.shape) == ()
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
def test_the_host_follows_the_formula(name):
    rtol = 1e-6 if name == "KerasSchedule" else 1e-13  # Keras's own are float32
    np.testing.assert_allclose(host_values(build(name)), oracle(name), rtol=rtol)


@every_schedule
def test_a_compiled_step_follows_the_formula(name):
    np.testing.assert_allclose(tensor_values(build(name)), oracle(name), rtol=2e-6)


@every_schedule
def test_the_config_comes_back(name):
    schedule = build(name)
    config = schedule.get_config()
    assert set(config) == set(inspect.signature(type(schedule)).parameters)
    serialized = keras.saving.serialize_keras_object(schedule)
    for again in (type(schedule).from_config(config), ka.schedules.get(serialized)):
        assert type(again) is type(schedule)
        assert again.get_config() == config
        np.testing.assert_array_equal(host_values(again), host_values(schedule))
    assert ka.schedules.get(schedule) is schedule
    assert repr(schedule).startswith(f"{name}({next(iter(config))}=")


@every_schedule
def test_scaling_multiplies_every_value(name):
    schedule = build(name)
    before, factor = host_values(schedule), np.float32(0.3)
    scaled = schedule.scaled(factor)
    assert type(scaled) is type(schedule)
    np.testing.assert_allclose(host_values(scaled), before * float(factor), rtol=1e-12)
    np.testing.assert_allclose(tensor_values(scaled), before * float(factor), rtol=2e-6)
    np.testing.assert_array_equal(host_values(schedule), before)
    with pytest.raises(ValueError, match=r"Argument `factor` must be .* Received: factor="):
        schedule.scaled(0.0)


@every_schedule
def test_any_kind_of_count_is_a_step_and_nothing_else(name):
    schedule, expected = build(name), SCHEDULES[name][1](40)
    for kind in (int, np.int64, np.array, as_tensor, as_variable):
        assert value_of(schedule(kind(40), STEPS_PER_EPOCH)) == pytest.approx(expected, rel=2e-6)
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
def test_a_schedule_that_was_not_told_of_epochs_says_so(name):
    schedule = BY_EPOCH[name]()
    assert schedule.needs_steps_per_epoch
    for call in (schedule, schedule.value_at):
        with pytest.raises(ValueError, match=rf"`{name}` counts in epochs .* steps_per_epoch=None"):
            call(5)
        with pytest.raises(ValueError, match="`steps_per_epoch` must be at least 1"):
            call(5, steps_per_epoch=0)


@every_schedule_by_epoch
def test_the_steps_of_an_epoch_may_come_with_the_step(name):
    schedule = BY_EPOCH[name]()
    told = host_values(BY_EPOCH[name](10))
    np.testing.assert_array_equal(host_values(schedule, steps_per_epoch=10), told)
    np.testing.assert_allclose(tensor_values(schedule, steps_per_epoch=10), told, rtol=2e-6)
    function = compiled(schedule)
    for step, expected in zip(STEPS, told, strict=True):
        for dtype in ("int32", "uint8" if keras.backend.backend() == "jax" else "int64"):
            found = value_of(function(as_tensor(step), as_tensor(10, dtype)))
            assert found == pytest.approx(expected, rel=2e-6)
    # What it was built with goes before what a call says.
    np.testing.assert_array_equal(host_values(BY_EPOCH[name](10), steps_per_epoch=3), told)


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


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (ka.schedules.ExponentialDecay(1.0, 2.0, 1), 1e-30),
        (ka.schedules.ExponentialDecay(1.0, 0.5, 1), 1e30),
        (ka.schedules.PowerDecay(1e-30, 10.0, 1), 1e-30),
    ],
    ids=str,
)
def test_values_stay_positive_and_finite_for_ever(schedule, expected):
    assert schedule.value_at(LAST_STEP) == pytest.approx(expected, rel=1e-12)
    assert value_of(schedule(as_tensor(LAST_STEP))) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_a_learning_rate_that_is_not_positive_becomes_tiny(value):
    class Odd(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step):
            return value * ops.cast(step, "float32")

    schedule = ka.schedules.get(Odd())
    assert schedule.value_at(3) == 1e-30
    assert value_of(schedule(as_tensor(3))) == pytest.approx(1e-30)


@pytest.mark.parametrize(
    "of_keras",
    [
        keras.optimizers.schedules.CosineDecay(0.1, 40, warmup_target=0.5, warmup_steps=10),
        keras.optimizers.schedules.PiecewiseConstantDecay([5, 20], [1.0, 0.5, 0.25]),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_keras_schedules_serve(of_keras):
    schedule = ka.schedules.get(of_keras)
    expected = [float(ops.convert_to_numpy(of_keras(step))) for step in range(40)]
    np.testing.assert_allclose(host_values(schedule, range(40)), expected, rtol=1e-6)
    np.testing.assert_allclose(tensor_values(schedule, range(40)), expected, rtol=1e-5)
    again = ka.schedules.get(keras.saving.serialize_keras_object(of_keras))
    assert again.get_config() == schedule.get_config()


@pytest.mark.parametrize("identifier", [None, "linear", {}])
def test_what_is_no_schedule(identifier):
    with pytest.raises(TypeError, match=r"Argument `schedule` must be a schedule .* schedule="):
        ka.schedules.get(identifier)
