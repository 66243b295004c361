"""Epsilon for several examples of one person: exact where that is known, never below one's."""

import functools
import math

import numpy as np
import pytest
from scipy import special, stats

from keras_adaclip.accounting import (
    Sampling,
    accountants,
    calibrate_noise_multiplier,
    compute_epsilon,
    group_epsilon,
    groups,
    ledger_epsilon,
)
from keras_adaclip.accounting.events import DrawnRowsEvent, counted_events
from tests.accounting import oracles

DELTA = 1e-5
knows_mixtures = pytest.mark.skipif(
    not accountants.knows_mixtures(), reason="this dp_accounting does not know mixtures"
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


def test_of_many_mechanisms_the_property_of_groups_serves():
    rows = [row(noise=2.0 + index / 10, steps=10) for index in range(9)]
    found = group_epsilon(rows, DELTA, 2)
    assert found == groups._by_group_property(counted_events(rows), DELTA, 2)
    # Its own definition: with the delta of one example, the group's delta is the one asked for.
    alone = found / 2
    smaller = DELTA / (1.0 + math.exp(alone))
    assert ledger_epsilon(rows, smaller) == pytest.approx(alone, rel=1e-2)


@knows_mixtures
@pytest.mark.parametrize(("group_size", "noise"), [(2, 2.0), (5, 8.0)])
def test_without_mixtures_and_by_divergences_bounds_are_larger_but_not_by_much(
    group_size, noise, monkeypatch
):
    rows = [row(noise=noise)]
    exact = group_epsilon(rows, DELTA, group_size)
    of_person = [row(noise=noise, rows_per_unit=group_size)]
    assert exact < ledger_epsilon(of_person, DELTA, "rdp") < 1.5 * exact
    monkeypatch.setattr(accountants, "knows_mixtures", lambda: False)
    for cache in (accountants.composed_epsilon, accountants._release_pld):
        cache.cache_clear()
    accountants._kept_plds.clear()
    assert exact < group_epsilon(rows, DELTA, group_size) < 1.1 * exact
    accountants._kept_plds.clear()
    for cache in (accountants.composed_epsilon, accountants._release_pld):
        cache.cache_clear()


@pytest.mark.parametrize(("noise", "q", "group_size"), [(3.0, 0.2, 4), (4.0, 0.01, 10)])
def test_divergences_of_drawn_rows_are_bounded_at_every_order(noise, q, group_size):
    """Against the integral of the mixture and the noise alone, both ways."""
    drawn, orders = np.arange(group_size + 1), (2, 3, 4, 8)
    weights = stats.binom.logpmf(drawn, group_size, q)
    x = np.linspace(-60.0, 140.0, 50_001)
    one = special.logsumexp(weights + stats.norm.logpdf(x[:, None], drawn, noise), axis=1)
    other = stats.norm.logpdf(x, 0.0, noise)
    bounds = accountants._release_rdp(DrawnRowsEvent(q, noise, group_size), orders)
    for order, bound in zip(orders, bounds, strict=True):
        found = [
            np.log(np.exp(order * p + (1 - order) * r).sum() * (x[1] - x[0])) / (order - 1)
            for p, r in ((one, other), (other, one))
        ]
        assert max(found) <= bound < 2 * max(found)


def test_the_row_of_a_plan_has_the_epsilon_of_a_person():
    planned = compute_epsilon(9.0, 6_000, 256, steps=100, delta=DELTA, max_rows_per_unit=3)
    assert planned == group_epsilon([row(noise=9.0)], DELTA, 3)
    noise = calibrate_noise_multiplier(0.5, DELTA, 6_000, 256, steps=100, max_rows_per_unit=3)
    assert 0.49 < group_epsilon([row(noise=noise)], DELTA, 3) <= 0.5


def test_nothing_no_noise_and_sizes_out_of_range():
    assert group_epsilon([], DELTA, 3) == 0.0
    assert group_epsilon([row(steps=0)], DELTA, 3) == 0.0
    assert group_epsilon([row(noise=0.0)], DELTA, 3) == math.inf
    # So little noise that a release has no bound worth computing.
    assert group_epsilon([row(noise=0.01)], DELTA, 100) > 1e4
    for size in (0, 10**6):
        with pytest.raises(ValueError, match="`group_size`"):
            group_epsilon([row()], DELTA, size)
