"""QuantileClipping against a rewrite in NumPy, and against figure 2 of Andrew et al. 2021."""

import math

import numpy as np
import pytest
from keras import ops
from scipy import stats

import keras_adaclip as ka
from tests.clipping.support import SINGLE, summed_statistics, tensors, updated


def step(strategy, state, norms, count_noise, expected_units):
    """One step through the strategy's own functions, on arrays of NumPy."""
    norms = np.asarray(norms, np.float32)[:, None]
    total = summed_statistics(strategy, state, norms) + count_noise
    after = updated(strategy, state, total, expected_units)
    return {name: value.astype(np.float64) for name, value in after.items()}


@pytest.mark.parametrize("update", ["geometric", "linear"])
def test_fifty_steps_follow_the_formula(update):
    """b = (sum (bit - 1/2) + noise) / m + 1/2; C <- C exp(-eta (b - gamma)) or C - eta (...)."""
    generator = np.random.default_rng(0)
    gamma, eta, expected_units, stddev = 0.6, 0.15, 40, 3.0
    strategy = ka.clipping.QuantileClipping(gamma, 0.5, eta, stddev, update, max_clip_norm=2.0)
    state, clip_norm = strategy.initial_state(SINGLE), 0.5
    for _ in range(50):
        norms = generator.lognormal(size=generator.poisson(expected_units)).astype(np.float32)
        noise = generator.normal(0, stddev)
        state = step(strategy, state, norms, noise, expected_units)
        bits = norms <= np.float32(clip_norm)
        fraction = (np.sum(bits - 0.5) + noise) / expected_units + 0.5
        if update == "geometric":
            clip_norm = clip_norm * math.exp(-eta * (fraction - gamma))
        else:
            clip_norm = max(clip_norm - eta * (fraction - gamma), 1e-6)
        clip_norm = min(clip_norm, 2.0)
        np.testing.assert_allclose(state["clip_norm"], clip_norm, rtol=1e-5)
        np.testing.assert_allclose(state["unclipped_fraction"], fraction, rtol=1e-5, atol=1e-6)
        clip_norm = state["clip_norm"][0]


def test_a_norm_equal_to_the_clip_norm_is_unclipped_and_a_non_finite_one_is_not():
    strategy = ka.clipping.QuantileClipping(initial_clip_norm=0.1)
    norms = ops.convert_to_tensor(np.array([0.1, 0.0, 0.0, 0.11], np.float32))
    finite = ops.convert_to_tensor(np.array([True, True, False, True]))
    bits = strategy.statistics(tensors(strategy.initial_state(SINGLE)), norms[:, None], finite)
    np.testing.assert_array_equal(ops.convert_to_numpy(bits), [[0.5], [0.5], [-0.5], [-0.5]])


@pytest.mark.parametrize("update", ["geometric", "linear"])
def test_the_bounds_hold(update):
    strategy = ka.clipping.QuantileClipping(
        0.5, 1.0, 0.5, 1.0, update, min_clip_norm=0.5, max_clip_norm=2.0
    )
    for norms, bound in (([0.0] * 50, 0.5), ([1e9] * 50, 2.0)):
        state = strategy.initial_state(SINGLE)
        for _ in range(20):
            state = step(strategy, state, norms, 0.0, 10)
        assert state["clip_norm"] == bound


@pytest.mark.parametrize("update", ["geometric", "linear"])
def test_the_norm_comes_back_from_its_smallest_and_largest_value(update):
    strategy = ka.clipping.QuantileClipping(0.5, 1.0, 10.0, 1.0, update)
    for norms in ([0.0] * 10, [1e17] * 10):
        state = strategy.initial_state(SINGLE)
        for _ in range(100):
            state = step(strategy, state, norms, 0.0, 10)
        far = state["clip_norm"]
        assert not 0.1 < far < 10.0
        opposite = [1e17] * 10 if far < 1 else [0.0] * 10
        for _ in range(3):
            state = step(strategy, state, opposite, 0.0, 10)
        assert (state["clip_norm"] > far) == (far < 1)


