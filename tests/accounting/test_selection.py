"""The best of a random number of runs: reference costs, the theorems, and an exact selection."""

import math

import numpy as np
import pytest
from dp_accounting import (
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    dp_event,
)
from dp_accounting.rdp import rdp_privacy_accountant
from scipy import integrate, stats

from keras_adaclip.accounting import (
    LedgerRow,
    RandomSelection,
    Sampling,
    compute_epsilon,
    ledger_epsilon,
    selection_epsilon,
)

DELTA = 1e-5
LAWS = ("geometric", "logarithmic", "poisson")


def stream(noise, steps=1):
    return LedgerRow.open(Sampling.STREAM, 10, 0, noise_multiplier=noise).advance(steps)


@pytest.mark.parametrize(
    ("distribution", "mean_trials", "expected"),
    [
        ("geometric", 10, "3.17"),
        ("geometric", 50, "3.81"),
        ("logarithmic", 10, "2.69"),
        ("logarithmic", 50, "3.11"),
        ("poisson", 10, "3.32"),
        ("poisson", 50, "8.63"),
    ],
)
def test_reference_costs(distribution, mean_trials, expected):
    found = selection_epsilon(
        1.0,
        60_000,
        256,
        steps=3515,
        delta=DELTA,
        mean_trials=mean_trials,
        distribution=distribution,
    )
    assert f"{found:.2f}" == expected


def derivative_of_generating_function(distribution, mean, value):
    """G'(v) of the law's G(v) = E[v^K]: the best of K scores has the density f(x) G'(F(x))."""
    if distribution == "poisson":
        return mean * np.exp(mean * (value - 1.0))
    if distribution == "geometric":
        return (1.0 / mean) / (1.0 - (1.0 - 1.0 / mean) * value) ** 2
    gamma = next(
        g for g in np.geomspace(1e-6, 0.999, 200_000) if (1 / g - 1) / math.log(1 / g) <= mean
    )
    return -(1.0 - gamma) / math.log(gamma) / (1.0 - (1.0 - gamma) * value)


@pytest.mark.parametrize("distribution", LAWS)
@pytest.mark.parametrize("best_of", ["larger", "smaller"])
def test_a_selection_that_can_be_computed_stays_within_its_epsilon(distribution, best_of):
    """Runs that release a Gaussian, of which the largest (or the smallest) is kept."""
    noise, mean_trials, delta = 2.0, 20, 1e-3
    sign = 1.0 if best_of == "larger" else -1.0

    def exceeding(x, epsilon):
        densities = []
        for shift in (0.0, sign):
            law = stats.norm(shift, noise)
            weight = derivative_of_generating_function(distribution, mean_trials, law.cdf(x))
            densities.append(law.pdf(x) * weight)
        return np.maximum(densities[1] - np.exp(epsilon) * densities[0], 0.0)

    def exact_delta(epsilon):
        x = np.linspace(-20.0, 25.0, 45_001)
        return integrate.trapezoid(exceeding(x, epsilon), x)

    claimed = RandomSelection(mean_trials, distribution).epsilon([stream(noise)], delta)
    alone = ledger_epsilon([stream(noise)], delta)
    assert exact_delta(claimed) <= delta
    # One run's epsilon would not do: the selection does cost something.
    if best_of == "larger":
        assert exact_delta(alone) > delta


@pytest.mark.parametrize(("distribution", "shape"), [("geometric", 1), ("poisson", math.inf)])
def test_the_best_of_runs_of_no_epsilon_has_one(distribution, shape):
    row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=5000.0).advance(100)
    run = SelfComposedDpEvent(PoissonSampledDpEvent(256 / 60_000, GaussianDpEvent(5000.0)), 100)
    reference = rdp_privacy_accountant.RdpAccountant()
    reference.compose(dp_event.RepeatAndSelectDpEvent(run, 10, shape))
    expected = reference.get_epsilon(DELTA)
    assert ledger_epsilon((row,), DELTA, "rdp") == 0.0
    assert expected > 0.005
    assert RandomSelection(10, distribution).epsilon((row,), DELTA) == pytest.approx(
        expected, rel=1e-3
    )


def test_a_plan_costs_what_its_ledger_will_cost():
    plan = {"steps": 60, "delta": DELTA}
    row = LedgerRow.open(Sampling.POISSON, 256, 6_000, noise_multiplier=2.0).advance(60)
    planned = selection_epsilon(2.0, 6_000, 256, mean_trials=5, distribution="logarithmic", **plan)
    assert planned == RandomSelection(5, "logarithmic").epsilon([row], DELTA)
    assert planned > compute_epsilon(2.0, 6_000, 256, accountant="rdp", **plan)


def test_batches_of_a_fixed_size_are_known():
    plan = {"steps": 20, "delta": DELTA, "sampling": "fixed"}
    alone = compute_epsilon(4.0, 6_000, 60, **plan)
    assert alone < selection_epsilon(4.0, 6_000, 60, mean_trials=4, **plan) < 4 * alone


@pytest.mark.parametrize("distribution", LAWS)
def test_without_noise_and_without_steps(distribution):
    selection = RandomSelection(3, distribution)
    assert selection.epsilon([stream(0.0)], DELTA) == math.inf
    assert selection.epsilon([], DELTA) == 0.0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1,), ValueError, "must be above 1 with the geometric law"),
        ((1, "logarithmic"), ValueError, "must be above 1"),
        ((0.5, "poisson"), ValueError, "must be at least 1"),
        ((math.nan,), ValueError, "mean_trials"),
        ((math.inf,), ValueError, "mean_trials"),
        (("10",), TypeError, "mean_trials"),
        ((10, "uniform"), ValueError, "'geometric', 'logarithmic', 'poisson'"),
        ((10, ["geometric"]), ValueError, "distribution"),
    ],
)
def test_wrong_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        RandomSelection(*arguments)


def test_one_trial_on_average_is_possible_by_poissons_law_alone():
    assert RandomSelection(1, "poisson").epsilon([stream(8.0)], DELTA) > 0.0
