"""The ledger in variables: the compiled counter against the one in Python, and whose it is."""

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keras import ops

from keras_adaclip.accounting import Ledger, LedgerRow, Sampling
from keras_adaclip.optimizers import MAX_ROWS, Run
from keras_adaclip.optimizers.ledger_state import LedgerState

ROWS = {
    "poisson": (Sampling.POISSON, 4, 10, None),
    "shuffle": (Sampling.SHUFFLE, 4, 10, None),
    "stream": (Sampling.STREAM, 4, 0, None),
    "pass": (Sampling.PASS, 4, 0, 5),
    "endless pass": (Sampling.PASS, 4, 0, None),
}


def new():
    def add_variable(name, value):
        return keras.Variable(value, dtype=str(value.dtype), trainable=False, name=name)

    return LedgerState(add_variable)


def fresh_row(kind="poisson", noise_multiplier=1.0):
    *sizes, steps_per_release = ROWS[kind]
    return LedgerRow.open(*sizes, noise_multiplier, steps_per_release=steps_per_release)


def ran(num_steps, kind="poisson", noise_multiplier=1.0, ledger=None):
    ledger = new() if ledger is None else ledger
    ledger.open(fresh_row(kind, noise_multiplier))
    for _ in range(num_steps):
        ledger.count_step()
    return ledger


@given(
    segments=st.lists(
        st.tuples(
            st.sampled_from(list(ROWS)), st.sampled_from([0.5, 1.0, 1.1]), st.integers(0, 12)
        ),
        max_size=8,
    )
)
def test_variables_count_as_the_ledger_does(segments):
    """Any sequence of fits: the same rows, the running one last."""
    variables, ledger = new(), Ledger()
    for kind, noise_multiplier, num_steps in segments:
        ran(num_steps, kind, noise_multiplier, variables)
        ledger = ledger.append(fresh_row(kind, noise_multiplier)).begin_segment().advance(num_steps)
    assert variables.read() == ledger
    assert variables.read().steps == ledger.steps == sum(steps for *_, steps in segments)


def test_steps_before_any_row_is_opened_count_as_full_releases():
    ledger = new()
    assert ledger.read() == Ledger()
    for _ in range(2):
        ledger.count_step()
    (row,) = ledger.read()
    assert (row.sampling, row.steps, row.releases) == (Sampling.STREAM, 2, 2)
    assert row.noise_multiplier == 0.0


def test_the_counter_is_right_where_a_release_lasts_as_long_as_integers_reach():
    ledger = ran(0, "endless pass")
    row = ledger.current_row()
    assert row.steps_per_release == 2**31 - 1
    for _ in range(3):
        ledger.count_step()
    assert ledger.current_row() == row.advance(3)


def test_an_empty_run_and_an_earlier_state_add_nothing():
    ledger = ran(3)
    earlier = ledger.run
    ran(2, ledger=ledger)
    before = ledger.run
    for run in (Run(), new().run, earlier, Run(earlier.ledger, earlier.identity)):
        ledger.include(run)
    assert ledger.run == before
    assert ledger.read().steps == 5


def test_what_descends_from_oneself_is_not_added_to_it():
    first, second = ran(3), new()
    second.include(first.run)
    ran(2, ledger=second)
    for _ in range(2):
        first.include(second.run)
        assert first.read().steps == 5


@given(data=st.data())
def test_no_sequence_of_loading_lowers_a_ledger_or_misses_a_step(data):
    """Three ledgers train, save, and load each other's states in any order.

    True steps are sets of (ledger, number); a ledger must count at least those in its past.
    """
    ledgers = [new() for _ in range(3)]
    past = [set() for _ in range(3)]
    saved = []
    for _ in range(data.draw(st.integers(1, 12))):
        number = data.draw(st.integers(0, 2))
        ledger, before = ledgers[number], ledgers[number].read().steps
        action = data.draw(st.sampled_from(["train", "save", "load", "hand over"]))
        if action == "train":
            ran(1, ledger=ledger)
            past[number].add((number, len(past[number]), object()))
        elif action == "save":
            run = ledger.run
            saved.append((Run(run.ledger, run.identity), set(past[number])))
        elif action == "load" and saved:
            run, steps = data.draw(st.sampled_from(saved))
            ledger.include(run)
            past[number] |= steps
        elif action == "hand over":
            other = data.draw(st.integers(0, 2))
            ledger.include(ledgers[other].run)
            past[number] |= past[other]
        assert ledger.read().steps >= before
        assert ledger.read().steps >= len(past[number])


def test_more_mechanisms_than_rows_are_merged_and_no_step_is_lost():
    """A noise schedule leaves hundreds of mechanisms; below `MAX_ROWS` they are held exactly."""
    rows = [fresh_row(noise_multiplier=0.5 + n / 32).advance(2) for n in range(MAX_ROWS - 3)]
    run, ledger = Run(Ledger(tuple(rows)), (1, 2)), new()
    ledger.include(run)
    assert ledger.read() == run.ledger
    for number in range(MAX_ROWS - 3, MAX_ROWS + 3):
        ran(2, noise_multiplier=0.5 + number / 32, ledger=ledger)
        read = ledger.read()
        assert read.steps == 2 * (number + 1)
        assert len(read) == min(number + 1, MAX_ROWS)
        assert read.rows[-1].noise_multiplier == np.float32(0.5 + number / 32)


def test_a_run_is_read_back_from_the_saved_arrays_and_refused_from_others():
    ledger = ran(2, "pass", ledger=ran(3))
    values = {id(v): np.array(ops.convert_to_numpy(v.value)) for v in ledger.variables}
    again = ledger.run_from(values)
    assert (again.ledger, again.identity) == (ledger.read(), ledger.run.identity)
    values[id(ledger.variables[0])] = np.full(7, -3, np.int32)
    with pytest.raises(ValueError, match="-3"):
        ledger.run_from(values)
