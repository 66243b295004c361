"""The ledger of an optimizer: the compiled counter against the one in Python, and whose it is."""

import keras
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    rule,
    run_state_machine_as_test,
)

from keras_adaclip.accounting import Ledger, LedgerRow, Sampling
from keras_adaclip.optimizers.state import Account

ROWS = {
    "poisson": (Sampling.POISSON, 4, 10),
    "shuffle": (Sampling.SHUFFLE, 4, 10),
    "stream": (Sampling.STREAM, 4, 0),
    "pass": (Sampling.PASS, 4, 0),
}
NOISES = (0.5, 1.0, 1.1)


def new():
    def add_variable(name, value):
        return keras.Variable(value, dtype=str(value.dtype), trainable=False, name=name)

    state = Account()
    state.build(add_variable, lambda: None)
    return state


def fresh_row(kind="poisson", noise_multiplier=1.0):
    return LedgerRow.open(*ROWS[kind], noise_multiplier)


def ran(num_steps, kind="poisson", noise_multiplier=1.0, ledger=None):
    ledger = new() if ledger is None else ledger
    ledger.open(fresh_row(kind, noise_multiplier))
    for _ in range(num_steps):
        ledger.count_step()
    return ledger


@given(
    segments=st.lists(
        st.tuples(st.sampled_from(list(ROWS)), st.sampled_from(NOISES), st.integers(0, 12)),
        max_size=8,
    )
)
def test_variables_count_as_the_ledger_does(segments):
    """Any sequence of fits: the same rows, the running one last."""
    variables, ledger = new(), Ledger()
    for kind, noise_multiplier, num_steps in segments:
        ran(num_steps, kind, noise_multiplier, variables)
        ledger = ledger.append(fresh_row(kind, noise_multiplier)).begin_segment().advance(num_steps)
    assert variables.ledger.owned_by(0) == ledger
    assert variables.ledger.steps == ledger.steps == sum(steps for *_, steps in segments)


def test_steps_before_any_row_is_opened_count_as_full_releases():
    ledger = new()
    assert ledger.ledger == Ledger()
    for _ in range(2):
        ledger.count_step()
    (row,) = ledger.ledger
    assert (row.sampling, row.steps, row.releases) == (Sampling.STREAM, 2, 2)
    assert row.noise_multiplier == 0.0


def test_the_counter_is_right_where_a_release_lasts_as_long_as_integers_reach():
    ledger = ran(0, "pass")
    row = ledger.current_row()
    assert row.steps_per_release == 2**31 - 1
    for _ in range(3):
        ledger.count_step()
    assert ledger.current_row() == row.advance(3)


class Ledgers(RuleBasedStateMachine):
    """Ledgers that train, save, load, fail, fork and are merged, in any order.

    True steps are sets of tokens: a ledger counts those in its past, each once.
    """

    states = Bundle("states")
    saved = Bundle("saved")

    @initialize(target=states)
    def begin(self):
        return self.added(new(), set())

    def added(self, ledger, past):
        return {"ledger": ledger, "past": past}

    @rule(target=states)
    def begin_another(self):
        return self.added(new(), set())

    @rule(
        state=states,
        kind=st.sampled_from(list(ROWS)),
        noise=st.sampled_from(NOISES),
        num_steps=st.integers(0, 5),
    )
    def train(self, state, kind, noise, num_steps):
        ran(num_steps, kind, noise, state["ledger"])
        state["past"] |= {object() for _ in range(num_steps)}
        self.check(state)

    @rule(state=states)
    def end_of_fit(self, state):
        state["ledger"].close()
        self.check(state)

    @rule(target=saved, state=states, num_steps=st.integers(1, 3), is_earlier=st.booleans())
    def save_and_fail(self, state, num_steps, is_earlier):
        """As Keras for JAX: the variable has the value from before the steps that failed.

        A callback has saved the weights meanwhile, so the steps count.
        """
        ledger = state["ledger"]
        values = [np.array(keras.ops.convert_to_numpy(ledger.variable))]
        ledger.open(fresh_row())
        values.append(np.array(keras.ops.convert_to_numpy(ledger.variable)))
        for _ in range(num_steps):
            ledger.count_step()
            state["past"].add(object())
        saved = ledger.ledger
        ledger.variable.assign(values[0 if is_earlier else 1])
        self.check(state)
        return saved, set(state["past"])

    @rule(target=saved, state=states)
    def save(self, state):
        return Ledger.from_array(state["ledger"].ledger.to_array(8)), set(state["past"])

    @rule(state=states, saved=saved)
    def load(self, state, saved):
        ledger, past = saved
        before = state["ledger"].ledger
        state["ledger"].include(ledger)
        state["past"] |= past
        assert before.is_covered_by(state["ledger"].ledger)
        self.check(state)

    @rule(target=states, saved=saved)
    def resume_in_another_process(self, saved):
        ledger, past = saved
        another = new()
        another.include(ledger)
        return self.added(another, set(past))

    @rule(first=states, second=states)
    def share_weights(self, first, second):
        first["ledger"].include(second["ledger"].ledger)
        first["past"] |= second["past"]
        self.check(first)

    @rule(target=states, state=states, num_steps=st.integers(0, 3))
    def fork(self, state, num_steps):
        """Both processes go on between two runs."""
        state["ledger"].close()
        child = new()
        child.variable.assign(state["ledger"].variable)
        vars(child).update({k: v for k, v in vars(state["ledger"]).items() if k != "variable"})
        child._process = -1
        forked = self.added(child, set(state["past"]))
        for _ in range(num_steps):
            child.count_step()
            forked["past"].add(object())
        self.check(forked)
        return forked

    def check(self, state):
        assert state["ledger"].ledger.steps == len(state["past"])


def test_no_sequence_of_events_loses_a_step_or_counts_it_twice():
    run_state_machine_as_test(
        Ledgers, settings=settings(max_examples=60, stateful_step_count=20, deadline=None)
    )


def test_a_fork_in_the_middle_of_a_fit_counts_its_own_steps_under_a_number_of_its_own():
    ledger = ran(3)
    before = ledger.ledger
    for _ in range(2):
        ledger.count_step()
    ledger._process = -1
    ledger.renew_after_fork()
    ledger.count_step()
    owners = {row.owner: row.steps for row in ledger.ledger.rows}
    assert sorted(owners.values()) == [3, 3]
    assert owners[before.rows[0].owner] == 3
    # What the other process counts from there on comes on top.
    other = Ledger((before.rows[0].advance(5),))
    assert ledger.ledger.merge(other).steps == other.merge(ledger.ledger).steps == 3 + 3 + 5


def test_a_replaced_ledger_counts_later_steps_on_top_of_the_new_one():
    ledger, cost = ran(3), Ledger((fresh_row("stream", 2.0).advance(7),))
    ledger.include(Ledger(promised_delta=1e-6))
    ledger.replace(cost)
    assert ledger.ledger.promised_delta == 1e-6
    assert list(ledger.ledger) == list(cost)
    assert ledger.ledger.merge(ledger.ledger).steps == 7
    assert ran(2, ledger=ledger).ledger.steps == 9
