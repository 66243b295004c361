"""What each run of a search may spend at most: the largest divergence at every order."""

import numpy as np
import pytest

from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    RandomSelection,
    RunBounds,
    Sampling,
    Unit,
    events,
    ledger_epsilon,
)
from keras_adaclip.accounting.accountants import composed_divergences

DELTA = 1e-5


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


def test_a_plan_without_noise_has_no_epsilon():
    bounds = RunBounds((ledger(1.0, 1), ledger(0.0, 1)))
    assert bounds.epsilon(DELTA) == bounds.selection_epsilon(RandomSelection(5), DELTA) == np.inf


def test_wrong_plans():
    with pytest.raises(ValueError, match="at least one `Ledger`"):
        RunBounds(())
    with pytest.raises(ValueError, match="cannot hold steps about"):
        RunBounds((ledger(1.0, 1), ledger(1.0, 1, unit=Unit.CLIENT)))
