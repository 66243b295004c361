"""The trade-off curve: above every attacker, and not far above the best one."""

import dataclasses
import json
import math
from statistics import NormalDist

import numpy as np
import pytest
import scipy

from keras_adaclip.accounting import (
    LedgerRow,
    PrivacyReport,
    PrivacySpent,
    RandomSelection,
    Sampling,
    TradeoffCurve,
    plan,
)

DELTA, NORMAL = 1e-5, NormalDist()
RATES = (1e-6, 1e-4, 0.001, 0.01, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6)
GAUSSIAN = LedgerRow.open(Sampling.STREAM, 10, 0, noise_multiplier=2.0).advance(1)
POISSON = LedgerRow.open(Sampling.POISSON, 256, 6_000, noise_multiplier=2.0).advance(60)
FIXED = LedgerRow.open(Sampling.FIXED, 10, 6_000, noise_multiplier=5.0).advance(4)
WITHOUT_NOISE = dataclasses.replace(POISSON, noise_multiplier=0.0)


def curve_of(*rows, accountant="pld"):
    return PrivacySpent.from_ledger(rows, DELTA, accountant).tradeoff()


def test_a_gaussian_has_its_own_curve():
    curve = curve_of(GAUSSIAN)
    for rate in RATES:
        exact = NORMAL.cdf(NORMAL.inv_cdf(rate) + 0.5)
        assert exact <= curve.true_positive_rate(rate) <= min(exact * (1 + 5e-5), 1.0)
    assert 0.5 <= curve.mu <= 0.501
    assert 0.0 <= curve.mu_gap <= 1e-4
    assert curve.advantage == pytest.approx(2 * NORMAL.cdf(0.25) - 1, rel=1e-5)
    assert curve.basis == "pld"
    found = curve.true_positive_rate(np.array([[0.01, 0.5], [0.0, 1.0]]))
    assert found.shape == (2, 2)
    assert found[0, 0] == curve.true_positive_rate(0.01)


def test_the_figures_of_a_long_run():
    row = LedgerRow.open(Sampling.POISSON, 949, 60_000, noise_multiplier=0.8118).advance(320)
    curve = PrivacySpent.from_ledger([row], 60_000**-1.1).tradeoff()
    assert curve.best_guess() == pytest.approx(0.598, abs=5e-4)
    assert curve.true_positive_rate(0.01) == pytest.approx(0.040, abs=5e-4)
    # Few draws of the unit make the rare accusations surer than a Gaussian's.
    assert 0.05 < curve.mu_gap < 0.1
    highest = NORMAL.cdf(NORMAL.inv_cdf(0.01) + curve.mu)
    assert curve.true_positive_rate(0.01) < highest


@pytest.mark.parametrize("q", [0.05, 0.3, 1.0])
def test_no_simulated_attacker_exceeds_the_curve(q):
    """The likelihood ratio of all steps is the best test. A false alarm once in 10,000 runs."""
    noise, steps, size = 0.7, 8, 100_000
    row = LedgerRow.open(Sampling.POISSON, int(1_000 * q), 1_000, noise_multiplier=noise)
    curve = curve_of(row.advance(steps))
    generator = np.random.default_rng(1)

    def scores(is_member):
        drawn = is_member * (generator.random((size, steps)) < q)
        seen = drawn + noise * generator.standard_normal((size, steps))
        return np.log1p(q * np.expm1((seen - 0.5) / noise**2)).sum(axis=1)

    others, members = np.sort(scores(False)), np.sort(scores(True))
    for accused, found in ((others, members), (-members[::-1], -others[::-1])):
        for rate in (0.001, 0.01, 0.1, 0.5, 0.9):
            reached = np.mean(found > np.quantile(accused, 1 - rate))
            # The error of the share, and that of the threshold along the curve.
            slope = (curve.true_positive_rate(rate * 1.01) - curve.true_positive_rate(rate)) / rate
            error = np.sqrt((reached * (1 - reached) + (100 * slope) ** 2 * rate) / size)
            bound = curve.true_positive_rate(rate)
            assert reached <= bound + 5 * error + 5 / size
    # The first attacker, who accuses members, reaches the curve.
    reached = np.mean(members > np.quantile(others, 0.99))
    assert reached >= 0.9 * curve.true_positive_rate(0.01)


