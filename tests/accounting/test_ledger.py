"""Rows and the ledger: it only grows; epsilon never falls, however rows are merged and joined."""

import dataclasses
import functools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_adaclip.accounting import (
    Ledger,
    PrivacySpent,
    RandomSelection,
    RunBounds,
    Sampling,
    Unit,
    ledger_epsilon,
)
from tests.accounting.oracles import row

DELTA = 1e-6
ROUNDING = 1e-9


# Few values, so that what they cost is computed once.
ROWS = st.builds(
    row,
    # Truncated draws are always accounted by PLD, which takes longer: see `test_truncation.py`.
    sampling=st.sampled_from([kind for kind in Sampling if kind != Sampling.TRUNCATED_POISSON]),
    batch=st.sampled_from([32, 64]),
    examples=st.sampled_from([1000, 2000]),
    noise=st.sampled_from([0.75, 1.0, 1.1, 4.0]),
    steps=st.integers(0, 200),
)


def selected(noise=4.0, distribution="geometric", steps=200):
    """The row of a model that a search has released."""
    plan = Ledger((row(batch=32, examples=1000, noise=noise, steps=steps),))
    return RunBounds((plan,)).selected(RandomSelection(10, distribution)).rows[0]


SELECTED = selected()
LEDGERS = st.lists(ROWS, max_size=6).map(lambda rows: append_all(Ledger(), rows))


def append_all(ledger, rows):
    for each in rows:
        ledger = ledger.append(each)
    return ledger


def rdp(rows):
    return ledger_epsilon(rows, DELTA, "rdp")


def test_append_starts_a_row_or_goes_on_with_one():
    quiet, loud = row(noise=2.0), row(noise=1.0)
    ledger = Ledger().append(quiet).advance(3).append(loud).advance(4).append(quiet).advance(5)
    assert [(each.noise_multiplier, each.steps) for each in ledger] == [(1.0, 4), (2.0, 8)]
    assert ledger.current == ledger.rows[-1]
    assert (len(ledger), ledger.steps, ledger.releases) == (2, 12, 12)


def test_an_empty_ledger():
    assert Ledger().current is Ledger().unit is None
    assert (Ledger().steps, Ledger().begin_segment()) == (0, Ledger())
    with pytest.raises(ValueError, match="empty `Ledger` has no row"):
        Ledger().advance(1)


def test_a_ledger_is_about_examples_or_about_clients():
    examples = row(steps=10)
    clients = dataclasses.replace(examples, unit=Unit.CLIENT)
    assert Ledger.from_array(Ledger((clients,)).to_array()).unit is Unit.CLIENT
    assert clients.as_stream().unit is Unit.CLIENT
    # A row that is about to run is refused when it is opened.
    assert Ledger((clients, row())).unit is Unit.CLIENT
    with pytest.raises(ValueError, match="do not add up"):
        Ledger((examples,)).merge(Ledger((clients,)))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("sampling", 0, "0 is not a valid Sampling"),
        ("free_steps", 235, "`free_steps` must be below the number of steps of a release"),
        ("releases", 9, "`releases` must lie between 1 and `steps`"),
        ("steps", True, "`steps` must be an integer"),
        ("owner", 2**63, "`owner` must lie between"),
        ("noise_multiplier", math.nan, "must be finite"),
        ("noise_multiplier", 10**400, "too large"),
        ("elsewhere", 1, "has the entries"),
    ],
)
def test_impossible_rows_are_refused(field, value, message):
    document = json.loads(Ledger((row(Sampling.SHUFFLE, steps=5),)).to_json())
    document["rows"][0][field] = value
    with pytest.raises(ValueError, match=f"damaged.*{message}"):
        Ledger.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("found", "put", "message"),
    [
        ('"steps": 5, ', "", "has the entries"),
        ('"steps": 5, ', '"steps": 5, "steps": 1, ', "there twice"),
        ('"rows": ', '"rows": {}, "other": ', "has the entries"),
        ("null", 100_000 * "[", "damaged"),
    ],
)
def test_texts_that_were_never_written_are_refused(found, put, message):
    text = Ledger((row(Sampling.SHUFFLE, steps=5),)).to_json()
    assert found in text
    with pytest.raises(ValueError, match=message):
        Ledger.from_json(text.replace(found, put))
    with pytest.raises(ValueError, match="no list"):
        Ledger.from_json('{"rows": {}, "promised_delta": 1.0}')


def test_rows_of_one_mechanism_and_owner_add_up():
    once = dataclasses.replace(row(Sampling.STREAM, steps=5), owner=3)
    twice = Ledger((once, once))
    assert [each.steps for each in twice.rows] == [10]
    assert Ledger().merge(twice).steps == twice.merge(Ledger()).steps == twice.steps == 10


