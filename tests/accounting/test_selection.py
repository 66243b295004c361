"""The best of a random number of runs: laws, theorems, an exact selection, and its runs' bounds."""

import math
import random

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import integrate, stats

from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    RandomSelection,
    RunBounds,
    Sampling,
    Unit,
    events,
    ledger_epsilon,
    selection_epsilon,
)
from keras_adaclip.accounting.accountants import composed_divergences

DELTA = 1e-5
LAWS = ("geometric", "logarithmic", "poisson")


def stream(noise, steps=1):
    return LedgerRow.open(Sampling.STREAM, 10, 0, noise_multiplier=noise).advance(steps)


@pytest.mark.parametrize(
    ("distribution", "mean_trials", "expected"),
    [("geometric", 10, "3.17"), ("logarithmic", 50, "3.11"), ("poisson", 10, "3.32")],
)
def test_reference_costs(distribution, mean_trials, expected):
    plan = {"noise_multiplier": 1.0, "num_examples": 60_000, "batch_size": 256, "steps": 3515}
    law = {"mean_trials": mean_trials, "distribution": distribution}
    assert f"{selection_epsilon(**plan, **law, delta=DELTA):.2f}" == expected


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

    x, densities = np.linspace(-20.0, 25.0, 45_001), []
    for shift in (0.0, sign):
        law = stats.norm(shift, noise)
        weight = derivative_of_generating_function(distribution, mean_trials, law.cdf(x))
        densities.append(law.pdf(x) * weight)

    def exact_delta(epsilon):
        exceeding = np.maximum(densities[1] - np.exp(epsilon) * densities[0], 0.0)
        return integrate.trapezoid(exceeding, x)

    claimed = RandomSelection(mean_trials, distribution).epsilon([stream(noise)], delta)
    alone = ledger_epsilon([stream(noise)], delta)
    assert exact_delta(claimed) <= delta
    # One run's epsilon would not do: the selection does cost something.
    if best_of == "larger":
        assert exact_delta(alone) > delta


SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": np.inf}
NUM_DRAWS = 20_000
# Tests with fixed seeds; this share of other seeds would fail by chance.
FALSE_ALARM = 1e-4


def exact_law(distribution, mean):
    """The law by scipy, the logarithmic one by its mean -p / ((1 - p) log(1 - p))."""
    if distribution != "logarithmic":
        return stats.poisson(mean) if distribution == "poisson" else stats.geom(1 / mean)
    shares = np.linspace(1e-6, 1 - 1e-6, 2_000_001)
    means = -shares / ((1 - shares) * np.log1p(-shares))
    return stats.logser(shares[np.argmin(np.abs(means - mean))])


def chi_squared(draws, law):
    """The p-value of the draws under the law, over cells of five expected draws at least."""
    edges = np.unique(law.ppf(np.linspace(0, 1, 60)[1:-1]))
    cells = np.concatenate([[0.0], law.cdf(edges), [1.0]])
    counts = np.bincount(np.searchsorted(edges, draws), minlength=len(edges) + 1)
    expected = len(draws) * np.diff(cells)
    assert expected.min() >= 5
    return stats.chisquare(counts, expected).pvalue


@pytest.mark.parametrize("distribution", LAWS)
@pytest.mark.parametrize("mean", [1.5, 50])
def test_numbers_of_runs_follow_the_law(distribution, mean):
    selection, source = RandomSelection(mean, distribution), random.Random(20240229)
    draws = [selection.draw(source) for _ in range(NUM_DRAWS)]
    assert min(draws) >= (0 if distribution == "poisson" else 1)
    assert chi_squared(draws, exact_law(distribution, mean)) > FALSE_ALARM


def test_numbers_of_runs_come_from_the_operating_system():
    selection = RandomSelection(1000)
    found = []
    for _ in range(2):
        random.seed(1)
        np.random.seed(1)
        found.append(tuple(selection.draw() for _ in range(8)))
    # Eight equal draws have a probability of about (1 / 2000)^8.
    assert found[0] != found[1]


