"""Truncated Poisson sampling: its epsilon, its rows in a ledger, and the largest batch it needs."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import integrate, stats

from keras_adaclip import accounting
from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    PrivacyReport,
    PrivacySpent,
    Sampling,
    Unit,
    compute_epsilon,
    events,
    ledger_epsilon,
    smallest_max_batch_size,
)
from keras_adaclip.accounting.accountants import composed_divergences, composed_epsilon
from keras_adaclip.accounting.events import counted_events, knows_truncation

pytestmark = pytest.mark.skipif(not knows_truncation(), reason="needs a newer dp-accounting")

DELTA = 1e-5
RUN = {"num_examples": 60_000, "batch_size": 256, "steps": 3515, "delta": DELTA}


def truncated(most=320, batch=256, examples=60_000, noise=3.0, steps=100):
    sampling = Sampling.TRUNCATED_POISSON
    row = LedgerRow.open(sampling, batch, examples, noise, max_batch_size=most)
    return row.advance(steps)


def exact(row):
    return dataclasses.replace(row, sampling=Sampling.POISSON, max_batch_size=0)


@pytest.mark.parametrize(("most", "expected"), [(384, 1.3512), (320, 1.4268), (304, 2.9381)])
def test_known_epsilons(most, expected):
    """Values of `dp_accounting` 0.6.0."""
    found = compute_epsilon(1.0, **RUN, max_batch_size=most)
    assert found == pytest.approx(expected, abs=1e-4)
    row = truncated(most, noise=1.0, steps=3515)
    assert ledger_epsilon([row], DELTA) == found < ledger_epsilon([row], DELTA, "rdp") < math.inf


def test_a_smaller_largest_batch_costs_more_and_a_large_one_nothing():
    epsilons = [ledger_epsilon([truncated(most)], DELTA) for most in (290, 304, 320, 400)]
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[0] > 1.15 * epsilons[-1]
    assert epsilons[-1] == pytest.approx(ledger_epsilon([exact(truncated())], DELTA), rel=1e-6)


def divergence_by_integration(row, order):
    """The divergence of removing a unit: a mixture of a draw that others fill, and one they do not.

    Where others fill it, the unit moves the sum by two clipping norms, in the worst case.
    """
    others, noise, most = row.num_examples - 1, row.noise_multiplier, row.max_batch_size
    q = row.sampling_probability
    counts = stats.binom(others, q)
    full = counts.sf(most - 1)
    among = np.arange(most, others + 1)
    chosen = float(np.sum(counts.pmf(among) * q * most / (among + 1)) / full)

    def moment(probability, shift):
        def integrand(value):
            log_ratio = np.logaddexp(
                math.log1p(-probability),
                math.log(probability) + (2 * value * shift - shift**2) / (2 * noise**2),
            )
            return math.exp(order * log_ratio + stats.norm.logpdf(value, scale=noise))

        end = noise * 12 + order * shift
        return integrate.quad(integrand, -end, end, limit=500, points=[0, shift, order * shift])[0]

    total = (1 - full) * moment(q, 1.0) + full * moment(chosen, 2.0)
    return math.log(total) / (order - 1)


@pytest.mark.parametrize("order", [2, 4, 8])
@pytest.mark.parametrize(("most", "noise"), [(60, 1.0), (75, 1.0), (75, 3.0)])
def test_divergences_are_upper_bounds(most, noise, order):
    row = truncated(most, batch=50, examples=400, noise=noise, steps=1)
    (found,) = composed_divergences(counted_events([row]), (order,))
    oracle = divergence_by_integration(row, order)
    assert oracle <= found
    assert oracle > 0


def selected_ledger(row):
    plan = accounting.RunBounds((Ledger((row,)),))
    return plan.selected(accounting.RandomSelection(10, "geometric"))


@pytest.mark.parametrize(("batch", "most"), [(256, 400), (1000, 4096), (6000, 30_000)])
def test_selected_runs_and_later_truncated_draws_add_up(batch, most):
    """With the last two, the probability that a draw is cut is below the range of float64."""
    row = truncated(most, batch, noise=1.0, steps=1000)
    for selected in (selected_ledger(exact(row)), selected_ledger(row)):
        both = ledger_epsilon([*selected, row], DELTA)
        without = ledger_epsilon([*selected, exact(row)], DELTA)
        assert ledger_epsilon(selected, DELTA) < without <= both * (1 + 1e-9) < math.inf


@pytest.mark.parametrize("sizes", [(1083, 256, 60_000), (303, 10, 100_000)])
def test_probabilities_at_the_end_of_float64(sizes):
    row = truncated(*sizes)
    expected = ledger_epsilon([exact(row)], DELTA)
    assert ledger_epsilon([row], DELTA) == pytest.approx(expected, rel=1e-9)


def test_the_relation_and_the_words():
    assert events.neighboring_relation([truncated(), exact(truncated())]) == "add_or_remove_one"
    spent = PrivacySpent.from_ledger([truncated()], DELTA)
    assert spent.sampling == "truncated_poisson"
    assert "cut to it at random" in str(spent)
    report = PrivacyReport.from_ledger([truncated()], DELTA)
    assert "batches of 256 (at most 320) of 60,000" in report.to_text()
    assert report.to_dict()["mechanisms"][0]["max_batch_size"] == 320
    assert report.epsilon_without_amplification > report.epsilon


def test_a_person_with_several_examples_loses_more():
    rows = [truncated(352)]
    epsilons = [accounting.group_epsilon(rows, DELTA, size) for size in (1, 2, 3)]
    assert 2 * epsilons[0] < epsilons[1] < epsilons[2] < math.inf


def test_rows_are_kept_in_tables():
    row = dataclasses.replace(truncated(1_999_999, examples=2_000_000), unit=Unit.CLIENT)
    selected = selected_ledger(truncated())
    for ledger in (Ledger((row,)), Ledger((*selected, truncated()))):
        assert Ledger.from_array(ledger.to_array()) == ledger


def test_rows_of_different_largest_batches_are_not_joined():
    assert len(Ledger((truncated(320), truncated(321)))) == 2


@pytest.mark.parametrize(("noise", "steps"), [(2.0, 100), (4.0, 20_000)])
def test_the_smallest_largest_batch_costs_a_thousandth(noise, steps):
    row = exact(truncated(noise=noise, steps=steps))
    most = smallest_max_batch_size([row], DELTA)
    allowed = 1.001 * ledger_epsilon([row], DELTA)
    assert ledger_epsilon([truncated(most, noise=noise, steps=steps)], DELTA) <= allowed
    assert ledger_epsilon([truncated(most - 1, noise=noise, steps=steps)], DELTA) > allowed


def test_the_smallest_largest_batch_of_other_runs():
    rows = [exact(truncated(noise=noise)) for noise in (4.0, 3.0, 5.0)]
    alone = dataclasses.replace(rows[1], steps=300, releases=300)
    assert smallest_max_batch_size(rows, DELTA) == smallest_max_batch_size([alone], DELTA)
    silent = smallest_max_batch_size([exact(truncated(noise=0.0))], DELTA)
    assert stats.binom.sf(silent, 60_000, 256 / 60_000) < 1e-9
    whole = LedgerRow.open(Sampling.POISSON, 10, 10, 1.0).advance(5)
    assert smallest_max_batch_size([whole], DELTA) == 10


def test_a_plan_with_a_largest_batch(monkeypatch):
    arguments = {**RUN, "max_batch_size": 304}
    target = compute_epsilon(3.0, **RUN)
    noise = accounting.calibrate_noise_multiplier(target, **arguments)
    assert noise > 3.03
    assert target * 0.999 <= compute_epsilon(noise, **arguments) <= target
    whole = compute_epsilon(1.0, 100, 10, steps=5, delta=DELTA, max_batch_size=100)
    assert whole == compute_epsilon(1.0, 100, 10, steps=5, delta=DELTA)
    with pytest.raises(ValueError, match="`max_batch_size` must be at least 256"):
        compute_epsilon(1.0, **RUN, max_batch_size=255)
    with pytest.raises(ValueError, match="is for sampling='poisson' only"):
        compute_epsilon(1.0, **RUN, max_batch_size=300, sampling="shuffle")
    monkeypatch.setattr(events, "knows_truncation", lambda: False)
    with pytest.raises(ImportError, match="pip install --upgrade dp-accounting"):
        ledger_epsilon([truncated(333)], DELTA)


def test_coarse_grids_are_upper_bounds():
    counted = counted_events([truncated(304, steps=50)])
    fine = composed_epsilon(counted, DELTA, "pld")
    assert fine <= composed_epsilon(counted, DELTA, "pld", 8) <= 1.05 * fine
