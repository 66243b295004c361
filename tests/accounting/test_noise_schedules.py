"""Noise schedules: what a plan says is what its ledger says, and calibration keeps the budget."""

import math

import numpy as np
import pytest

from keras_adaclip import accounting
from keras_adaclip.schedules import ExponentialDecay, KerasSchedule, PiecewiseConstant, PowerDecay
from tests.accounting.oracles import gaussian_epsilon, row

DELTA = 1e-5
PLAN = {"num_examples": 1000, "batch_size": 150, "delta": DELTA}
STEPS_PER_EPOCH = 7


def ledger_of(schedule, num_steps, sampling):
    """What would be recorded: one row an epoch, of the noise at its first step."""
    ledger = accounting.Ledger()
    for step in range(num_steps):
        if step % STEPS_PER_EPOCH == 0:
            noise = schedule.value_at(step, STEPS_PER_EPOCH)
            kind = accounting.Sampling[sampling.upper()]
            ledger = ledger.append(row(kind, 150, 1000, noise)).begin_segment()
        ledger = ledger.advance(1)
    return ledger


@pytest.mark.parametrize(
    ("sampling", "accountant"), [("poisson", "pld"), ("shuffle", "rdp"), ("stream", "pld")]
)
@pytest.mark.parametrize("num_steps", [6, 7, 30])
@pytest.mark.parametrize(
    "schedule", [ExponentialDecay(2.3, 1.1, 13), PiecewiseConstant([1.1, 2.0, 1.1, 3.0])]
)
def test_a_plan_is_what_its_ledger_will_say(sampling, accountant, num_steps, schedule):
    plan = {"steps": num_steps, "sampling": sampling, "accountant": accountant, **PLAN}
    recorded = ledger_of(schedule, num_steps, sampling)
    assert accounting.compute_epsilon(schedule, **plan) == accounting.ledger_epsilon(
        recorded, DELTA, accountant
    )


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_full_releases_of_different_noise_are_one_gaussian(accountant):
    noises = [2.0, 5.0, 3.0]
    plan = {"epochs": 3, "sampling": "shuffle", "accountant": accountant, **PLAN}
    epsilon = accounting.compute_epsilon(PiecewiseConstant(noises), **plan)
    exact = gaussian_epsilon(sum(noise**-2 for noise in noises) ** -0.5, DELTA)
    assert exact * (1 - 1e-6) <= epsilon <= exact * (1.0005 if accountant == "pld" else 1.2)


@pytest.mark.parametrize(
    ("schedule", "sampling", "accountant", "target"),
    [
        (ExponentialDecay(1.0, 0.5, 40), "poisson", "pld", 0.3),
        (PowerDecay(30.0), "poisson", "rdp", 8.0),
        (PiecewiseConstant([5.0, 1, 3]), "shuffle", "pld", 8.0),
        (PowerDecay(30.0), "stream", "rdp", 0.3),
    ],
)
def test_a_calibrated_schedule_meets_its_target(schedule, sampling, accountant, target):
    arguments = {"steps": 37, "sampling": sampling, "accountant": accountant, **PLAN}
    scaled = accounting.calibrate_noise_multiplier(target, noise_schedule=schedule, **arguments)
    assert type(scaled) is type(schedule)
    ratios = [scaled.value_at(step, 7) / schedule.value_at(step, 7) for step in range(40)]
    np.testing.assert_allclose(ratios, ratios[0], rtol=1e-12)
    assert 0.995 * target <= accounting.compute_epsilon(scaled, **arguments) <= target
    recorded = accounting.ledger_epsilon(ledger_of(scaled, 37, sampling), DELTA, accountant)
    assert 0.995 * target <= recorded <= target


class Odd:
    """Noise that cannot be scaled, with another value after the first step."""

    def __init__(self, value):
        self.value = value

    def value_at(self, step, steps_per_epoch=None):
        return 1.0 if step == 0 else self.value

    def scaled(self, factor):
        return self


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.0, "`noise_schedule` must be positive at every epoch"),
        (-1.0, "Argument `noise_multiplier` must not be negative"),
        (float("nan"), "Argument `noise_multiplier` must be finite"),
        (1.0, "No noise multiplier reaches the target epsilon"),
    ],
)
def test_schedules_that_cannot_be_calibrated(value, message):
    plan = {**PLAN, "epochs": 2, "accountant": "rdp"}
    with pytest.raises(ValueError, match=message):
        accounting.calibrate_noise_multiplier(0.1, noise_schedule=Odd(value), **plan)


def test_a_schedule_of_keras_is_wrapped():
    import keras

    cosine = keras.optimizers.schedules.CosineDecay(2.0, 20, alpha=0.5)
    with pytest.raises(TypeError, match=r"`noise_schedule` .* `keras_adaclip.schedules.get"):
        accounting.calibrate_noise_multiplier(1.0, epochs=2, noise_schedule=cosine, **PLAN)
    epsilon = accounting.compute_epsilon(KerasSchedule(cosine), epochs=2, accountant="rdp", **PLAN)
    assert 0 < epsilon < math.inf