@pytest.mark.parametrize("distribution", LAWS)
@pytest.mark.parametrize(("mean", "noise"), [(2, 1.5), (300, 1.5), (10, 5000.0)])
def test_epsilon_is_that_of_dp_accounting(distribution, mean, noise):
    """Runs that alone have epsilon = 0 at some delta do cost something together."""
    assert RandomSelection(mean, distribution).epsilon([stream(0.0)], DELTA) == math.inf
    assert RandomSelection(mean, distribution).epsilon([], DELTA) == 0.0
    event = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(noise)), 200)
    accountant = RdpAccountant()
    accountant.compose(RepeatAndSelectDpEvent(event, mean, SHAPES[distribution]))
    row = LedgerRow.open(Sampling.POISSON, 10, 1000, noise_multiplier=noise).advance(200)
    found = RandomSelection(mean, distribution).epsilon([row], 1e-5)
    expected = float(accountant.get_epsilon(1e-5))
    assert expected * (1 - 1e-12) <= found <= expected * (1 + 1e-5)


# What each run may spend at most: the largest divergence at every order


def ledger(noise, steps, sampling=Sampling.POISSON, batch_size=10, unit=Unit.EXAMPLE):
    row = LedgerRow.open(sampling, batch_size, 1000, noise, unit=unit)
    return Ledger((row.advance(steps),))


# Neither costs less at every order: much noise on all, or little noise with rare samples.
CROSSING = (
    ledger(6.0, 30, Sampling.STREAM),
    Ledger((LedgerRow.open(Sampling.POISSON, 1, 1000, 0.6).advance(3000),)),
)


def test_the_bound_is_the_largest_of_several_plans_at_every_order():
    bounds = RunBounds(CROSSING)
    assert all(bounds.covers(plan) for plan in CROSSING)
    assert not any(RunBounds((a,)).covers(b) for a, b in (CROSSING, CROSSING[::-1]))
    selection = RandomSelection(10)
    alone = [RunBounds((plan,)).selection_epsilon(selection, DELTA) for plan in CROSSING]
    assert bounds.selection_epsilon(selection, DELTA) >= max(alone)
    assert bounds.epsilon(DELTA) >= max(ledger_epsilon(plan, DELTA, "rdp") for plan in CROSSING)


@pytest.mark.parametrize(
    ("run", "is_covered"),
    [
        (ledger(1.0, 100), True),
        (ledger(1.0, 99), True),
        (ledger(1.01, 100), True),
        (Ledger(), True),
        (ledger(1.0, 101), False),
        (ledger(float(np.nextafter(np.float32(1), np.float32(0))), 100), False),
        (ledger(1.0, 100, batch_size=11), False),
        (ledger(0.0, 1), False),
        # One pass of full releases costs less, but says nothing of a unit that is added.
        (ledger(50.0, 1, Sampling.STREAM), False),
        (ledger(1.0, 1, unit=Unit.CLIENT), False),
    ],
)
def test_more_steps_less_noise_and_another_relation_are_not_covered(run, is_covered):
    assert RunBounds((ledger(1.0, 100),)).covers(run) == is_covered


def test_orders_at_which_a_series_did_not_converge_refuse_nothing():
    wide = Ledger((LedgerRow.open(Sampling.POISSON, 8, 32, 0.3).advance(1000),))
    run = Ledger((LedgerRow.open(Sampling.POISSON, 16, 32, 0.93214).advance(4),))
    divergences = composed_divergences(events.counted_events(run))
    # The trap is there: infinite at some order, finite at a later one.
    assert np.isinf(divergences[np.argmax(np.isinf(divergences)) :]).any()
    assert np.isfinite(divergences[np.argmax(np.isinf(divergences)) :]).any()
    assert RunBounds((wide,)).covers(run)
    assert not RunBounds((run,)).covers(wide)


def test_a_plan_without_noise_costs_everything():
    bounds = RunBounds((ledger(1.0, 1), ledger(0.0, 1)))
    assert bounds.epsilon(DELTA) == bounds.selection_epsilon(RandomSelection(5), DELTA) == np.inf


def of_person(most, noise=1.0):
    return Ledger(
        (LedgerRow(Sampling.POISSON, 10, 1_000, noise, rows_per_unit=most, steps=9, releases=9),)
    )


def test_the_best_run_protects_a_person_only_if_all_runs_do():
    bounds = RunBounds((of_person(5, 2.0), of_person(2)))
    assert bounds.covers(of_person(2, 2.0))
    # More noise, and yet another protection.
    assert not bounds.covers(of_person(0, 50.0))
    assert not bounds.covers(of_person(6, 50.0))
    assert not RunBounds((of_person(0),)).covers(of_person(1, 50.0))
    (row,) = bounds.selected(RandomSelection(10))
    assert (row.noise_multiplier, row.rows_per_unit) == (1.0, 5)
    with pytest.raises(ValueError, match="Either all runs of a search or none"):
        RunBounds((of_person(5), of_person(0, 2.0)))
