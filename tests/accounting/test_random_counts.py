"""Numbers of runs drawn from their laws, and the theorems beside those of dp_accounting."""

import random

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from keras_adaclip.accounting import LedgerRow, RandomSelection, Sampling

LAWS = ("geometric", "logarithmic", "poisson")
SHAPES = {"geometric": 1.0, "logarithmic": 0.0, "poisson": np.inf}
NUM_DRAWS = 20_000
# Fifteen tests with fixed seeds, which for that share of seeds would fail though all is well.
FALSE_ALARM = 1e-4


def exact_law(distribution, mean):
    """The law by scipy, the logarithmic one by its mean -p / ((1 - p) log(1 - p))."""
    if distribution == "poisson":
        return stats.poisson(mean)
    if distribution == "geometric":
        return stats.geom(1 / mean)
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
@pytest.mark.parametrize("mean", [1.5, 10, 50])
def test_numbers_of_runs_follow_the_law(distribution, mean):
    selection, source = RandomSelection(mean, distribution), random.Random(20240229)
    draws = [selection.draw(source) for _ in range(NUM_DRAWS)]
    assert min(draws) == (1 if distribution != "poisson" else law_minimum(mean, draws))
    assert chi_squared(draws, exact_law(distribution, mean)) > FALSE_ALARM


def law_minimum(mean, draws):
    """Zero where a Poisson law of this mean gives zero often enough to be sure of it."""
    return 0 if NUM_DRAWS * np.exp(-mean) > 20 else min(draws)


@pytest.mark.parametrize("distribution", LAWS)
def test_the_chi_squared_test_sees_another_law(distribution):
    source = random.Random(20240229)
    selection = RandomSelection(11, distribution)
    draws = [selection.draw(source) for _ in range(NUM_DRAWS)]
    assert chi_squared(draws, exact_law(distribution, 10)) < FALSE_ALARM


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
@pytest.mark.parametrize("mean", [2, 10, 300])
def test_epsilon_is_that_of_dp_accounting(distribution, mean):
    event = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.5)), 200)
    accountant = RdpAccountant()
    accountant.compose(RepeatAndSelectDpEvent(event, mean, SHAPES[distribution]))
    row = LedgerRow.open(Sampling.POISSON, 10, 1000, noise_multiplier=1.5).advance(200)
    found = RandomSelection(mean, distribution).epsilon([row], 1e-5)
    expected = float(accountant.get_epsilon(1e-5))
    assert expected * (1 - 1e-12) <= found <= expected * (1 + 1e-6)