@given(ledger=LEDGERS, places=st.lists(st.integers(0, 6), max_size=3))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_ledgers_and_selected_runs_in_them_are_kept_in_an_array(ledger, places):
    kinds = (SELECTED, selected(2.0, "poisson"), selected(4.0, "logarithmic"))
    rows = list(ledger)
    for place, each in zip(places, kinds, strict=False):
        rows.insert(place, each)
    ledger = append_all(Ledger(), rows)
    array = ledger.to_array(1000)
    assert (len(array) % 1000, array.ndim, array.dtype) == (0, 1, np.uint8)
    loaded = Ledger.from_array(array)
    assert loaded == ledger
    assert sum(each.selection is not None for each in loaded) == len(places)
    assert not places or PrivacySpent.from_ledger(loaded, DELTA).accountant == "rdp"


def test_another_search_with_the_same_settings_counts_again():
    ledger, again = (Ledger((SELECTED,)).owned_by(owner) for owner in (1, 2))
    twice = ledger.merge(again)
    assert (len(twice), twice.steps, twice.releases) == (1, 2 * SELECTED.steps, 2)
    assert rdp(twice) > rdp(ledger)
    assert ledger.merge(ledger) == ledger
    with pytest.raises(ValueError, match="No step can run"):
        ledger.advance(1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("divergences", [-1.0] * 156),
        ("divergences", [1.0]),
        ("distribution", "normal"),
        ("samplings", [9]),
        ("mean_trials", -1.0),
    ],
)
def test_a_damaged_selection_is_refused(field, value):
    document = json.loads(Ledger((SELECTED,)).to_json())
    document["rows"][0]["selection"][field] = value
    with pytest.raises(ValueError, match="damaged"):
        Ledger.from_json(json.dumps(document))


OWNED = st.lists(st.tuples(LEDGERS, st.integers(0, 3)), max_size=3)


@given(owned=OWNED, others=OWNED)
@settings(max_examples=100, derandomize=True, deadline=None)
def test_a_merge_counts_all_steps_of_both_and_never_lowers_epsilon(owned, others):
    ours, theirs = (
        functools.reduce(Ledger.merge, (each.owned_by(owner) for each, owner in parts), Ledger())
        for parts in (owned, others)
    )
    joined = ours.merge(theirs)
    assert rdp(joined) >= max(rdp(ours), rdp(theirs)) * (1 - ROUNDING)
    assert ours.is_covered_by(joined)
    assert theirs.is_covered_by(joined)
    if ours.current is not None:
        assert joined.current.key == ours.current.key
    if all(row.owner for row in (*ours.rows, *theirs.rows)):
        assert joined.merge(theirs).merge(ours).steps == joined.steps
        assert set(theirs.merge(ours)) == set(joined)


def test_rows_of_one_owner_are_states_of_one_counter_and_plans_add_up():
    early, late = (Ledger((row(steps=steps),)) for steps in (50, 100))
    assert late.merge(early).releases == early.merge(late).releases == 150
    assert late.owned_by(7).merge(early.owned_by(7)).releases == 100
    assert early.owned_by(7).merge(late.owned_by(7)).releases == 100
    assert late.owned_by(7).merge(early.owned_by(8)).releases == 150
    # The rows of all owners of a mechanism are joined.
    joined = late.owned_by(7).merge(early.owned_by(8))
    assert (len(joined.rows), list(joined)) == (2, [row(steps=150)])
    # The later state of each counter, where neither ledger is the later one.
    passes = Ledger((row(Sampling.SHUFFLE, 4, 10, steps=1),)).begin_segment().advance(1).owned_by(7)
    joined = Ledger((row(Sampling.SHUFFLE, 4, 10, steps=3),)).owned_by(7).merge(passes)
    assert (joined.steps, joined.releases, joined.current.free_steps) == (3, 2, 0)


def test_coverage_looks_at_steps_and_at_releases():
    one_pass = row(Sampling.SHUFFLE, 4, 10, steps=3)
    three_passes = row(Sampling.SHUFFLE, 4, 10)
    for _ in range(3):
        three_passes = three_passes.begin_segment().advance(1)
    assert one_pass.steps == three_passes.steps
    for less, more in ((row(steps=50), row(steps=100)), (one_pass, three_passes)):
        assert Ledger((less,)).is_covered_by(Ledger((more,)))
        assert not Ledger((more,)).is_covered_by(Ledger((less,)))


# One row


def test_a_pass_is_one_release_and_a_segment_opens_another():
    shuffled = row(Sampling.SHUFFLE, 4, 10)
    assert [shuffled.advance(steps).releases for steps in (1, 3, 4, 6, 7)] == [1, 1, 2, 2, 3]
    assert shuffled.advance(1).begin_segment().advance(1).releases == 2
    assert shuffled.advance(1).free_steps == 2
    assert shuffled.begin_segment().advance(0).releases == 0
    unlimited = row(Sampling.PASS, examples=0).advance(10**9).begin_segment().advance(10**9)
    assert (unlimited.steps, unlimited.releases) == (2 * 10**9, 2)
