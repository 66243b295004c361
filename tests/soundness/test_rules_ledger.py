"""Rule 16: nothing that is loaded or compiled again makes the ledger forget."""

import copy
import os
import pickle

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.accounting import Ledger, LedgerRow, Sampling
from keras_adaclip.optimizers import MAX_ROWS, Run
from tests.soundness.setups import (
    dp_sgd,
    flat_weights,
    line_data,
    line_model,
    pure_noise_data,
    pure_noise_model,
    recorded_fit,
    spread,
)

DELTA = 1e-5


def train(model, num_steps, batch_size=5):
    x, y = line_data([1.0] * 50)
    model.fit(x, y, batch_size=batch_size, steps_per_epoch=num_steps, verbose=0)
    return model


def steps(model):
    return model.privacy_ledger.steps


def stored(optimizer):
    store = {}
    optimizer.save_own_variables(store)
    return store


def test_compiling_again_carries_the_ledger():
    model = train(line_model(dp_sgd()), 3)
    before = model.privacy_spent(DELTA).epsilon
    model.compile(optimizer=dp_sgd(noise_multiplier=2.0), loss="mse")
    assert model.privacy_spent(DELTA).epsilon == before
    train(model, 2)
    assert steps(model) == 5
    assert model.privacy_spent(DELTA).epsilon > before
    assert {row.noise_multiplier: row.steps for row in model.privacy_ledger} == {1.0: 3, 2.0: 2}


def test_compiling_again_carries_what_layers_that_are_gone_have_spent():
    layers = [keras.Input((1,)), keras.layers.Dense(1), keras.layers.Dense(1)]
    model = ka.PrivateSequential(layers)
    model.compile(optimizer=dp_sgd(), loss="mse")
    train(model, 3)
    model.pop()
    model.pop()
    model.add(keras.layers.Dense(1))
    model.compile(optimizer=dp_sgd(), loss="mse")
    assert steps(model) == 3
    assert steps(train(model, 2)) == 5


def test_a_file_that_claims_to_hold_another_run_loses_no_steps():
    row = LedgerRow.open(Sampling.SHUFFLE, 5, 50, 1.0)
    other = Run(Ledger((row.advance(100),)), (3, 4))
    own = Run(Ledger((row.advance(5),)), (1, 2))
    claim = Run(own.ledger, own.identity, {other.identity: other.ledger})
    loaded = own.with_included(claim.included_to_array())
    assert other.union_upward(loaded).ledger.steps == 105


def test_compiling_back_with_the_first_optimizer_counts_nothing_twice():
    first, second = dp_sgd(), dp_sgd()
    model = train(line_model(first), 3)
    for optimizer, expected in ((second, 5), (first, 7), (second, 9)):
        model.compile(optimizer=optimizer, loss="mse")
        assert steps(train(model, 2)) == expected


def test_loading_an_older_state_does_not_lower_the_ledger():
    model = train(line_model(dp_sgd()), 2)
    store = stored(model.optimizer)
    train(model, 3)
    before = model.privacy_spent(DELTA).epsilon
    for _ in range(2):
        model.optimizer.load_own_variables(store)
        assert steps(model) == 5
        assert model.privacy_spent(DELTA).epsilon == before
    assert int(model.optimizer.iterations) == 2
    assert steps(train(model, 1)) == 6


def test_a_loaded_model_starts_with_the_saved_ledger(tmp_path):
    model = train(line_model(dp_sgd()), 4)
    path = tmp_path / "model.keras"
    model.save(path)
    with keras.saving.custom_object_scope({"minus_output": model.loss}):
        loaded = keras.models.load_model(path)
    assert loaded.privacy_ledger == model.privacy_ledger
    assert loaded.optimizer.clip_norm == model.optimizer.clip_norm
    assert steps(train(loaded, 2)) == 6
    # Its own past, again: covered.
    loaded.load_weights(path)
    assert steps(loaded) == 6


def test_two_processes_that_go_on_from_one_checkpoint_are_added_up(tmp_path):
    """Both have 5 steps, of which the other knows 2: at least 8 are on the data."""
    model = train(line_model(dp_sgd()), 2)
    store = stored(model.optimizer)
    other = line_model(dp_sgd())
    other.optimizer.build(other.trainable_variables)
    other.optimizer.load_own_variables(store)
    train(model, 3)
    train(other, 3)
    assert (steps(model), steps(other)) == (5, 5)
    other.optimizer.load_own_variables(stored(model.optimizer))
    assert steps(other) >= 8


