"""The strategies that adapt against NumPy, and figure 2 of Andrew et al."""

import math

import numpy as np
import pytest
from keras import ops
from scipy import stats

import keras_adaclip as ka
from keras_adaclip.clipping import ParameterGroups
from tests import oracles
from tests.clipping.support import SINGLE, summed_statistics, tensors, updated
from tests.soundness.setups import COMPILED, dp_sgd, fix_draws, line_data, line_model, recorded_fit

QUANTILE, MEAN_NORM = ka.clipping.QuantileClipping, ka.clipping.MeanNormClipping
ADACLIP, ERROR = ka.clipping.AdaClip, ka.clipping.ExpectedErrorClipping


def step(strategy, state, norms, count_noise, expected_units):
    norms = np.asarray(norms, np.float32)[:, None]
    total = summed_statistics(strategy, state, norms) + count_noise
    after = updated(strategy, state, total, expected_units)
    return {name: value.astype(np.float64) for name, value in after.items()}


@pytest.mark.parametrize("update", ["geometric", "linear"])
def test_fifty_steps_of_a_quantile_follow_the_formula(update):
    """b = (sum (bit - 1/2) + noise) / m + 1/2; C <- C exp(-eta (b - gamma)) or C - eta (...)."""
    generator = np.random.default_rng(0)
    gamma, eta, expected_units, stddev = 0.6, 0.15, 40, 3.0
    bounds = {"min_clip_norm": 1.26, "max_clip_norm": 1.35}
    strategy = ka.clipping.QuantileClipping(gamma, 1.3, eta, stddev, update, **bounds)
    state, clip_norm = strategy.initial_state(SINGLE), 1.3
    for _ in range(50):
        norms = generator.lognormal(size=generator.poisson(expected_units)).astype(np.float32)
        noise = generator.normal(0, stddev)
        state = step(strategy, state, norms, noise, expected_units)
        bits = norms <= np.float32(clip_norm)
        fraction = (np.sum(bits - 0.5) + noise) / expected_units + 0.5
        if update == "geometric":
            clip_norm = clip_norm * math.exp(-eta * (fraction - gamma))
        else:
            clip_norm = clip_norm - eta * (fraction - gamma)
        clip_norm = min(max(clip_norm, 1.26), 1.35)
        np.testing.assert_allclose(state["clip_norm"], clip_norm, rtol=1e-5)
        np.testing.assert_allclose(state["unclipped_fraction"], fraction, rtol=1e-5, atol=1e-6)
        clip_norm = state["clip_norm"][0]


def test_a_norm_equal_to_the_clip_norm_is_unclipped_and_a_non_finite_one_is_not():
    strategy = ka.clipping.QuantileClipping(initial_clip_norm=0.1)
    norms = ops.convert_to_tensor(np.array([0.1, 0.0, 0.0, 0.11], np.float32))
    finite = ops.convert_to_tensor(np.array([True, True, False, True]))
    bits = strategy.statistics(tensors(strategy.initial_state(SINGLE)), norms[:, None], finite)
    np.testing.assert_array_equal(ops.convert_to_numpy(bits), [[0.5], [0.5], [-0.5], [-0.5]])


def test_the_default_noise_is_a_twentieth_of_the_units():
    found = ka.clipping.QuantileClipping().noise_split(1.0, 256)
    np.testing.assert_allclose(found, ((1 - 1 / 25.6**2) ** -0.5, 12.8), rtol=1e-12)


@pytest.mark.parametrize(("stddev", "expected_units"), [(0.5, 100), (None, 10)])
@pytest.mark.parametrize(
    ("strategy", "argument"),
    [
        (QUANTILE, "count_noise_stddev"),
        (MEAN_NORM, "mean_noise_stddev"),
        (ERROR, "excess_noise_stddev"),
    ],
)
def test_too_little_noise_on_statistics_is_refused(strategy, argument, stddev, expected_units):
    message = rf"Raise `{argument}` above 0\.5; where it is None, raise `batch"
    with pytest.raises(ValueError, match=message):
        strategy(**{argument: stddev}).noise_split(1.0, expected_units)


def test_bits_that_cost_much_are_warned_about():
    strategy = ka.clipping.QuantileClipping(count_noise_stddev=0.51)
    with pytest.warns(UserWarning, match="take much of the budget: the sum is noised with 5.07"):
        strategy.noise_split(1.0, 100)