# Reference value: design of the mechanism, z_D = (z^-2 - (2 s)^-2)^(-1/2).
@pytest.mark.parametrize(
    ("noise_multiplier", "stddev", "expected_units", "of_sum", "of_bits"),
    [
        (1.0, None, 256, (1 - 1 / 25.6**2) ** -0.5, 12.8),
        (1.0, 5.0, 256, (1 - 0.01) ** -0.5, 5.0),
        (0.0, 5.0, 256, 0.0, 5.0),
        (0.0, None, 256, 0.0, 0.0),
    ],
)
def test_the_split_in_numbers(noise_multiplier, stddev, expected_units, of_sum, of_bits):
    strategy = ka.clipping.QuantileClipping(count_noise_stddev=stddev)
    found = strategy.noise_split(noise_multiplier, expected_units)
    np.testing.assert_allclose(found, (of_sum, of_bits), rtol=1e-12)


@pytest.mark.parametrize(("stddev", "expected_units"), [(0.5, 100), (0.4, 100), (None, 10)])
def test_bits_that_cannot_be_paid_for_are_refused_with_the_remedy(stddev, expected_units):
    strategy = ka.clipping.QuantileClipping(count_noise_stddev=stddev)
    with pytest.raises(
        ValueError, match=r"Raise `count_noise_stddev` above 0\.5; where it is None, raise `batch"
    ):
        strategy.noise_split(1.0, expected_units)
    if stddev is None:
        strategy.noise_split(0.8, expected_units)


def test_bits_that_cost_much_are_warned_about():
    strategy = ka.clipping.QuantileClipping(count_noise_stddev=0.51)
    with pytest.warns(UserWarning, match="take much of the budget: the sum is noised with 5.07"):
        strategy.noise_split(1.0, 100)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"target_quantile": 1.5}, ValueError, "`target_quantile` must lie between 0 and 1"),
        ({"target_quantile": -0.1}, ValueError, "`target_quantile` must lie between 0 and 1"),
        ({"target_quantile": float("nan")}, ValueError, "must lie between 0 and 1"),
        ({"target_quantile": "0.5"}, TypeError, "`target_quantile` must be a number"),
        ({"target_quantile": True}, TypeError, "`target_quantile` must be a number"),
        ({"learning_rate": 0.0}, ValueError, "`learning_rate` must be positive"),
        ({"count_noise_stddev": -1.0}, ValueError, "`count_noise_stddev` must be positive"),
        ({"count_noise_stddev": "x"}, TypeError, "`count_noise_stddev` must be a number"),
        ({"update": "cubic"}, ValueError, "must be 'geometric' or 'linear'. Received: .*cubic"),
        ({"min_clip_norm": 0.0}, ValueError, "`min_clip_norm` must be positive"),
        ({"max_clip_norm": -1.0}, ValueError, "`max_clip_norm` must be positive"),
        ({"min_clip_norm": 0.2}, ValueError, "must lie between `min_clip_norm` and"),
        ({"max_clip_norm": 0.05}, ValueError, "must lie between `min_clip_norm` and"),
    ],
)
def test_arguments_out_of_range(arguments, error, message):
    with pytest.raises(error, match=message):
        ka.clipping.QuantileClipping(**arguments)


# Figure 2 of Andrew et al.: log-normal norms, by mean and deviation of the logarithm.
DISTRIBUTIONS = {
    "exp(N(0, 1))": (0.0, 1.0),
    "exp(N(0, 0.1))": (0.0, 0.1),
    "exp(N(log 10, 1))": (math.log(10), 1.0),
}


@pytest.mark.parametrize("target", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_quantile_is_tracked_as_in_the_paper(name, target, record_property):
    """100 units a round, C0 = 0.1, eta = 0.2, count noise 5: rounds 200 to 400, true quantiles."""
    mean, deviation = DISTRIBUTIONS[name]
    strategy = ka.clipping.QuantileClipping(target, 0.1, 0.2, count_noise_stddev=5.0)
    generator = np.random.default_rng(7)
    state, quantiles = strategy.initial_state(SINGLE), []
    for _ in range(400):
        norms = generator.lognormal(mean, deviation, 100)
        state = step(strategy, state, norms, generator.normal(0, 5.0), 100)
        quantiles.append(stats.norm.cdf((math.log(state["clip_norm"][0]) - mean) / deviation))
    tail = np.array(quantiles[200:])
    error = float(np.mean(np.abs(tail - target)))
    record_property("tracking", f"{name} {target}: mean {tail.mean():.3f}, error {error:.3f}")
    print(f"{name}, quantile {target}: mean {tail.mean():.3f}, mean absolute error {error:.3f}")
    assert abs(tail.mean() - target) < 0.06
    assert error < 0.06
