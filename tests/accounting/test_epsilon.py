"""Epsilon: reference values, relations, and bounds that must hold for the recorded events."""

import dataclasses
import logging
import math

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    PrivacySpent,
    Sampling,
    Unit,
    compute_epsilon,
    events,
    ledger_epsilon,
)
from tests.accounting.oracles import gaussian_epsilon

MNIST = {"noise_multiplier": 1.0, "num_examples": 60_000, "batch_size": 256, "delta": 1e-5}
DELTA = 1e-5


def row(sampling=Sampling.POISSON, batch=256, examples=60_000, noise=1.0, steps=0):
    return LedgerRow.open(sampling, batch, examples, noise_multiplier=noise).advance(steps)


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
    assert by_pld <= ledger_epsilon(MIXED, DELTA, "pld") <= by_pld * (1 + 1e-4)
    by_rdp = RdpAccountant().compose(event).get_epsilon(DELTA)
    assert by_rdp <= ledger_epsilon(MIXED, DELTA, "rdp") <= by_rdp * (1 + 1e-6)


def test_mixed_ledgers_are_stated_under_zero_out():
    assert events.neighboring_relation([]) == "add_or_remove_one"
    assert events.neighboring_relation(MIXED[:1]) == "add_or_remove_one"
    assert events.neighboring_relation(MIXED) == "zero_out"
    idle = row(Sampling.SHUFFLE)
    assert events.neighboring_relation([*MIXED[:1], idle]) == "add_or_remove_one"


@pytest.mark.parametrize(
    ("sampling", "accountant"),
    [("poisson", "pld"), ("shuffle", "rdp"), ("stream", "pld"), ("fixed", "rdp")],
)
def test_without_noise_epsilon_is_infinite_and_without_steps_zero(sampling, accountant):
    keywords = {**MNIST, "sampling": sampling, "accountant": accountant}
    assert compute_epsilon(**{**keywords, "noise_multiplier": 0.0}, steps=1) == math.inf
    assert compute_epsilon(**{**keywords, "noise_multiplier": 0.0}, steps=0) == 0.0
    assert compute_epsilon(**keywords, epochs=0) == 0.0
    spoiled = row(Sampling[sampling.upper()], noise=0.0)
    assert ledger_epsilon([row(steps=5), spoiled.advance(1)], DELTA, accountant) == math.inf
    assert ledger_epsilon([row(steps=5), spoiled], DELTA, accountant) < math.inf


def test_rounding_to_zero_is_no_proof_of_privacy():
    """The divergence of such a release rounds to 0 or below, which dp_accounting takes for none."""
    plan = {"noise_multiplier": 1e6, "num_examples": 16_982, "batch_size": 1, "steps": 2 * 10**9}
    assert compute_epsilon(**plan, delta=1e-9, accountant="rdp") > 0


def test_a_plan_is_what_its_ledger_will_say():
    """Training rounds 1.1 up to a float32, and 0.7 down; the plan takes the smaller of the two."""
    ran = ledger_epsilon([row(noise=1.1, steps=235)], DELTA)
    planned = compute_epsilon(**{**MNIST, "noise_multiplier": 1.1}, epochs=1)
    assert ran < planned == pytest.approx(ran, rel=1e-6)
    ran = ledger_epsilon([row(noise=0.7, steps=235)], DELTA)
    assert ran == compute_epsilon(**{**MNIST, "noise_multiplier": 0.7}, epochs=1)
    assert compute_epsilon(**MNIST, epochs=1) == ledger_epsilon([row(steps=235)], DELTA)


def test_privacy_spent_states_what_ran():
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
