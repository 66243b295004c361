"""The ledger: it only grows, and epsilon never falls, however rows are merged and joined."""

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
    ledger_epsilon,
)
from keras_adaclip.accounting.ledger import merge_upward

DELTA = 1e-6
ROUNDING = 1e-9


def row(sampling=Sampling.POISSON, batch=256, examples=60_000, noise=1.0, steps=0, **keywords):
    return LedgerRow.open(sampling, batch, examples, noise_multiplier=noise, **keywords).advance(
        steps
    )


# Few values, so that what they cost is computed once.
ROWS = st.builds(
    row,
    sampling=st.sampled_from(Sampling),
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


def test_rows_without_steps_are_dropped_except_the_running_one():
    ledger = Ledger((row(noise=1.0), row(noise=2.0, steps=3), row(noise=3.0)))
    assert [each.noise_multiplier for each in ledger] == [2.0, 3.0]


def test_an_empty_ledger():
    assert Ledger().current is None
    assert Ledger().steps == 0
    assert Ledger().begin_segment() == Ledger()
    assert Ledger.from_arrays(*Ledger().to_arrays(4)) == Ledger()
    with pytest.raises(ValueError, match="empty `Ledger` has no row"):
        Ledger().advance(1)


def test_begin_segment_touches_the_running_row_alone():
    shuffled = row(Sampling.SHUFFLE, 4, 10, steps=1)
    ledger = Ledger().append(shuffled).append(row(Sampling.SHUFFLE, 4, 12, steps=1))
    again = ledger.begin_segment()
    assert again.rows[0] == ledger.rows[0]
    assert again.advance(1).releases == 3
    assert ledger.advance(1).releases == 2


@given(ledger=LEDGERS)
@settings(max_examples=60, derandomize=True, deadline=None)
def test_arrays_round_trip(ledger):
    integers, noise = ledger.to_arrays(max_rows=8)
    assert integers.shape == (8, 7)
    assert integers.dtype == np.int32
    assert noise.shape == (8,)
    assert noise.dtype == np.float32
    assert Ledger.from_arrays(integers, noise) == ledger


def test_arrays_of_the_wrong_shape_are_refused():
    integers, noise = Ledger().to_arrays(4)
    with pytest.raises(ValueError, match="must have the shapes"):
        Ledger.from_arrays(integers, noise[:3])
    with pytest.raises(ValueError, match="must have the shapes"):
        Ledger.from_arrays(integers[:, :6], noise)


def test_a_corrupt_table_is_refused_rather_than_forgotten():
    integers, noise = Ledger((row(steps=5),)).to_arrays(4)
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


@given(first=ROWS, second=ROWS)
@settings(max_examples=6, derandomize=True, deadline=None)
def test_merging_two_rows_never_lowers_epsilon_by_pld(first, second):
    before = ledger_epsilon([first, second], DELTA, "pld")
    assert ledger_epsilon([merge_upward(first, second)], DELTA, "pld") >= before * (1 - 1e-6)


def test_merging_takes_the_least_noise_and_the_greater_probability():
    merged = merge_upward(
        row(batch=32, examples=1000, noise=1.0, steps=3),
        row(batch=64, examples=4000, noise=0.5, steps=4),
    )
    assert merged.mechanism == row(batch=32, examples=1000, noise=0.5).mechanism
    # 1/3 and its neighbour agree as floats divided, not as fractions.
    close = merge_upward(
        row(batch=715_827_882, examples=2**31 - 1, steps=1), row(batch=1, examples=3, steps=1)
    )
    assert (close.expected_batch_size, close.num_examples) == (1, 3)


@pytest.mark.parametrize("kind", [Sampling.SHUFFLE, Sampling.STREAM, Sampling.PASS])
def test_rows_of_different_kinds_become_full_releases(kind):
    merged = merge_upward(row(steps=3), row(kind, steps=500))
    assert merged.sampling is Sampling.STREAM
    assert merged.steps_per_release == 1


def test_equal_mechanisms_add_up_without_loss():
    shuffled = row(Sampling.SHUFFLE, 4, 10)
    merged = merge_upward(shuffled.advance(4), shuffled.advance(5))
    assert merged.mechanism == shuffled.mechanism
    assert (merged.steps, merged.releases, merged.free_steps) == (9, 4, 0)


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


@given(
    ledger=LEDGERS,
    places=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    more=st.integers(2, 4),
)
@settings(max_examples=50, derandomize=True, deadline=None)
def test_selected_runs_are_kept_in_a_full_table(ledger, places, more):
    """In the arrays of a file too, and whatever ran before and after."""
    kinds = (SELECTED, selected(2.0, "poisson"), selected(4.0, "logarithmic"))
    rows = list(ledger)
    for place, each in zip(places, kinds, strict=False):
        rows.insert(place, each)
    ledger = append_all(Ledger(), rows)
    room = max(2, sum(each.num_table_rows for each in ledger))
    assert Ledger.from_arrays(*ledger.to_arrays(room)) == ledger
    loaded = Ledger.from_arrays(*ledger.to_arrays(SELECTED.num_table_rows + more))
    assert rdp(loaded) >= rdp(ledger) * (1 - ROUNDING)
    assert rdp(loaded) >= rdp([SELECTED])
    assert loaded.steps == ledger.steps
    assert PrivacySpent.from_ledger(loaded, DELTA).accountant == "rdp"
    if room > SELECTED.num_table_rows + 1:
        with pytest.raises(ValueError, match="selected runs take"):
            ledger.compact(SELECTED.num_table_rows + 1)


def test_another_search_with_the_same_settings_counts_again():
    ledger = Ledger((SELECTED,))
    twice = ledger.union_upward(ledger)
    assert (twice.steps, twice.releases) == (2 * SELECTED.steps, 2)
    assert rdp(twice) > rdp(ledger)
    assert ledger.union_upward(ledger, same_run=True) == ledger
    with pytest.raises(ValueError, match="No step can run"):
        ledger.advance(1)


@pytest.mark.parametrize("damage", ["cut", "negative", "law", "kinds"])
def test_a_damaged_selection_is_refused(damage):
    integers, noise = Ledger((SELECTED,)).to_arrays(SELECTED.num_table_rows)
    values = np.ascontiguousarray(integers[1:]).ravel()[:318].view("<f8").copy()
    values[{"cut": 9, "negative": 9, "law": 0, "kinds": 2}[damage]] = -1.0
    integers[1:].ravel()[:318] = values.view(np.int32)
    length = len(noise) - 1 if damage == "cut" else None
    with pytest.raises(ValueError, match=r"damaged|divergences"):
        Ledger.from_arrays(integers[:length], noise[:length])


def test_compact_counts_a_row_without_noise_as_infinite():
    rows = (row(noise=0.0, steps=1), row(noise=1.0, steps=1), row(noise=2.0, steps=1))
    assert rdp(Ledger(rows).compact(2)) == np.inf


def test_compact_survives_hardly_any_noise():
    rows = tuple(row(noise=noise, steps=1) for noise in (1e-30, 2e-30, 1.0, 2.0))
    kept = Ledger(rows).compact(3)
    assert len(kept) == 3
    assert kept.rows[0].noise_multiplier == float(np.float32(1e-30))


def test_compact_takes_hundreds_of_rows_and_merges_the_nearest():
    """As a noise schedule leaves them: all differ, and the pairs that lose least are neighbours."""
    noises = [0.5 + number / 256 + (number % 7) / 4096 for number in range(520)]
    ledger = append_all(Ledger(), [row(noise=noise, steps=235) for noise in noises])
    small = ledger.compact(512)
    assert len(small) == 512
    assert (small.steps, small.releases) == (ledger.steps, ledger.releases)
    assert small.current == ledger.current
    kept = {each.noise_multiplier: each.steps for each in small}
    assert set(kept) < {each.noise_multiplier for each in ledger}
    merged = [noise for noise, count in kept.items() if count > 235]
    assert min(merged) > np.median(noises)
    assert sum(each.releases / each.noise_multiplier**2 for each in small) == pytest.approx(
        sum(each.releases / each.noise_multiplier**2 for each in ledger), rel=1e-3
    )


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
    assert theirs.is_covered_by(ours)
    assert ours.union_upward(theirs).releases == 150
    assert ours.union_upward(theirs, same_run=True).releases == 100


def test_runs_that_went_separate_ways_are_added():
    common = row(steps=10)
    ours = Ledger((common,)).append(row(noise=2.0, steps=5))
    theirs = Ledger((common,)).append(row(noise=3.0, steps=5))
    assert not ours.is_covered_by(theirs)
    assert ours.union_upward(theirs, same_run=True).releases == 30


def test_coverage_looks_at_releases_too():
    one_pass = row(Sampling.SHUFFLE, 4, 10, steps=3)
    three_passes = row(Sampling.SHUFFLE, 4, 10)
    for _ in range(3):
        three_passes = three_passes.begin_segment().advance(1)
    assert one_pass.steps == three_passes.steps
    assert Ledger((one_pass,)).is_covered_by(Ledger((three_passes,)))
    assert not Ledger((three_passes,)).is_covered_by(Ledger((one_pass,)))


def test_a_fresh_process_takes_over_what_it_loads():
    saved = Ledger((row(Sampling.SHUFFLE, 4, 10, steps=4),))
    assert Ledger().union_upward(saved).releases == 2
    running = Ledger((row(noise=2.0),))
    joined = running.union_upward(saved, same_run=True)
    assert joined.steps == 4
    assert joined.current == running.current


def test_epsilon_ignores_order_and_splitting():
    parts = [row(steps=3), row(noise=2.0, steps=4), row(steps=5)]
    whole = [row(noise=2.0, steps=4), row(steps=8)]
    assert rdp(parts) == rdp(whole)
    assert rdp(parts) == pytest.approx(rdp(parts[::-1]), rel=1e-12)


def test_rows_are_values():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Ledger().rows = ()
    assert hash(Ledger((row(steps=1),))) == hash(Ledger((row(steps=1),)))
