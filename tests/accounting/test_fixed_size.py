"""Ledger rows of batches of a fixed size: what is stated of them, alone and among others."""

import pytest

from keras_adaclip.accounting import (
    LedgerRow,
    PrivacySpent,
    Sampling,
    compute_epsilon,
    ledger_epsilon,
)

DELTA = 1e-5


def row(sampling=Sampling.FIXED, batch=256, noise=1.0, steps=100):
    return LedgerRow.open(sampling, batch, 60_000, noise_multiplier=noise).advance(steps)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_ledger_says_what_its_plan_said(accountant):
    planned = compute_epsilon(1.0, 60_000, 256, steps=100, delta=DELTA, sampling="fixed")
    spent = PrivacySpent.from_ledger([row()], DELTA, accountant)
    assert spent.epsilon == planned
    assert (spent.accountant, spent.neighboring_relation) == ("rdp", "replace_one")


def test_among_others_each_step_is_a_full_release_under_zero_out():
    poisson = row(Sampling.POISSON)
    as_stream = row(Sampling.STREAM)
    mixed = ledger_epsilon([row(), poisson], DELTA)
    assert mixed == ledger_epsilon([as_stream, poisson], DELTA)
    spent = PrivacySpent.from_ledger([row(), poisson], DELTA)
    assert (spent.accountant, spent.neighboring_relation) == ("pld", "zero_out")


@pytest.mark.parametrize("noise", [2.0, 10.0])
def test_epsilon_grows_with_the_batch_up_to_a_full_release(noise):
    """The bound for sampling without replacement alone passes that of no sampling at all."""
    found = [
        ledger_epsilon(
            [LedgerRow.open(Sampling.FIXED, size, 1000, noise_multiplier=noise).advance(100)], DELTA
        )
        for size in (1, 10, 100, 300, 500, 700, 900, 990, 1000)
    ]
    assert found == sorted(found)
    full = LedgerRow.open(Sampling.STREAM, 1000, 1000, noise_multiplier=noise / 2).advance(100)
    assert found[-1] == pytest.approx(ledger_epsilon([full], DELTA, "rdp"), rel=1e-6)