def test_a_pair_bounds_as_randomized_response_does():
    epsilon, delta = 2.0, 0.1
    curve = TradeoffCurve((epsilon,), (delta,))
    share = 1.0 / (1.0 + math.exp(-epsilon))
    present = np.array([delta, (1 - delta) * share, (1 - delta) * (1 - share), 0.0])
    absent = present[::-1]
    for rate in (0.0, 0.001, 0.01, 0.5, 1.0):
        best = np.interp(rate, np.cumsum(absent), np.cumsum(present))
        assert curve.true_positive_rate(rate) == pytest.approx(best)
    for prior in (0.0, 0.01, 0.3, 0.5, 0.9, 1.0):
        right = np.maximum(prior * present, (1 - prior) * absent).sum()
        assert curve.best_guess(prior) == pytest.approx(right)
    assert curve.advantage == pytest.approx(2 * curve.best_guess() - 1)
    # Mu is that of the corner, which lies between the points of any grid.
    corner = -2 * NORMAL.inv_cdf((1 - 1e-9) / (1 + math.exp(epsilon)))
    assert corner <= TradeoffCurve((epsilon,), (1e-9,)).mu <= corner + 2e-4


def test_a_curve_is_concave_symmetric_and_grows_with_the_steps():
    curve, longer = curve_of(POISSON), curve_of(POISSON.advance(60))
    rates = np.linspace(0.0, 1.0, 2_001)
    found = curve.true_positive_rate(rates)
    assert np.diff(found, 2).max() <= 1e-12
    assert np.all(longer.true_positive_rate(rates) >= found - 1e-12)
    assert curve.true_positive_rate(1 - found) == pytest.approx(1 - rates, abs=1e-6)
    right = max(0.2 * found + 0.8 * (1 - rates))
    assert right - 1e-9 <= curve.best_guess(0.2) <= right + 1e-4
    assert curve.posterior(0.2, 0.01) == pytest.approx(
        0.2 * found[20] / (0.2 * found[20] + 0.8 * 0.01)
    )
    # A Gaussian of `mu` allows all of it, and one of a little less does not.
    inside = scipy.special.ndtr(np.linspace(-4.7, 4.4, 999))
    excess = curve.true_positive_rate(inside) - scipy.special.ndtr(
        scipy.special.ndtri(inside) + np.array([[curve.mu], [0.995 * curve.mu]])
    )
    assert excess[0].max() <= 1e-12 < excess[1].max()


def test_only_a_pair_is_known_of_some_mechanisms():
    for curve, row in ((curve_of(FIXED), FIXED), (curve_of(POISSON, accountant="rdp"), POISSON)):
        epsilon = PrivacySpent.from_ledger([row], DELTA, "rdp").epsilon
        assert curve.basis == "pair"
        assert curve.advantage == TradeoffCurve((epsilon,), (DELTA,)).advantage
    chosen = PrivacyReport.from_ledger(
        [POISSON], DELTA, group_sizes=(), selection=RandomSelection(9)
    )
    assert chosen.risk_basis == "pair"
    pair = TradeoffCurve((chosen.epsilon_with_selection,), (DELTA,))
    assert chosen.best_guess == pair.best_guess() > curve_of(POISSON).best_guess()
    assert "follow from epsilon and delta alone" in chosen.summary[-1]


