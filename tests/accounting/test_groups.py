"""Epsilon for several examples of one person: exact where that is known, never below one's."""

import functools
import math

import numpy as np
import pytest
from scipy import stats

from keras_adaclip.accounting import Sampling, group_epsilon, groups, ledger_epsilon
from keras_adaclip.accounting.events import counted_events
from tests.accounting import oracles

DELTA = 1e-5
knows_mixtures = pytest.mark.skipif(
    not groups.knows_mixtures(), reason="this dp_accounting does not know mixtures"
)


row = functools.partial(oracles.row, examples=6_000, noise=2.0, steps=100)


@pytest.mark.parametrize("group_size", [1, 2, 5])
@pytest.mark.parametrize("sampling", [Sampling.STREAM, Sampling.SHUFFLE])
def test_full_releases_have_a_kth_of_the_noise(sampling, group_size):
    running = row(sampling, noise=30.0)
    expected = oracles.gaussian_epsilon(
        30.0, DELTA, releases=running.releases, sensitivity=group_size
    )
    assert group_epsilon([running], DELTA, group_size) == pytest.approx(expected, rel=2e-3)


@knows_mixtures
def test_one_step_of_poisson_sampling_against_its_definition():
    """The hockey-stick divergence of the mixture and the noise alone, integrated."""
    noise, group_size, batch, examples = 1.0, 3, 2_000, 6_000
    running = row(noise=noise, steps=1, batch=batch, examples=examples)
    epsilon = group_epsilon([running], 1e-2, group_size)
    x = np.linspace(-15.0, 20.0, 400_001)
    drawn = np.arange(group_size + 1)
    weights = stats.binom.pmf(drawn, group_size, batch / examples)
    with_group = (weights * stats.norm.pdf(x[:, None], drawn, noise)).sum(axis=1)
    without = stats.norm.pdf(x, 0.0, noise)
    deltas = [
        np.sum(np.maximum(one - math.exp(epsilon) * other, 0.0)) * (x[1] - x[0])
        for one, other in ((with_group, without), (without, with_group))
    ]
    assert max(deltas) == pytest.approx(1e-2, rel=1e-3)


@knows_mixtures
def test_mixtures_lie_between_one_example_and_the_property_of_groups():
    found = [ledger_epsilon([row()], DELTA)]
    for group_size in (2, 3, 6):
        found.append(group_epsilon([row()], DELTA, group_size))
        assert found[-1] < groups._by_group_property(counted_events([row()]), DELTA, group_size)
        # Half of a group may be empty: at least as much as its members' sum without overlap.
        assert found[-1] > group_size * found[0] * 0.9
    assert found == sorted(found)


@pytest.mark.parametrize("reason", ["old version", "many mechanisms"])
def test_without_mixtures_the_property_of_groups_serves(reason, monkeypatch):
    rows = [row()]
    if reason == "old version":
        monkeypatch.setattr(groups, "knows_mixtures", lambda: False)
    else:
        rows = [row(noise=2.0 + index / 10, steps=10) for index in range(9)]
    found = group_epsilon(rows, DELTA, 2)
    assert found == groups._by_group_property(counted_events(rows), DELTA, 2)
    # Its own definition: with the delta of one example, the group's delta is the one asked for.
    alone = found / 2
    smaller = DELTA / (1.0 + math.exp(alone))
    assert ledger_epsilon(rows, smaller) == pytest.approx(alone, rel=1e-2)


def test_nothing_no_noise_and_sizes_out_of_range():
    assert group_epsilon([], DELTA, 3) == 0.0
    assert group_epsilon([row(steps=0)], DELTA, 3) == 0.0
    assert group_epsilon([row(noise=0.0)], DELTA, 3) == math.inf
    # So little noise that a release has no bound worth computing.
    assert group_epsilon([row(noise=0.01)], DELTA, 100) > 1e4
    for size in (0, 10**6):
        with pytest.raises(ValueError, match="`group_size`"):
            group_epsilon([row()], DELTA, size)
