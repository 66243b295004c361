"""What every clipping strategy must do: bound contributions, pay for its statistics, come back."""

import inspect
import itertools

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

import keras_adaclip as ka
from keras_adaclip.clipping.strategy import LARGEST_CLIP_NORM, SMALLEST_CLIP_NORM

# Every exported strategy, with the arguments that a test of its own would use.
STRATEGIES = {
    "FixedClipping": lambda: ka.clipping.FixedClipping(0.75),
    "QuantileClipping": lambda: ka.clipping.QuantileClipping(
        target_quantile=0.7,
        initial_clip_norm=0.3,
        learning_rate=0.1,
        count_noise_stddev=6.0,
        update="linear",
        min_clip_norm=0.01,
        max_clip_norm=9.0,
    ),
}
CLIP_NORMS = [SMALLEST_CLIP_NORM, 1e-6, 0.1, 1.0, 3.7, 1e6, LARGEST_CLIP_NORM]
NORMS = np.array([0.0, 1e-38, 1e-20, 1e-6, 0.1, 0.5, 1.0, 1.0 + 1e-7, 2.5, 1e6, 1e18], np.float32)

every_strategy = pytest.mark.parametrize("name", STRATEGIES)


def state_of(strategy, clip_norm=None):
    state = {name: np.asarray(v, np.float32) for name, v in strategy.initial_state().items()}
    if clip_norm is not None:
        state["clip_norm"] = np.float32(clip_norm)
    return {name: ops.convert_to_tensor(value) for name, value in state.items()}


def factors(strategy, norms, clip_norm=None):
    tensor = strategy.clip_factors(state_of(strategy, clip_norm), ops.convert_to_tensor(norms))
    return ops.convert_to_numpy(tensor)


def test_the_battery_holds_every_exported_strategy():
    exported = {
        name
        for name, value in vars(ka.clipping).items()
        if inspect.isclass(value)
        and issubclass(value, ka.clipping.ClippingStrategy)
        and not inspect.isabstract(value)
    }
    assert exported == set(STRATEGIES)


@every_strategy
def test_the_config_comes_back(name):
    strategy = STRATEGIES[name]()
    config = strategy.get_config()
    assert set(config) == set(inspect.signature(type(strategy)).parameters)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(strategy))
    assert type(again) is type(strategy)
    assert again.get_config() == config
    assert type(strategy).from_config(config).get_config() == config
    assert ka.clipping.get(keras.saving.serialize_keras_object(strategy)).get_config() == config


@every_strategy
def test_the_state_begins_with_a_clip_norm(name):
    assert STRATEGIES[name]().initial_state()["clip_norm"] > 0


@every_strategy
@pytest.mark.parametrize("clip_norm", CLIP_NORMS)
def test_no_contribution_is_longer_than_the_clip_norm(name, clip_norm):
    found = factors(STRATEGIES[name](), NORMS, clip_norm)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()
    assert (found >= 0).all()
    assert (found.astype(np.float64) * NORMS <= np.float32(clip_norm) * (1 + 1e-6)).all()


@every_strategy
def test_a_zero_contribution_stays_zero_and_a_short_one_whole(name):
    found = factors(STRATEGIES[name](), NORMS[:3], 1.0)
    np.testing.assert_array_equal(found, np.ones(3))


@given(
    norm=st.floats(0, 2.0**60, width=32),
    clip_norm=st.floats(SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM),
)
@every_strategy
def test_no_contribution_is_longer_than_the_clip_norm_anywhere(name, norm, clip_norm):
    (found,) = factors(STRATEGIES[name](), np.array([norm], np.float32), clip_norm)
    assert 0 <= found * norm <= np.float32(clip_norm) * (1 + 1e-6)


@every_strategy
@pytest.mark.parametrize("noise_multiplier", [0.1, 0.5, 1.0, 3.0, 11.9])
@pytest.mark.filterwarnings("ignore:The bits of `QuantileClipping` take much")
def test_sum_and_statistics_together_cost_the_total(name, noise_multiplier):
    """Two Gaussian mechanisms of noise multipliers a and b are one of (a^-2 + b^-2)^(-1/2)."""
    strategy = STRATEGIES[name]()
    of_sum, of_statistics = strategy.noise_split(noise_multiplier, 100.0)
    assert of_sum >= noise_multiplier
    cost = of_sum**-2
    if strategy.num_statistics:
        cost += (0.5 / of_statistics) ** 2 * strategy.num_statistics
    np.testing.assert_allclose(cost, noise_multiplier**-2, rtol=1e-12)


@every_strategy
def test_no_noise_is_split_into_no_noise(name):
    assert STRATEGIES[name]().noise_split(0.0, 100.0)[0] == 0.0


