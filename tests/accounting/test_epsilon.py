"""Epsilon: reference values, relations, bounds for the recorded events, and wrong arguments."""

import dataclasses
import logging
import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from keras_adaclip.accounting import (
    Ledger,
    PrivacySpent,
    Sampling,
    Unit,
    calibrate_noise_multiplier,
    compute_epsilon,
    default_delta,
    events,
    ledger_epsilon,
)
from tests.accounting.oracles import gaussian_epsilon, row

MNIST = {"noise_multiplier": 1.0, "num_examples": 60_000, "batch_size": 256, "delta": 1e-5}
DELTA = 1e-5


@pytest.mark.parametrize(
    ("sampling", "accountant", "expected"),
    [
        ("poisson", "pld", 1.3512),
        ("poisson", "rdp", 1.5597),
        ("shuffle", "pld", 23.3463),
        ("shuffle", "rdp", 24.8309),
        ("fixed", "rdp", 17.1070),
        ("fixed", "pld", 17.1070),
    ],
)
def test_reference_values(sampling, accountant, expected):
    """From dp_accounting 0.6.0; 0.4.3 gives the same digits."""
    epsilon = compute_epsilon(**MNIST, steps=3515, sampling=sampling, accountant=accountant)
    assert epsilon == pytest.approx(expected, abs=6e-5)


def test_epochs_are_of_the_steps_that_cover_the_data():
    assert compute_epsilon(**MNIST, epochs=0) == 0.0
    assert compute_epsilon(**MNIST, epochs=2) == compute_epsilon(**MNIST, steps=2 * 235)
    first_of_third_pass = compute_epsilon(**MNIST, steps=471, sampling="shuffle")
    assert first_of_third_pass == compute_epsilon(**MNIST, epochs=3, sampling="shuffle")
    assert first_of_third_pass > compute_epsilon(**MNIST, epochs=2, sampling="shuffle")


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("noise", [0.5, 4.0])
@pytest.mark.parametrize(
    ("sampling", "batch"),
    [
        (Sampling.POISSON, 1000),
        (Sampling.SHUFFLE, 1000),
        (Sampling.STREAM, 10),
        (Sampling.PASS, 10),
    ],
)
def test_a_full_release_has_the_epsilon_of_sensitivity_one(sampling, batch, noise, accountant):
    """Whatever the relation: at q = 1 each event is one Gaussian mechanism of sensitivity 1."""
    exact = gaussian_epsilon(noise, DELTA)
    epsilon = ledger_epsilon([row(sampling, batch, 1000, noise, steps=1)], DELTA, accountant)
    assert epsilon >= exact
    # A relation that doubles the sensitivity would more than double epsilon.
    slack = 1e-4 if accountant == "pld" else 0.35
    assert epsilon <= exact * (1 + slack) + 1e-4


@pytest.mark.parametrize(("noise", "releases"), [(1.0, 15), (30.0, 1000), (2.0, 3515)])
def test_composed_full_releases(noise, releases):
    """Coarser grids are used for the large ones; they must stay above the truth, and near it."""
    exact = gaussian_epsilon(noise, DELTA, releases=releases)
    epsilon = ledger_epsilon([row(Sampling.STREAM, noise=noise, steps=releases)], DELTA)
    assert exact <= epsilon <= exact * (1 + 1e-4) + 1e-4


MIXED = (
    row(Sampling.POISSON, noise=1.0, steps=500),
    row(Sampling.SHUFFLE, noise=6.0, steps=400),
    row(Sampling.POISSON, batch=512, noise=1.5, steps=300),
)


def test_never_below_what_dp_accounting_gives_for_the_recorded_events():
    event = dp_accounting.ComposedDpEvent(
        [dp_accounting.SelfComposedDpEvent(*each) for each in events.counted_events(MIXED)]
    )
    by_pld = PLDAccountant().compose(event).get_epsilon(DELTA)
    # The order of the compositions decides the last digits.
    assert by_pld * (1 - 1e-12) <= ledger_epsilon(MIXED, DELTA, "pld") <= by_pld * (1 + 1e-4)
    by_rdp = RdpAccountant().compose(event).get_epsilon(DELTA)
    assert by_rdp <= ledger_epsilon(MIXED, DELTA, "rdp") <= by_rdp * (1 + 1e-6)


@pytest.mark.parametrize(
    ("sampling", "accountant"),
    [("poisson", "pld"), ("shuffle", "rdp"), ("stream", "pld"), ("fixed", "rdp")],
)
def test_without_noise_epsilon_is_infinite_and_without_steps_zero(sampling, accountant):
    plan = {**MNIST, "noise_multiplier": 0.0, "sampling": sampling, "accountant": accountant}
    assert [compute_epsilon(**plan, steps=steps) for steps in (0, 1)] == [0.0, math.inf]
    spoiled = row(Sampling[sampling.upper()], noise=0.0)
    assert ledger_epsilon([row(steps=5), spoiled.advance(1)], DELTA, accountant) == math.inf
    assert ledger_epsilon([row(steps=5), spoiled], DELTA, accountant) < math.inf


