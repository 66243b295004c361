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


UNITS, STDDEV = 40, 2.0
TWO_GROUPS = ParameterGroups(("one", "other"), (0, 1, 0), ((2, 3), (5,), (4,)))
BOUNDS = {"min_clip_norm": 1.26, "max_clip_norm": 1.35}


def quantile(update):
    """b = (sum (bit - 1/2) + noise) / m + 1/2; C <- C exp(-eta (b - gamma)) or C - eta (...)."""

    def formula(norm, norms, noise, state, stddevs):
        fraction = (np.sum((norms <= norm) - 0.5, axis=0) + noise) / UNITS + 0.5
        excess = 0.15 * (fraction - 0.6)
        moved = norm * np.exp(-excess) if update == "geometric" else norm - excess
        return {"clip_norm": np.clip(moved, 1.26, 1.35), "unclipped_fraction": fraction}

    return QUANTILE(0.6, 1.3, 0.15, STDDEV, update, **BOUNDS), formula


def mean_norm(norm, norms, noise, state, stddevs):
    """mean = (sum (min(norm, R) - R/2) + noise R) / m + R/2; C <- factor mean; R = k C."""
    moved = oracles.mean_norm_update(norm[0], norms[:, 0], 0.9, 3.0, UNITS, noise[0])
    return {"clip_norm": [moved]}


def expected_error(norm, norms, noise, state, stddevs):
    """e = R (sum (min((norm - C)+, R) / R - 1/2) + noise) / m + R / 2; R = 2 (1 + a) C."""
    bound = 2 * (1 + state["relative_noise"]) * norm
    shares = np.minimum(np.maximum(norms - norm, 0) / bound, 1)
    e = bound * ((np.sum(shares - 0.5, axis=0) + noise) / UNITS + 0.5)
    a = np.array([10, 5]) * stddevs**2 / norm**2
    move = (e / norm - a) / (a + bound * STDDEV / UNITS / norm)
    return {"clip_norm": norm * np.exp(0.3 * np.clip(move, -3, 3)), "relative_noise": a}


def sla_clip(norm, norms, noise, state, stddevs):
    """C <- C exp(eta ((1 + r) / 2 - s_1)), of the noised means of the first and last slot."""
    filled = sum(oracles.slots(each, norm[0], 4) for each in norms[:, 0])[[0, -1]]
    first, last = 2.0 * (filled / norm + noise) / UNITS
    target = (1.0 + np.clip(last / norm, -1.0, 1.0)) / 2.0
    return {"clip_norm": norm * np.exp(0.4 * (target - first))}


FORMULAS = {
    "geometric quantile": (*quantile("geometric"), SINGLE),
    "linear quantile": (*quantile("linear"), SINGLE),
    "mean": (MEAN_NORM(0.5, 0.9, 3.0, STDDEV), mean_norm, SINGLE),
    "expected error": (ERROR(0.5, 0.3, STDDEV, groups=str), expected_error, TWO_GROUPS),
    "slots": (ka.clipping.SlaClip(0.3, 4, 0.4), sla_clip, SINGLE),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_fifty_steps_follow_the_formula(name):
    strategy, formula, groups = FORMULAS[name]
    generator, num_groups = np.random.default_rng(0), groups.num_groups
    state = strategy.initial_state(groups)
    for _ in range(50):
        before = {key: value.astype(np.float64) for key, value in state.items()}
        norms = generator.lognormal(size=(generator.poisson(UNITS), num_groups))
        norms, norm = norms.astype(np.float32), before["clip_norm"]
        noise = generator.normal(0, STDDEV, strategy.num_statistics(num_groups))
        stddevs = generator.uniform(0.1, 0.5, num_groups) * norm
        total = summed_statistics(strategy, state, norms) + noise
        of_variables = [stddevs[group] for group in groups.assignment]
        state = updated(strategy, state, total, UNITS, (), of_variables)
        for key, value in formula(norm, norms, noise, before, stddevs).items():
            np.testing.assert_allclose(state[key], value, rtol=1e-4, atol=1e-6)


def test_a_norm_equal_to_the_clip_norm_is_unclipped_and_a_non_finite_one_is_not():
    strategy = ka.clipping.QuantileClipping(initial_clip_norm=0.1)
    norms = ops.convert_to_tensor(np.array([0.1, 0.0, 0.0, 0.11], np.float32))
    finite = ops.convert_to_tensor(np.array([True, True, False, True]))
    bits = strategy.statistics(tensors(strategy.initial_state(SINGLE)), norms[:, None], finite)
    np.testing.assert_array_equal(ops.convert_to_numpy(bits), [[0.5], [0.5], [-0.5], [-0.5]])


def test_the_default_noise_is_a_twentieth_of_the_units():
    found = ka.clipping.QuantileClipping().noise_split(1.0, 256)
    np.testing.assert_allclose(found, ((1 - 1 / 25.6**2) ** -0.5, 12.8), rtol=1e-12)


def test_bits_that_cost_much_are_warned_about():
    strategy = ka.clipping.QuantileClipping(count_noise_stddev=0.51)
    with pytest.warns(UserWarning, match="take much of the budget: the sum is noised with 5.07"):
        strategy.noise_split(1.0, 100)


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


@pytest.mark.parametrize("target", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (0.0, 0.1), (math.log(10), 1.0)])
def test_quantiles_are_tracked_as_in_figure_2_of_andrew(mean, deviation, target):
    """100 log-normal norms a round, C0 = 0.1, eta = 0.2, count noise 5: rounds 200 to 400."""
    strategy = ka.clipping.QuantileClipping(target, 0.1, 0.2, count_noise_stddev=5.0)
    generator = np.random.default_rng(7)
    state, quantiles = strategy.initial_state(SINGLE), []
    for _ in range(400):
        norms = generator.lognormal(mean, deviation, (100, 1))
        total = summed_statistics(strategy, state, norms) + generator.normal(0, 5.0)
        state = updated(strategy, state, total, 100)
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