def test_fifty_steps_of_a_mean_follow_the_formula():
    """mean = (sum (min(norm, R) - R/2) + noise R) / m + R/2; C <- factor mean; R = k C."""
    generator = np.random.default_rng(0)
    factor, bound_factor, expected_units, stddev = 0.9, 3.0, 40, 2.0
    strategy = ka.clipping.MeanNormClipping(0.5, factor, bound_factor, stddev)
    state, clip_norm = strategy.initial_state(SINGLE), 0.5
    for _ in range(50):
        norms = generator.lognormal(size=generator.poisson(expected_units)).astype(np.float32)
        noise = generator.normal(0, stddev)
        total = summed_statistics(strategy, state, norms[:, None]) + noise
        state = updated(strategy, state, total, expected_units)
        clip_norm = oracles.mean_norm_update(
            clip_norm, norms, factor, bound_factor, expected_units, noise
        )
        np.testing.assert_allclose(state["clip_norm"], clip_norm, rtol=1e-5)
        clip_norm = float(state["clip_norm"][0])
    assert 0.2 < clip_norm < 5.0


def test_fifty_steps_of_an_expected_error_follow_the_formula():
    """e = R (sum (min((norm - C)+, R) / R - 1/2) + noise) / m + R / 2; R = 2 (1 + a) C."""
    generator = np.random.default_rng(0)
    eta, expected_units, stddev = 0.3, 40, 2.0
    groups = ParameterGroups(("one", "other"), (0, 1, 0), ((2, 3), (5,), (4,)))
    strategy = ERROR(0.5, eta, stddev, groups=lambda variable: variable.name)
    state = strategy.initial_state(groups)
    clip_norm, sizes, a = np.full(2, 0.5 / math.sqrt(2)), np.array([10, 5]), np.zeros(2)
    for _ in range(50):
        norms = generator.lognormal(size=(generator.poisson(expected_units), 2))
        noise = generator.normal(0, stddev, 2)
        stddevs = generator.uniform(0.1, 0.5, 2) * clip_norm
        bound = 2 * (1 + a) * clip_norm
        shares = np.minimum(np.maximum(norms.astype(np.float32) - clip_norm, 0) / bound, 1)
        e = bound * ((np.sum(shares - 0.5, axis=0) + noise) / expected_units + 0.5)
        total = summed_statistics(strategy, state, norms) + noise
        of_variables = [stddevs[0], stddevs[1], stddevs[0]]
        state = updated(strategy, state, total, expected_units, (), of_variables)
        a = sizes * stddevs**2 / clip_norm**2
        move = (e / clip_norm - a) / (a + bound * stddev / expected_units / clip_norm)
        clip_norm = clip_norm * np.exp(eta * np.clip(move, -3, 3))
        np.testing.assert_allclose(state["clip_norm"], clip_norm, rtol=1e-4)
        np.testing.assert_allclose(state["relative_noise"], a, rtol=1e-4)
        clip_norm = state["clip_norm"].astype(np.float64)
        a = state["relative_noise"].astype(np.float64)


@pytest.mark.parametrize("noise_multiplier", [0.2, 0.5, 1.5])
@pytest.mark.parametrize("initial", [0.01, 100.0])
def test_the_expected_error_is_least_where_the_norm_settles(initial, noise_multiplier):
    """Beside the least error on a grid of norms, from starts far below and far above it."""
    generator = np.random.default_rng(3)
    expected_units, size = 200, 20_000
    strategy = ERROR(initial, excess_noise_stddev=2.0)
    state, found = strategy.initial_state(ParameterGroups.single([(size,)])), []
    relative = (noise_multiplier / expected_units) ** 2 * size
    for number in range(600):
        clip_norm = float(state["clip_norm"][0])
        norms = generator.lognormal(size=(expected_units, 1))
        total = summed_statistics(strategy, state, norms) + generator.normal(0, 2.0)
        stddev = noise_multiplier * clip_norm / expected_units
        state = updated(strategy, state, total, expected_units, (), [stddev])
        if number >= 300:
            found.append(clip_norm)
    norms, grid = np.random.default_rng(4).lognormal(size=5_000), np.geomspace(0.01, 30, 300)

    def error(clip_norm):
        return relative * clip_norm**2 + np.mean(np.maximum(norms - clip_norm, 0) ** 2)

    least = min(map(error, grid))
    assert error(np.exp(np.mean(np.log(found)))) < 1.05 * least
    assert min(error(grid[0]), error(grid[-1])) > 1.2 * least


@pytest.mark.parametrize(
    ("strategy", "arguments", "error", "message"),
    [
        (QUANTILE, {"target_quantile": 1.5}, ValueError, "must lie between 0 and 1"),
        (QUANTILE, {"target_quantile": float("nan")}, ValueError, "must be finite"),
        (QUANTILE, {"learning_rate": 0.0}, ValueError, "must be positive"),
        (QUANTILE, {"update": "cubic"}, ValueError, "must be one of 'geometric', 'linear'"),
        (QUANTILE, {"min_clip_norm": 0.2}, ValueError, "must lie between `min_clip_norm` and"),
        (MEAN_NORM, {"factor": 0.0}, ValueError, "must be positive"),
        (MEAN_NORM, {"norm_bound_factor": 1.0}, ValueError, "must be above 1"),
        (ERROR, {"learning_rate": -1.0}, ValueError, "must be positive"),
        (ERROR, {"excess_noise_stddev": 0.0}, ValueError, "must be positive"),
        (ka.clipping.SlaClip, {"num_slots": 1}, ValueError, "num_slots"),
        (ADACLIP, {"beta1": 1.0}, ValueError, "`beta1` must be at least 0 and below 1"),
        (ADACLIP, {"beta2": None}, TypeError, "`beta2` must be a number"),
        (ADACLIP, {"min_variance": 1e-30}, ValueError, "`min_variance` must lie between"),
        (ADACLIP, {"max_variance": 1e-13}, ValueError, "`min_variance` must not be above"),
    ],
)
def test_arguments_out_of_range(strategy, arguments, error, message):
    with pytest.raises(error, match=message):
        strategy(**arguments)


