"""MeanNormClipping against a rewrite in NumPy."""

import numpy as np
import pytest

import keras_adaclip as ka
from tests import oracles
from tests.clipping.support import SINGLE, summed_statistics, updated


def test_fifty_steps_follow_the_formula():
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


def test_the_norm_finds_the_mean_from_far_below_and_above():
    for start in (1e-4, 1e4):
        strategy = ka.clipping.MeanNormClipping(start)
        state = strategy.initial_state(SINGLE)
        for _ in range(30):
            total = summed_statistics(strategy, state, np.full((100, 1), 2.5))
            state = updated(strategy, state, total, 100)
        np.testing.assert_allclose(state["clip_norm"], 2.5, rtol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"factor": 0.0}, ValueError, "`factor` must be positive"),
        ({"factor": "1"}, TypeError, "`factor` must be a number"),
        ({"norm_bound_factor": 1.0}, ValueError, "`norm_bound_factor` must be above 1"),
        ({"norm_bound_factor": float("inf")}, ValueError, "`norm_bound_factor` must be positive"),
        ({"mean_noise_stddev": 0.0}, ValueError, "`mean_noise_stddev` must be positive"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        ka.clipping.MeanNormClipping(**arguments)


def test_a_mean_that_cannot_be_paid_for_is_refused_with_the_remedy():
    strategy = ka.clipping.MeanNormClipping(mean_noise_stddev=0.5)
    with pytest.raises(
        ValueError, match=r"Raise `mean_noise_stddev` above 0\.5; where it is None, raise `batch"
    ):
        strategy.noise_split(1.0, 100)
