"""Calibrated noise: never past the budget, never far below it, and just what float32 runs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_adaclip.accounting import calibrate_noise_multiplier, compute_epsilon

DELTA = 1e-5


def assert_meets_target(target, tolerance=0.005, **plan):
    noise_multiplier = calibrate_noise_multiplier(target_epsilon=target, **plan)
    assert noise_multiplier == float(np.float32(noise_multiplier))
    reached = compute_epsilon(noise_multiplier, **plan)
    assert (1 - tolerance) * target <= reached <= target
    return noise_multiplier


@given(
    target=st.floats(0.05, 50.0),
    examples=st.integers(500, 200_000),
    share=st.floats(0.001, 1.0),
    steps=st.integers(1, 20_000),
    sampling=st.sampled_from(["poisson", "shuffle", "stream"]),
    log_delta=st.floats(-9, -5.5),
)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_round_trip_by_rdp(target, examples, share, steps, sampling, log_delta):
    assert_meets_target(
        target,
        num_examples=examples,
        batch_size=math.ceil(share * examples),
        steps=steps,
        delta=10**log_delta,
        sampling=sampling,
        accountant="rdp",
    )


@given(
    target=st.floats(0.02, 30.0),
    examples=st.integers(500, 200_000),
    share=st.floats(0.001, 1.0),
    steps=st.integers(1, 20_000),
    sampling=st.sampled_from(["poisson", "shuffle", "stream"]),
)
@settings(max_examples=8, derandomize=True, deadline=None)
def test_round_trip_by_pld(target, examples, share, steps, sampling):
    assert_meets_target(
        target,
        num_examples=examples,
        batch_size=math.ceil(share * examples),
        steps=steps,
        delta=1e-6,
        sampling=sampling,
        accountant="pld",
    )


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_round_trip_for_fixed_size_batches(accountant):
    """The bound of dp_accounting is not smooth here: it jumps by up to some percent."""
    assert_meets_target(
        3.0,
        tolerance=0.05,
        num_examples=10_000,
        batch_size=100,
        epochs=3,
        delta=DELTA,
        sampling="fixed",
        accountant=accountant,
    )


@pytest.mark.parametrize(("target", "expected"), [(0.5, 3.695), (3.0, 1.0133)])
def test_known_values(target, expected):
    """60,000 examples, batches of 1,024, 15 epochs; from dp_accounting 0.6.0, 0.4.3 agrees."""
    noise_multiplier = calibrate_noise_multiplier(target, DELTA, 60_000, 1024, epochs=15)
    assert noise_multiplier == pytest.approx(expected, rel=2e-3)


def test_a_target_that_the_accountant_jumps_over():
    """RDP's orders end at 1024: below some epsilon it goes straight to 0."""
    with pytest.raises(ValueError, match=r"cannot tell epsilons near the target apart.*'pld'"):
        calibrate_noise_multiplier(0.002, DELTA, 10_000, 100, epochs=1, accountant="rdp")


def test_a_target_that_protects_nobody():
    with pytest.raises(ValueError, match="`target_epsilon` is so large"):
        calibrate_noise_multiplier(1e9, DELTA, 10_000, 100, steps=1, accountant="rdp")


def test_a_target_that_no_noise_reaches(monkeypatch):
    from keras_adaclip.accounting import calibrate

    monkeypatch.setattr(calibrate, "composed_epsilon", lambda *_: 5.0)
    with pytest.raises(ValueError, match=r"No noise multiplier up to .* Use a larger `delta`"):
        calibrate_noise_multiplier(1.0, DELTA, 10_000, 100, steps=1)


def test_no_steps_need_no_noise():
    with pytest.raises(ValueError, match="Argument `steps` must lie between 1"):
        calibrate_noise_multiplier(1.0, DELTA, 10_000, 100, steps=0)