@pytest.mark.parametrize("target", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (0.0, 0.1), (math.log(10), 1.0)])
def test_quantiles_are_tracked_as_in_figure_2_of_andrew(mean, deviation, target):
    """100 log-normal norms a round, C0 = 0.1, eta = 0.2, count noise 5: rounds 200 to 400."""
    strategy = ka.clipping.QuantileClipping(target, 0.1, 0.2, count_noise_stddev=5.0)
    generator = np.random.default_rng(7)
    state, quantiles = strategy.initial_state(SINGLE), []
    for _ in range(400):
        norms = generator.lognormal(mean, deviation, 100)
        state = step(strategy, state, norms, generator.normal(0, 5.0), 100)
        quantiles.append(stats.norm.cdf((math.log(state["clip_norm"][0]) - mean) / deviation))
    assert np.mean(np.abs(np.array(quantiles[200:]) - target)) < 0.06


# AdaClip

SETTINGS = {"beta1": 0.8, "beta2": 0.9, "min_variance": 1e-5, "max_variance": 0.5}
SHAPES = [(3, 2), (4,)]
GROUPS = ParameterGroups.single(SHAPES)


def flat(parts):
    return np.concatenate([np.ravel(ops.convert_to_numpy(part)) for part in parts])


def split(vector):
    return [part.reshape(shape) for part, shape in zip(np.split(vector, [6]), SHAPES, strict=True)]


def test_fifty_steps_of_adaclip_follow_the_formula():
    generator = np.random.default_rng(0)
    strategy, oracle = ADACLIP(**SETTINGS), oracles.AdaClip(10, **SETTINGS)
    state, noise_multiplier, expected_units = strategy.initial_state(GROUPS), 0.7, 8
    for _ in range(50):
        pairs = strategy.coordinates(tensors(state), GROUPS)
        scales = flat(scale for _, scale in pairs)
        np.testing.assert_allclose(scales, oracle.scale, rtol=1e-4)
        gradients = generator.normal(0.3, 1.0, (generator.poisson(expected_units), 10))
        noise = generator.normal(0, noise_multiplier, 10)
        mean = (oracle.contributions(gradients).sum(axis=0) + noise) / expected_units
        expected = oracle.step(gradients, noise, noise_multiplier, expected_units)
        means = [ops.convert_to_tensor(part.astype("float32")) for part in split(mean)]
        found = strategy.gradients(tensors(state), means)
        np.testing.assert_allclose(flat(found), expected, rtol=1e-3, atol=1e-5)
        stddevs = [noise_multiplier / expected_units] * 2
        state = updated(strategy, state, np.zeros(0), expected_units, split(mean), stddevs)
        for name, vector in (("centre", oracle.centre), ("variance", oracle.variance)):
            found = flat([state[f"{name}_{number}"] for number in range(2)])
            np.testing.assert_allclose(found, vector, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mode", COMPILED)
@pytest.mark.parametrize("microbatch_size", [None, 3])
def test_training_with_adaclip_follows_the_formula(mode, microbatch_size, monkeypatch):
    """Without noise: the gradient of an example is minus its inputs, whatever the weights are."""
    generator = np.random.default_rng(1)
    inputs = generator.normal(0.5, 1.0, (6, 4)).astype("float32")
    inputs[4] = np.nan
    draws = [[0, 1, 4], [2, 3, 5, 0], [], [1]]
    fix_draws(monkeypatch, draws)
    optimizer = dp_sgd(ADACLIP(**SETTINGS), 0.0, microbatch_size=microbatch_size)
    model = line_model(optimizer, num_inputs=4, **COMPILED[mode])
    recorder = recorded_fit(model, *line_data(inputs), 3, 8)
    found = recorder.updates

    def expected(begin):
        oracle = oracles.AdaClip(4, **SETTINGS)
        drawn = [-inputs[draws[(begin + step) % 4]].astype(float) for step in range(8)]
        return np.array([-oracle.step(each, 0.0, 0.0, 3) for each in drawn])

    # Keras may look at some batches before it begins.
    errors = [np.abs(found - expected(begin)).max() for begin in range(4)]
    assert min(errors) < 1e-5
