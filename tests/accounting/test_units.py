"""Steps about examples and steps about clients do not add up."""

import dataclasses

import pytest

from keras_adaclip.accounting import Ledger, LedgerRow, PrivacyReport, PrivacySpent, Sampling, Unit
from keras_adaclip.accounting.ledger import merge_upward

EXAMPLES = LedgerRow.open(Sampling.POISSON, 8, 40, noise_multiplier=1.0).advance(10)
CLIENTS = dataclasses.replace(EXAMPLES, unit=Unit.CLIENT)


def test_a_ledger_holds_one_kind():
    with pytest.raises(ValueError, match="do not add up"):
        Ledger((EXAMPLES, CLIENTS))
    with pytest.raises(ValueError, match="do not add up"):
        Ledger((EXAMPLES,)).union_upward(Ledger((CLIENTS,)))
    with pytest.raises(ValueError, match="cannot be merged"):
        merge_upward(EXAMPLES, CLIENTS)
    # A row that is about to run is refused where it is opened.
    idle = LedgerRow.open(Sampling.STREAM, 1, 0, noise_multiplier=1.0)
    assert Ledger((CLIENTS, idle)).unit is Unit.CLIENT
    assert Ledger().unit is None


def test_the_unit_is_part_of_the_mechanism_and_of_the_arrays():
    assert EXAMPLES.mechanism != CLIENTS.mechanism
    loaded = Ledger.from_arrays(*Ledger((CLIENTS,)).to_arrays(4))
    assert loaded == Ledger((CLIENTS,))
    assert CLIENTS.as_stream().unit is Unit.CLIENT
    assert LedgerRow.from_integers(EXAMPLES.to_integers(), 1.0) == EXAMPLES


def test_statements_name_it():
    assert PrivacySpent.from_ledger([CLIENTS], 1e-3).unit == "client"
    assert "A unit is one client." in str(PrivacySpent.from_ledger([CLIENTS], 1e-3))
    assert PrivacyReport.from_ledger([CLIENTS], 1e-3, group_sizes=()).unit == "client"
    assert PrivacyReport.from_ledger([EXAMPLES], 1e-3, group_sizes=()).unit == "example"