def test_another_models_state_is_counted_once():
    model = train(line_model(dp_sgd()), 2)
    other = train(line_model(dp_sgd()), 3)
    for _ in range(3):
        other.optimizer.load_own_variables(stored(model.optimizer))
        assert steps(other) == 5


def test_a_state_loaded_in_between_does_not_change_what_runs_and_is_counted():
    """As `BackupAndRestore` does: it loads when `fit` has already set up noise and ledger."""
    saved = pure_noise_model(dp_sgd(1.0, 0.5))
    recorded_fit(saved, *pure_noise_data(40), 4)
    store = stored(saved.optimizer)
    model = pure_noise_model(dp_sgd(1.0, 2.0))

    class Restore(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.optimizer.load_own_variables(store)

    x, y = pure_noise_data(40)
    (update,) = recorded_fit(model, x, y, 10, callbacks=[Restore()]).updates
    spread(update, 2.0 / 10)
    counted = {
        (row.noise_multiplier, row.expected_batch_size): row.steps for row in model.privacy_ledger
    }
    assert counted == {(0.5, 4): 1, (2.0, 10): 1}


def test_loading_draws_a_fresh_key():
    model = train(line_model(dp_sgd(seed=1)), 1)
    key = next(v for v in model.optimizer.variables if v.name == "noise_key")
    before = np.array(keras.ops.convert_to_numpy(key.value))
    model.optimizer.load_own_variables(stored(model.optimizer))
    after = np.array(keras.ops.convert_to_numpy(key.value))
    assert (before != after).any()
    assert after.any()


def other_shape(optimizer):
    model = line_model(optimizer, num_inputs=2)
    optimizer.build(model.trainable_variables)
    return stored(optimizer)


@pytest.mark.parametrize(
    ("make_store", "message"),
    [
        (lambda: other_shape(dp_sgd()), r"holds \d+ variables, this optimizer has \d+"),
        (
            lambda: other_shape(
                ka.optimizers.DPOptimizer(
                    keras.optimizers.SGD(1.0, momentum=0.5), noise_multiplier=1.0
                )
            ),
            "has shape .*, the saved one",
        ),
        (lambda: {"0": np.zeros(())}, "holds 1 variables"),
    ],
)
def test_a_state_that_does_not_fit_raises_and_changes_nothing(make_store, message):
    optimizer = ka.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0, momentum=0.5), noise_multiplier=1.0
    )
    model = train(line_model(optimizer), 2)
    before = stored(optimizer)
    with pytest.raises(ValueError, match=message):
        optimizer.load_own_variables(make_store())
    after = stored(optimizer)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    assert steps(model) == 2


def test_what_was_loaded_counts_where_the_next_step_fails(tmp_path):
    """Keras for JAX puts back the variables that it had before."""
    path = tmp_path / "model.weights.h5"
    train(line_model(dp_sgd()), 30).save_weights(path)
    model = line_model(dp_sgd())
    model.optimizer.build(model.trainable_variables)

    def fail(*args):
        raise KeyboardInterrupt

    class Load(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.load_weights(path)
                self.model.train_function = fail

    x, y = line_data([1.0] * 50)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, batch_size=5, steps_per_epoch=4, epochs=2, verbose=0, callbacks=[Load()])
    model.load_weights(path)
    assert steps(model) == 34


@pytest.mark.filterwarnings("ignore:Skipping variable loading")
def test_weights_of_a_model_without_an_optimizer_leave_its_state_alone(tmp_path):
    path = tmp_path / "model.weights.h5"
    keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)]).save_weights(path)
    model = train(line_model(dp_sgd()), 2)
    before = stored(model.optimizer)
    model.load_weights(path)
    for name, value in stored(model.optimizer).items():
        np.testing.assert_array_equal(value, before[name])
    assert steps(model) == 2


def test_load_weights_of_another_optimizer_raises(tmp_path):
    model = train(line_model(dp_sgd()), 2)
    path = tmp_path / "model.weights.h5"
    model.save_weights(path)
    other = train(line_model(dp_sgd("quantile", 0.5), start=3.0), 1, batch_size=10)
    before = steps(other)
    with pytest.raises(ValueError, match="variables, this"):
        other.load_weights(path)
    assert steps(other) >= before