def released(strategy, units, clip_norm):
    """Clipped sum and summed statistics of units in the plane, as the step makes them."""
    state = state_of(strategy, clip_norm)
    units = np.asarray(units, np.float32).reshape(-1, 2)
    norms = np.linalg.norm(units, axis=1).astype(np.float32)
    finite = np.isfinite(norms)
    norms = ops.convert_to_tensor(np.where(finite, norms, np.float32(0)))
    clip_factors = ops.convert_to_numpy(strategy.clip_factors(state, norms)) * finite
    total = np.sum(np.where(finite[:, None], units, 0) * clip_factors[:, None], axis=0)
    statistics = strategy.statistics(state, norms, ops.convert_to_tensor(finite))
    if statistics is None:
        return total, np.zeros(0)
    return total, np.sum(ops.convert_to_numpy(statistics), axis=0)


UNITS = [
    (r * np.cos(angle), r * np.sin(angle))
    for r in (0.0, 0.5, 0.999, 1.0, 1.001, 30.0)
    for angle in (0.0, 0.7, np.pi)
] + [(np.inf, 0.0), (np.nan, 1.0)]


@every_strategy
def test_the_joint_sensitivity_is_what_the_split_pays_for(name):
    """The worst case over all batches of up to two units, and one more or less."""
    strategy = STRATEGIES[name]()
    clip_norm, total = 1.0, 2.0
    of_sum, of_statistics = strategy.noise_split(total, 100.0)
    worst = 0.0
    for rest in [(), *((unit,) for unit in UNITS), *itertools.combinations(UNITS[::4], 2)]:
        without = released(strategy, rest, clip_norm)
        for unit in UNITS:
            with_unit = released(strategy, [*rest, unit], clip_norm)
            moved = np.linalg.norm(with_unit[0] - without[0]) / (of_sum * clip_norm)
            if strategy.num_statistics:
                moved = np.hypot(moved, np.linalg.norm(with_unit[1] - without[1]) / of_statistics)
            worst = max(worst, moved)
    assert worst <= 1.0 / total * (1 + 1e-5)
    assert worst > 0.99 / total


@every_strategy
def test_the_next_state_is_finite_after_any_statistics(name):
    strategy = STRATEGIES[name]()
    state = state_of(strategy)
    for value in (-1e30, -100.0, 0.0, 100.0, 1e30):
        statistics = np.full(strategy.num_statistics, value, np.float32)
        after = strategy.update(
            state, ops.convert_to_tensor(statistics), ops.convert_to_tensor(np.float32(10))
        )
        assert set(after) == set(state)
        clip_norm = float(ops.convert_to_numpy(after["clip_norm"]))
        assert SMALLEST_CLIP_NORM * 0.999 <= clip_norm <= LARGEST_CLIP_NORM * 1.001


BAD_NORMS = [
    (0.0, ValueError, "must be positive and finite"),
    (-1.0, ValueError, "must be positive and finite"),
    (float("nan"), ValueError, "must be positive and finite"),
    (float("inf"), ValueError, "must be positive and finite"),
    (1e-30, ValueError, "must lie between 1e-10 and 1e"),
    (1e30, ValueError, "must lie between 1e-10 and 1e"),
    (True, TypeError, "must be a number"),
    ("1", TypeError, "must be a number"),
    (None, TypeError, "must be a number"),
    (np.ones(2), TypeError, "must be a number"),
]


@pytest.mark.parametrize(("value", "error", "message"), BAD_NORMS)
@pytest.mark.parametrize(
    ("cls", "argument"),
    [
        (ka.clipping.FixedClipping, "clip_norm"),
        (ka.clipping.QuantileClipping, "initial_clip_norm"),
    ],
)
def test_a_clip_norm_that_is_none_is_refused(cls, argument, value, error, message):
    with pytest.raises(error, match=f"Argument `{argument}` {message}"):
        cls(**{argument: value})


def test_numbers_of_numpy_are_numbers():
    assert ka.clipping.FixedClipping(np.float32(0.5)).clip_norm == 0.5
    assert ka.clipping.FixedClipping(np.int64(2)).get_config() == {"clip_norm": 2.0}


@pytest.mark.parametrize(
    ("identifier", "expected"),
    [
        (0.5, ka.clipping.FixedClipping),
        (2, ka.clipping.FixedClipping),
        (np.float32(0.5), ka.clipping.FixedClipping),
        ("quantile", ka.clipping.QuantileClipping),
    ],
)
def test_what_a_user_may_write_for_a_strategy(identifier, expected):
    assert type(ka.clipping.get(identifier)) is expected


def test_a_strategy_is_taken_as_it_is():
    strategy = ka.clipping.FixedClipping(1.0)
    assert ka.clipping.get(strategy) is strategy


@pytest.mark.parametrize(
    ("identifier", "error", "message"),
    [
        ("median", ValueError, "must name a known strategy .* clipping='median'"),
        (-1.0, ValueError, "must be positive"),
        (None, TypeError, "must be a clipping strategy .* clipping=None"),
        (True, TypeError, "must be a clipping strategy"),
        ([1.0], TypeError, "must be a clipping strategy"),
        (keras.layers.Dense, TypeError, "must be a clipping strategy"),
    ],
)
def test_what_is_no_strategy(identifier, error, message):
    with pytest.raises(error, match=message):
        ka.clipping.get(identifier)
