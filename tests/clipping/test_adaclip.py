"""AdaClip against a rewrite in NumPy: its functions, and a whole training run."""

import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from keras_adaclip.clipping import ParameterGroups
from tests import oracles
from tests.clipping.support import tensors, updated
from tests.soundness.setups import COMPILED, dp_sgd, fix_draws, line_data, line_model, recorded_fit

SETTINGS = {"beta1": 0.8, "beta2": 0.9, "min_variance": 1e-5, "max_variance": 0.5}
SHAPES = [(3, 2), (4,)]
GROUPS = ParameterGroups.single(SHAPES)


def flat(parts):
    return np.concatenate([np.ravel(part) for part in parts])


def split(vector):
    return [part.reshape(shape) for part, shape in zip(np.split(vector, [6]), SHAPES, strict=True)]


def test_fifty_steps_follow_the_formula():
    generator = np.random.default_rng(0)
    strategy, oracle = ka.clipping.AdaClip(**SETTINGS), oracles.AdaClip(10, **SETTINGS)
    state, noise_multiplier, expected_units = strategy.initial_state(GROUPS), 0.7, 8
    for _ in range(50):
        pairs = strategy.coordinates(tensors(state), GROUPS)
        np.testing.assert_allclose(
            flat([ops.convert_to_numpy(scale) for _, scale in pairs]), oracle.scale, rtol=1e-4
        )
        gradients = generator.normal(0.3, 1.0, (generator.poisson(expected_units), 10))
        noise = generator.normal(0, noise_multiplier, 10)
        mean = (oracle.contributions(gradients).sum(axis=0) + noise) / expected_units
        expected = oracle.step(gradients, noise, noise_multiplier, expected_units)
        means = [ops.convert_to_tensor(part.astype("float32")) for part in split(mean)]
        found = strategy.gradients(tensors(state), means)
        np.testing.assert_allclose(
            flat([ops.convert_to_numpy(part) for part in found]), expected, rtol=1e-3, atol=1e-5
        )
        stddevs = [noise_multiplier / expected_units] * 2
        state = updated(strategy, state, np.zeros(0), expected_units, split(mean), stddevs)
        for name, vector in (("centre", oracle.centre), ("variance", oracle.variance)):
            found = flat([state[f"{name}_{number}"] for number in range(2)])
            np.testing.assert_allclose(found, vector, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("mode", COMPILED)
@pytest.mark.parametrize("microbatch_size", [None, 3])
def test_training_follows_the_formula(mode, microbatch_size, monkeypatch):
    """Without noise: the gradient of an example is minus its inputs, whatever the weights are."""
    generator = np.random.default_rng(1)
    inputs = generator.normal(0.5, 1.0, (6, 4)).astype("float32")
    inputs[4] = np.nan
    draws = [[0, 1, 4], [2, 3, 5, 0], [], [1]]
    fix_draws(monkeypatch, draws)
    optimizer = dp_sgd(ka.clipping.AdaClip(**SETTINGS), 0.0, microbatch_size=microbatch_size)
    model = line_model(optimizer, num_inputs=4, **COMPILED[mode])
    recorder = recorded_fit(model, *line_data(inputs), 3, 8)
    found = recorder.updates

    def expected(begin):
        oracle = oracles.AdaClip(4, **SETTINGS)
        return np.array(
            [
                -oracle.step(-inputs[draws[(begin + step) % 4]].astype(float), 0.0, 0.0, 3)
                for step in range(8)
            ]
        )

    # Keras may look at some batches before it begins.
    errors = [np.abs(found - expected(begin)).max() for begin in range(4)]
    assert min(errors) < 1e-5


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"beta1": 1.0}, ValueError, "`beta1` must be at least 0 and below 1"),
        ({"beta2": None}, TypeError, "`beta2` must be a number"),
        ({"min_variance": 1e-30}, ValueError, "`min_variance` must lie between"),
        ({"max_variance": 1e-13}, ValueError, "`min_variance` must not be above `max_variance`"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        ka.clipping.AdaClip(**arguments)
