"""Arguments that are refused, and what is said about them."""

import numpy as np
import pytest

from keras_adaclip.accounting import (
    LedgerRow,
    Sampling,
    calibrate_noise_multiplier,
    compute_epsilon,
    default_delta,
    max_steps_within,
)

PLAN = {
    "noise_multiplier": 1.0,
    "num_examples": 1000,
    "batch_size": 10,
    "steps": 10,
    "delta": 1e-5,
    "accountant": "rdp",
}


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"noise_multiplier": -0.1}, ValueError, "`noise_multiplier` must not be negative"),
        ({"noise_multiplier": float("nan")}, ValueError, "`noise_multiplier` must be finite"),
        ({"num_examples": 1000.0}, TypeError, "`num_examples` must be an integer"),
        ({"batch_size": 1001}, ValueError, "`batch_size` must lie between 1 and 1000"),
        ({"steps": -1}, ValueError, "`steps` must be at least 0"),
        ({"steps": None}, ValueError, "Exactly one of the arguments `epochs` and `steps`"),
        ({"epochs": 1}, ValueError, "Exactly one of the arguments `epochs` and `steps`"),
        ({"delta": 1}, ValueError, "`delta` must lie strictly between 0 and 1"),
        ({"sampling": "random"}, ValueError, "one of 'poisson', 'shuffle', 'stream', 'fixed'"),
        ({"accountant": "prv"}, ValueError, "`accountant` must be one of 'pld', 'rdp'"),
    ],
)
def test_compute_epsilon_refuses(changes, error, message):
    with pytest.raises(error, match=message):
        compute_epsilon(**{**PLAN, **changes})


@pytest.mark.parametrize(("target", "error"), [(0.0, ValueError), (False, TypeError)])
def test_targets_are_checked(target, error):
    row = LedgerRow.open(Sampling.POISSON, 10, 1000, noise_multiplier=1.0)
    with pytest.raises(error, match="`target_epsilon` must be"):
        calibrate_noise_multiplier(target, 1e-5, 1000, 10, steps=10)
    with pytest.raises(error, match="`target_epsilon` must be"):
        max_steps_within([], row, 1e-5, target)
    with pytest.raises(ValueError, match="Argument `steps` must be at least 1"):
        calibrate_noise_multiplier(1.0, 1e-5, 1000, 10, steps=0)


def test_numpy_scalars_are_welcome():
    plan = {
        **PLAN,
        "noise_multiplier": np.float32(1.0),
        "num_examples": np.int64(1000),
        "batch_size": np.int32(10),
        "delta": np.float64(1e-5),
    }
    assert compute_epsilon(**plan) == compute_epsilon(**PLAN)


def test_a_large_delta_is_warned_about():
    with pytest.warns(UserWarning, match="below 1 / num_examples = 0.001.*Received: delta=0.001"):
        compute_epsilon(**{**PLAN, "delta": 1e-3})
    with pytest.warns(UserWarning, match="below 1 / num_examples"):
        calibrate_noise_multiplier(1.0, 0.01, 1000, 10, steps=10, accountant="rdp")
    compute_epsilon(**{**PLAN, "delta": 0.9e-3})


def test_default_delta():
    assert default_delta(2) < 1 / 2
    with pytest.raises(ValueError, match="`num_examples` must be at least 2"):
        default_delta(1)
