"""What a budget allows: noise never past it and never far below, and the last step within it."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_adaclip.accounting import (
    Ledger,
    Sampling,
    calibrate_noise_multiplier,
    compute_epsilon,
    least_noise_multiplier,
    ledger_epsilon,
    max_steps_within,
)
from tests.accounting.oracles import row

DELTA = 1e-5


def assert_meets_target(target, tolerance=0.005, **plan):
    noise_multiplier = calibrate_noise_multiplier(target_epsilon=target, **plan)
    assert noise_multiplier == float(np.float32(noise_multiplier))
    reached = compute_epsilon(noise_multiplier, **plan)
    assert (1 - tolerance) * target <= reached <= target
    return noise_multiplier


PLANS = {
    "target": st.floats(0.05, 30.0),
    "examples": st.integers(500, 200_000),
    "share": st.floats(0.001, 1.0),
    "steps": st.integers(1, 20_000),
    "sampling": st.sampled_from(["poisson", "shuffle", "stream"]),
    "log_delta": st.floats(-9, -5.5),
}


def assert_round_trip(target, examples, share, log_delta, **plan):
    plan |= {"num_examples": examples, "batch_size": math.ceil(share * examples)}
    assert_meets_target(target, delta=10**log_delta, **plan)


@given(**PLANS)
@settings(max_examples=40, derandomize=True, deadline=None)
def test_round_trip_by_rdp(**plan):
    assert_round_trip(**plan, accountant="rdp")


@given(**PLANS)
@settings(max_examples=6, derandomize=True, deadline=None)
def test_round_trip_by_pld(**plan):
    assert_round_trip(**plan, accountant="pld")


def test_round_trip_for_fixed_size_batches():
    """The bound of dp_accounting is not smooth here: it jumps by up to some percent."""
    plan = {"num_examples": 10_000, "batch_size": 100, "epochs": 3, "delta": DELTA}
    assert_meets_target(3.0, tolerance=0.05, sampling="fixed", **plan)


@pytest.mark.parametrize(
    ("target", "message"), [(0.002, r"bound jumps there.*'pld'"), (1e9, "protects nobody")]
)
def test_targets_that_rdp_jumps_over_and_that_protect_nobody(target, message):
    """RDP's orders end at 1024, so it falls from some epsilon to 0 at once."""
    with pytest.raises(ValueError, match=message):
        calibrate_noise_multiplier(target, DELTA, 10_000, 100, epochs=1, accountant="rdp")


def assert_is_the_last_step(past, running, target, accountant):
    allowed = max_steps_within(past, running, DELTA, target, accountant)

    def after(steps):
        return ledger_epsilon([*past, running.advance(steps)], DELTA, accountant)

    assert after(allowed + 1) > target
    if allowed > 0 or after(0) <= target:
        assert after(allowed) <= target
    return allowed


PAST = Ledger((row(noise=2.0, steps=300), row(Sampling.SHUFFLE, noise=10.0, steps=100)))


@pytest.mark.parametrize(
    ("past", "running", "target", "accountant"),
    [
        (Ledger(), row(noise=4.0), 0.2, "pld"),
        (PAST, row(batch=1024, noise=1.1), 3.0, "pld"),
        (PAST, row(steps=100), 1.2, "rdp"),
        (PAST, row(Sampling.SHUFFLE, noise=8.0, steps=100), 4.0, "pld"),
        (PAST, row(Sampling.STREAM, noise=30.0), 2.0, "pld"),
        (Ledger(), row(Sampling.FIXED, noise=8.0), 1.0, "pld"),
        # After other sampling a step of a fixed size costs a full release.
        (PAST, row(Sampling.FIXED, noise=8.0), 4.0, "pld"),
    ],
)
def test_the_last_step_within_the_budget(past, running, target, accountant):
    assert assert_is_the_last_step(past, running, target, accountant) > 0


@given(
    sampling=st.sampled_from([Sampling.POISSON, Sampling.SHUFFLE, Sampling.STREAM]),
    noise=st.sampled_from([0.7, 1.0, 3.0, 20.0]),
    steps=st.integers(0, 300),
    target=st.floats(0.02, 20.0),
)
@settings(max_examples=40, derandomize=True, deadline=None)
def test_the_last_step_within_any_budget(sampling, noise, steps, target):
    assert_is_the_last_step([], row(sampling, 32, 2000, noise, steps), target, "rdp")


@pytest.mark.parametrize(
    ("past", "running", "target"),
    [
        ([], row(noise=0.3), 0.1),
        ([], row(noise=0.0), 100.0),
        (PAST, row(), 0.1),
        ([], row(Sampling.SHUFFLE, steps=1), 1.0),
    ],
)
def test_no_step_if_the_budget_is_spent_or_too_small_for_one(past, running, target):
    assert max_steps_within(past, running, DELTA, target) == 0


def test_an_open_release_is_free_to_its_end():
    midway = row(Sampling.SHUFFLE, batch=4, examples=40, noise=1.0, steps=3)
    target = ledger_epsilon([midway], DELTA) * 1.001
    assert max_steps_within([], midway, DELTA, target) == 7
    assert max_steps_within([], midway.begin_segment(), DELTA, target) == 0


def test_a_budget_that_outlasts_the_counter():
    int32_max = 2**31 - 1
    assert max_steps_within([], row(noise=1e6, steps=5), DELTA, 5.0, "rdp") == int32_max - 5
    unlimited = row(Sampling.PASS, 256, 0, 10.0, steps=9)
    assert max_steps_within([], unlimited, DELTA, 1.0) == int32_max - 9


@pytest.mark.parametrize(("noise", "target"), [(0.7269, 6.0), (0.5, 12.0)])
def test_noise_on_top_of_what_was_spent(noise, target):
    # Epsilon is far from a power of the noise here, and steps of the search fall on its ends.
    def epsilon(*noises):
        rows = [row(batch=30, examples=300, noise=each, steps=20) for each in (noise, *noises)]
        return ledger_epsilon(rows, 300**-1.1)

    assert 0.998 * target <= epsilon(least_noise_multiplier(epsilon, target)) <= target
