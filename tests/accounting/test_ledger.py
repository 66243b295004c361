"""Rows and the ledger: it only grows; epsilon never falls, however rows are merged and joined."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    PrivacySpent,
    RandomSelection,
    RunBounds,
    Sampling,
    Unit,
    ledger_epsilon,
)
from keras_adaclip.accounting.merging import merge_upward

DELTA = 1e-6
ROUNDING = 1e-9


def row(sampling=Sampling.POISSON, batch=256, examples=60_000, noise=1.0, steps=0, **keywords):
    return LedgerRow.open(sampling, batch, examples, noise, **keywords).advance(steps)


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
    assert Ledger.from_arrays(*Ledger((clients,)).to_arrays(4)).unit is Unit.CLIENT
    assert clients.as_stream().unit is Unit.CLIENT
    # A row that is about to run is refused when it is opened.
    assert Ledger((clients, row())).unit is Unit.CLIENT
    with pytest.raises(ValueError, match="do not add up"):
        Ledger((examples,)).union_upward(Ledger((clients,)))
    with pytest.raises(ValueError, match="cannot be merged"):
        merge_upward(examples, clients)


@given(ledger=LEDGERS)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_arrays_round_trip(ledger):
    integers, noise = ledger.to_arrays(max_rows=8)
    assert (integers.shape, integers.dtype) == ((8, 7), np.int32)
    assert (noise.shape, noise.dtype) == ((8,), np.float32)
    assert Ledger.from_arrays(integers, noise) == ledger


def test_arrays_of_the_wrong_shape_or_with_impossible_rows_are_refused():
    integers, noise = Ledger((row(steps=5),)).to_arrays(4)
    with pytest.raises(ValueError, match="must have the shapes"):
        Ledger.from_arrays(integers, noise[:3])
    integers[0, 0] = 0
    with pytest.raises(ValueError, match="0 is not a valid Sampling"):
        Ledger.from_arrays(integers, noise)


@given(first=ROWS, second=ROWS)
@settings(max_examples=150, derandomize=True, deadline=None)
def test_merging_two_rows_never_lowers_epsilon(first, second):
    merged = merge_upward(first, second)
    assert merged.steps == first.steps + second.steps
    assert merged.releases == first.releases + second.releases
    assert merged.free_steps == 0
    assert rdp([merged]) >= rdp([first, second]) * (1 - ROUNDING)


@given(ledger=LEDGERS, max_rows=st.integers(2, 4))
@settings(max_examples=100, derandomize=True, deadline=None)
def test_a_full_table_never_lowers_epsilon(ledger, max_rows):
    small = ledger.compact(max_rows)
    assert len(small) <= max_rows
    assert small.current == ledger.current
    assert (small.steps, small.releases) == (ledger.steps, ledger.releases)
    assert rdp(small) >= rdp(ledger) * (1 - ROUNDING)
    if len(ledger) <= max_rows:
        assert small == ledger


@given(ledger=LEDGERS, places=st.lists(st.integers(0, 6), min_size=1, max_size=3))
@settings(max_examples=50, derandomize=True, deadline=None)
def test_selected_runs_are_kept_in_a_full_table(ledger, places):
    """In the arrays of a file too, and whatever ran before and after."""
    kinds = (SELECTED, selected(2.0, "poisson"), selected(4.0, "logarithmic"))
    rows = list(ledger)
    for place, each in zip(places, kinds, strict=False):
        rows.insert(place, each)
    ledger = append_all(Ledger(), rows)
    for_selections = len(places) * SELECTED.num_table_rows
    for room in (for_selections + 2, for_selections + 9):
        loaded = Ledger.from_arrays(*ledger.to_arrays(room))
        assert rdp(loaded) >= rdp(ledger) * (1 - ROUNDING)
        assert loaded.steps == ledger.steps
        assert sum(each.selection is not None for each in loaded) == len(places)
    assert loaded == ledger
    assert PrivacySpent.from_ledger(loaded, DELTA).accountant == "rdp"


def test_selected_runs_that_do_not_fit_are_refused():
    ledger = append_all(Ledger(), [SELECTED, row(steps=1), row(noise=2.0, steps=1)])
    with pytest.raises(ValueError, match="selected runs take"):
        ledger.compact(SELECTED.num_table_rows + 1)
    with pytest.raises(ValueError, match="cannot be merged"):
        merge_upward(SELECTED, row(steps=1))


def test_another_search_with_the_same_settings_counts_again():
    ledger = Ledger((SELECTED,))
    twice = ledger.union_upward(ledger)
    assert (twice.steps, twice.releases) == (2 * SELECTED.steps, 2)
    assert rdp(twice) > rdp(ledger)
    assert ledger.union_upward(ledger, same_run=True) == ledger
    with pytest.raises(ValueError, match="No step can run"):
        ledger.advance(1)


@pytest.mark.parametrize(
    ("place", "value", "num_rows"),
    [(9, -1.0, None), (0, -1.0, None), (2, -1.0, None), (0, 0.0, -1)],
)
def test_a_damaged_selection_is_refused(place, value, num_rows):
    """A negative divergence, an unknown distribution, unknown samplings, a table cut short."""
    integers, noise = Ledger((SELECTED,)).to_arrays(SELECTED.num_table_rows)
    integers[1:].ravel()[2 * place : 2 * place + 2] = np.array([value]).view(np.int32)
    with pytest.raises(ValueError, match=r"damaged|divergences"):
        Ledger.from_arrays(integers[:num_rows], noise[:num_rows])


@pytest.mark.parametrize("least", [0.0, 1e-30])
def test_a_full_table_keeps_the_row_of_least_noise(least):
    rows = tuple(row(noise=noise, steps=1) for noise in (least, 2 * least, 1.0, 2.0))
    small = Ledger(rows).compact(3)
    assert small.rows[0].noise_multiplier == float(np.float32(least))
    assert rdp(small) >= rdp(rows)


def test_compact_takes_hundreds_of_rows_and_merges_the_nearest():
    """As a noise schedule leaves them: all differ, and the pairs that lose least are neighbours."""
    noises = [0.5 + number / 256 + (number % 7) / 4096 for number in range(520)]
    ledger = append_all(Ledger(), [row(Sampling.STREAM, noise=z, steps=235) for z in noises])
    small = ledger.compact(512)
    assert (len(small), small.steps) == (512, ledger.steps)
    merged = [each.noise_multiplier for each in small if each.steps > 235]
    assert min(merged) > np.median(noises)
    assert rdp(ledger) <= rdp(small) <= rdp(ledger) * (1 + 1e-3)


def test_compact_says_when_nothing_fits():
    rows = [row(noise=noise, steps=2 * 10**9) for noise in (1.0, 2.0, 3.0)]
    with pytest.raises(ValueError, match="ledger cannot be held in 2 rows"):
        Ledger(tuple(rows)).compact(2)
    with pytest.raises(ValueError, match="`max_rows` must be at least 2"):
        Ledger().to_arrays(1)


@given(ours=LEDGERS, theirs=LEDGERS, same_run=st.booleans())
@settings(max_examples=100, derandomize=True, deadline=None)
def test_a_loaded_ledger_never_lowers_epsilon(ours, theirs, same_run):
    joined = ours.union_upward(theirs, same_run=same_run)
    assert rdp(joined) >= max(rdp(ours), rdp(theirs)) * (1 - ROUNDING)
    if ours.current is not None:
        assert joined.current is not None
        assert joined.current.mechanism == ours.current.mechanism


@given(ledger=LEDGERS, further=st.lists(ROWS, max_size=3))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_a_checkpoint_of_the_same_run_changes_nothing(ledger, further):
    later = append_all(ledger, further)
    assert later.union_upward(ledger, same_run=True) == later
    assert later.union_upward(later, same_run=True) == later
    ahead = ledger.union_upward(later, same_run=True)
    assert rdp(ahead) == pytest.approx(rdp(later), rel=1e-12)


def test_another_run_is_added_even_if_it_looks_like_a_past_state():
    ours, theirs = Ledger((row(steps=100),)), Ledger((row(steps=50),))
    assert ours.union_upward(theirs).releases == 150
    assert ours.union_upward(theirs, same_run=True).releases == 100


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


def test_advance_refuses_to_pass_int32():
    with pytest.raises(ValueError, match="Argument `steps` must lie between 0 and 2147483647"):
        row().advance(2**31 - 1).advance(1)


def test_noise_is_kept_as_the_float32_that_runs():
    assert row(noise=1.1).noise_multiplier == float(np.float32(1.1)) != 1.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sampling": 0}, "0 is not a valid Sampling"),
        ({"expected_batch_size": 60_001}, "`expected_batch_size` must not exceed `num_examples`"),
        ({"num_examples": 0}, "Argument `num_examples` must be known for sampling='poisson'"),
        ({"steps_per_release": 2}, "Argument `steps_per_release` must be 1"),
        ({"steps": 3, "releases": 4}, "Argument `releases` must lie between 1 and `steps`"),
        ({"steps": 3, "releases": 0}, "Argument `releases` must lie between 1 and `steps`"),
        ({"steps_in_release": 2}, "`steps_in_release` must not exceed `steps_per_release`"),
        ({"max_batch_size": 300}, "`max_batch_size` must be 0 for sampling='poisson'"),
        ({"sampling": Sampling.TRUNCATED_POISSON}, "`max_batch_size` must be at least `expected"),
        (
            {"sampling": Sampling.TRUNCATED_POISSON, "max_batch_size": 60_000},
            "below `num_examples`",
        ),
        ({"noise_multiplier": 1e39}, "Argument `noise_multiplier` must fit float32"),
    ],
)
def test_impossible_rows_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(row(), **changes)


def test_only_a_pass_takes_its_length():
    with pytest.raises(ValueError, match="`steps_per_release` is for sampling='pass' only"):
        row(Sampling.SHUFFLE, steps_per_release=9)