def test_without_steps_an_attacker_is_blind_and_without_noise_certain():
    blind, certain = curve_of(), curve_of(WITHOUT_NOISE)
    for rate in (0.0, 0.3, 1.0):
        assert blind.true_positive_rate(rate) == rate
        assert certain.true_positive_rate(rate) == 1.0
    assert (blind.mu, blind.mu_gap, blind.best_guess(0.3), blind.advantage) == (0.0, 0.0, 0.7, 0.0)
    assert (certain.mu, certain.mu_gap, certain.best_guess(0.3)) == (math.inf, 0.0, 1.0)
    assert blind.posterior(0.3) == pytest.approx(0.3)
    assert [blind.posterior(prior, 0.0) for prior in (0.0, 0.3, 1.0)] == [0.0, 0.3, 1.0]
    assert [certain.posterior(prior, 0.0) for prior in (0.0, 0.3, 1.0)] == [0.0, 1.0, 1.0]
    # Less noise than any mu within the range stands for.
    assert curve_of(dataclasses.replace(GAUSSIAN, noise_multiplier=0.1)).mu == math.inf
    assert curve_of(dataclasses.replace(GAUSSIAN, noise_multiplier=0.2)).mu == pytest.approx(
        5, 1e-3
    )
    for rows in ((), (WITHOUT_NOISE,)):
        report = PrivacyReport.from_ledger(rows, DELTA, group_sizes=())
        assert "Infinity" not in report.to_json()
        assert json.loads(report.to_json())["gaussian_mu"] == ("inf" if rows else 0.0)
        assert len({len(each) for each in (report.to_html(), report.to_markdown())}) == 2


def test_many_rows_and_rows_of_persons_have_a_curve():
    rows = [
        LedgerRow.open(Sampling.POISSON, 64, 6_000, noise_multiplier=4 + number / 100).advance(1)
        for number in range(20)
    ]
    persons = [dataclasses.replace(row, rows_per_unit=3) for row in rows[:1]]
    released = LedgerRow.open(Sampling.POISSON, 6_000, 6_000, noise_multiplier=10.0).advance(1)
    guesses = [
        curve_of(*each).best_guess() for each in (rows[:1], persons, rows, [*rows, released])
    ]
    assert guesses == sorted(set(guesses))


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, "1", True])
def test_only_shares_are_rates_and_priors(value):
    curve = TradeoffCurve((1.0,), (DELTA,))
    error = TypeError if value in ("1", True) else ValueError
    for call in (
        lambda: curve.true_positive_rate(value),
        lambda: curve.best_guess(value),
        lambda: curve.posterior(value),
        lambda: curve.posterior(0.5, value),
    ):
        with pytest.raises(error, match=r"`(prior|false_positive_rate)` must"):
            call()
    if error is ValueError:
        with pytest.raises(error, match="`false_positive_rate` must"):
            curve.true_positive_rate([0.5, value])


RUN = {"delta": DELTA, "num_examples": 6_000, "batch_size": 256}


def test_a_plan_for_a_risk():
    found = plan(max_true_positive_rate=0.1, epochs=2, **RUN)
    assert 0.0995 <= found.true_positive_rate <= 0.1
    row = LedgerRow.open(Sampling.POISSON, 256, 6_000, noise_multiplier=found.noise_multiplier)
    assert curve_of(row.advance(48)).true_positive_rate(0.01) == found.true_positive_rate
    text = " ".join(str(found).split())
    assert "members found, 1% false alarms at most 10%" in text
    risk = {"max_true_positive_rate": 0.02, "at_false_positive_rate": 0.001}
    most = plan(noise_multiplier=2.0, **risk, **RUN)
    assert (most.solved_for, most.false_positive_rate) == ("epochs", 0.001)
    more = plan(noise_multiplier=2.0, epochs=most.epochs + 1, at_false_positive_rate=0.001, **RUN)
    assert most.true_positive_rate <= 0.02 < more.true_positive_rate
    for wrong, message in (
        ({"max_true_positive_rate": 0.01, "epochs": 1}, "must exceed"),
        ({"max_true_positive_rate": 0.1, "target_epsilon": 1.0, "epochs": 1}, "not both"),
        (
            {"max_true_positive_rate": 0.1, "noise_multiplier": 0.1},
            "No `epochs` reaches the target true positive rate: one epoch has true positive rate 0",
        ),
        (
            {"max_true_positive_rate": 0.01 + 1e-14, "epochs": 10_000},
            "reaches the target true positive rate: the nearest true positive rate is 0.*larger "
            "`delta` or `max_true_positive_rate`.*Received: max_true_positive_rate=",
        ),
        (
            {"max_true_positive_rate": 1 - 1e-9, "epochs": 1},
            "jumps there: use a larger `max_true_positive_rate`",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            plan(**wrong, **RUN)