def test_rounding_to_zero_is_no_proof_of_privacy():
    """The divergence of such a release rounds to 0 or below, which dp_accounting takes for none."""
    plan = {"noise_multiplier": 1e6, "num_examples": 16_982, "batch_size": 1, "steps": 2 * 10**9}
    assert compute_epsilon(**plan, delta=1e-9, accountant="rdp") > 0


def test_a_plan_is_what_its_ledger_will_say():
    """Training rounds 1.1 up to a float32, and 0.7 down; the plan rounds both down."""
    for noise in (1.1, 0.7, 1.0):
        ran = ledger_epsilon([row(noise=noise, steps=235)], DELTA, "rdp")
        plan = {**MNIST, "noise_multiplier": noise, "accountant": "rdp"}
        planned = compute_epsilon(**plan, epochs=1)
        assert ran < planned < ran * (1 + 1e-6) if noise == 1.1 else ran == planned


def test_privacy_spent_states_what_ran():
    # A row that has not run says nothing of the relation.
    for rows in ((), MIXED[:1], (MIXED[0], row(Sampling.SHUFFLE))):
        relation = PrivacySpent.from_ledger(rows, DELTA).neighboring_relation
        assert relation == "add_or_remove_one"
    spent = PrivacySpent.from_ledger(Ledger(MIXED), DELTA)
    assert spent.epsilon == ledger_epsilon(MIXED, DELTA)
    assert (spent.steps, spent.sampling, spent.unit) == (1200, "poisson + shuffle", "example")
    assert (spent.neighboring_relation, spent.accountant) == ("zero_out", "pld")
    for words in ("delta = 1e-05", "after 1200 steps", "zeroed out", "one full release a pass"):
        assert words in str(spent)
    clients = dataclasses.replace(MIXED[0], unit=Unit.CLIENT)
    assert "A unit is one client." in str(PrivacySpent.from_ledger([clients], DELTA))
    assert "Nothing has been released yet" in str(PrivacySpent.from_ledger([], DELTA))


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (1.35122, "(epsilon = 1.3513, delta = 1e-05)-differential privacy after 1 step, by"),
        (12345.1, "(epsilon = 12346,"),
        (0.0, "(epsilon = 0,"),
        (math.inf, "No differential privacy (epsilon = inf) after 1 step, by"),
    ],
)
def test_privacy_spent_in_words_never_understates(epsilon, words):
    spent = PrivacySpent(epsilon, 1e-5, 1, "poisson", "add_or_remove_one", "rdp")
    assert str(spent).startswith(words)


def test_orders_that_are_left_out_are_not_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        compute_epsilon(1.483113, 320, 64, steps=10, delta=1e-3, accountant="rdp")
        assert caplog.records == []
        logging.getLogger("absl").warning("something else")
    assert [record.message for record in caplog.records] == ["something else"]


FIXED = row(Sampling.FIXED, steps=100)


def test_fixed_sizes_cost_what_their_plan_said_and_among_others_full_releases():
    planned = compute_epsilon(**MNIST, steps=100, sampling="fixed")
    for accountant in ("pld", "rdp"):
        spent = PrivacySpent.from_ledger([FIXED], DELTA, accountant)
        assert (spent.epsilon, spent.accountant) == (planned, "rdp")
        assert spent.neighboring_relation == "replace_one"
    poisson = row(steps=100)
    spent = PrivacySpent.from_ledger([FIXED, poisson], DELTA)
    assert spent.epsilon == ledger_epsilon([row(Sampling.STREAM, steps=100), poisson], DELTA)
    assert (spent.accountant, spent.neighboring_relation) == ("pld", "zero_out")


@pytest.mark.parametrize("noise", [2.0, 10.0])
def test_epsilon_grows_with_the_batch_up_to_a_full_release(noise):
    """The bound for sampling without replacement alone passes that of no sampling at all."""
    sizes = (1, 100, 500, 900, 990, 1000)
    rows = [row(Sampling.FIXED, size, 1000, noise, steps=100) for size in sizes]
    found = [ledger_epsilon([each], DELTA) for each in rows]
    assert found == sorted(found)
    full = row(Sampling.STREAM, 1000, 1000, noise / 2, steps=100)
    assert found[-1] == pytest.approx(ledger_epsilon([full], DELTA, "rdp"), rel=1e-6)


PLAN = {**MNIST, "num_examples": 1000, "batch_size": 10, "steps": 10, "accountant": "rdp"}


def test_a_large_delta_is_warned_about_and_the_default_is_small():
    with pytest.warns(UserWarning, match="below 1 / num_examples = 0.001.*Received: delta=0.001"):
        compute_epsilon(**{**PLAN, "delta": 1e-3})
    with pytest.warns(UserWarning, match="below 1 / num_examples"):
        calibrate_noise_multiplier(1.0, 0.01, 1000, 10, steps=10, accountant="rdp")
    compute_epsilon(**{**PLAN, "delta": 0.9e-3})
    assert default_delta(2) < 1 / 2