def test_more_than_a_table_of_mechanisms_is_never_cheaper():
    """The noise grows, so that the first mechanism dominates what a merged row may say."""

    def row(number, sampling=ka.accounting.Sampling.STREAM):
        return ka.accounting.LedgerRow.open(sampling, 4, 8, 1.0 + number / 64).advance(1)

    exact = ka.accounting.Ledger(tuple(row(number) for number in range(1, MAX_ROWS)))
    model = line_model(dp_sgd())
    model.optimizer.include_run(Run(exact, (1, 2)))
    x, y = line_data([1.0] * 8)
    for number in range(MAX_ROWS, MAX_ROWS + 3):
        ran = row(number, ka.accounting.Sampling.POISSON)
        model.optimizer.noise_multiplier = ran.noise_multiplier
        model.fit(x, y, batch_size=4, steps_per_epoch=1, verbose=0)
        exact = exact.append(ran)
        assert steps(model) == number
        assert len(model.privacy_ledger) <= MAX_ROWS
    spent = model.privacy_spent(DELTA, "rdp").epsilon
    assert spent > ka.accounting.PrivacySpent.from_ledger(exact, DELTA, "rdp").epsilon
    before = model.privacy_ledger
    model.optimizer.load_own_variables(stored(model.optimizer))
    assert steps(model) == before.steps
    assert model.privacy_spent(DELTA, "rdp").epsilon == spent


def test_the_weights_of_the_optimizer_cannot_be_set():
    model = train(line_model(dp_sgd()), 1)
    with pytest.raises(NotImplementedError, match="hold its privacy ledger"):
        model.optimizer.set_weights([v.numpy() for v in model.optimizer.variables])


def test_a_refused_run_leaves_weights_and_ledger():
    model = train(line_model(dp_sgd("quantile", 0.5)), 1, batch_size=10)
    model.optimizer.noise_multiplier = 5.0
    before = flat_weights(model)
    with pytest.raises(ValueError, match="leaves nothing for the statistics"):
        train(model, 1, batch_size=10)
    np.testing.assert_array_equal(flat_weights(model), before)
    assert [row.noise_multiplier for row in model.privacy_ledger] == [0.5]


def go_on_as(process, monkeypatch):
    """What a process that was forked off sees, where forking is safe only on PyTorch."""
    monkeypatch.setattr(os, "getpid", lambda: process)


def test_a_process_that_was_forked_off_goes_on_under_another_identity(monkeypatch):
    model = train(line_model(dp_sgd(seed=3)), 4)
    before = model.optimizer.run
    go_on_as(-1, monkeypatch)
    ours = train(model, 3).optimizer.run
    assert (before.ledger.steps, ours.ledger.steps) == (4, 7)
    assert ours.identity != before.identity
    # What the process made that forked it off, or another that it forked off.
    row = before.ledger.rows[-1]
    other = Run(Ledger((*before.ledger.rows[:-1], row.advance(5))), before.identity)
    for one, two in ((ours, other), (other, ours)):
        assert one.union_upward(two).ledger.steps >= 4 + 3 + 5


@pytest.mark.parametrize(
    "kind", [copy.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))]
)
def test_copies_of_a_model_go_on_as_runs_of_their_own(kind):
    def trained(model, num_steps):
        x, y = pure_noise_data()
        model.fit(x, y, batch_size=4, steps_per_epoch=num_steps, verbose=0)
        return model

    model = trained(pure_noise_model(dp_sgd()), 4)
    runs = [trained(kind(model), num_steps).optimizer.run for num_steps in (3, 5)]
    assert runs[0].union_upward(runs[1]).ledger.steps >= 4 + 3 + 5


def test_a_process_that_is_forked_off_within_a_run_draws_noise_of_its_own(monkeypatch):
    model = pure_noise_model(dp_sgd(seed=3))
    keys = []

    class Fork(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            keys.append(keras.ops.convert_to_numpy(self.model.optimizer.secret_variables[0].value))
            if batch == 1:
                go_on_as(-1, monkeypatch)

    x, y = pure_noise_data()
    model.fit(x, y, batch_size=4, steps_per_epoch=4, verbose=0, callbacks=[Fork()])
    assert (keys[0] == keys[1]).all()
    assert (keys[2] == keys[3]).all()
    assert (keys[1] != keys[2]).any()
    # What is not known to be the other's counts as one's own: too much rather than too little.
    run = model.optimizer.run
    assert (run.ledger.steps, run.included) == (4, {})


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize("mode", ["int8", "int4", "float8"])
def test_layers_that_are_quantized_carry_the_ledger_on(mode):
    """Without a bias nothing is left of the variables that were trained."""
    model = train(line_model(dp_sgd()), 4)
    model.quantize(mode)
    inputs = keras.Input(model.input_shape[1:])
    layer = model.layers[-1]
    assert steps(ka.PrivateModel(inputs, layer(inputs))) == 4
