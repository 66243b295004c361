"""Rule 16: nothing that is loaded or compiled again makes the ledger forget."""

import os

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.accounting import Ledger
from tests.soundness import setups

DELTA = 1e-5


def train(model, num_steps, batch_size=5):
    x, y = setups.line_data([1.0] * 50)
    model.fit(x, y, batch_size=batch_size, steps_per_epoch=num_steps, verbose=0)
    return model


def steps(model):
    return model.privacy_ledger.steps


def stored(optimizer):
    store = {}
    optimizer.save_own_variables(store)
    return store


def momentum():
    return ka.optimizers.DPOptimizer(keras.optimizers.SGD(1.0, momentum=0.5), noise_multiplier=1.0)


def test_compiling_again_carries_what_layers_that_are_gone_have_spent():
    model = train(setups.line_model(setups.dp_sgd()), 3)
    model.pop()
    model.add(keras.layers.Dense(1))
    model.compile(optimizer=setups.dp_sgd(), loss="mse")
    assert steps(model) == 3
    assert steps(train(model, 2)) == 5


def test_compiling_again_and_back_counts_every_step_once():
    first, second = setups.dp_sgd(), setups.dp_sgd(noise_multiplier=2.0)
    model = train(setups.line_model(first), 3)
    for optimizer, expected in ((second, (3, 2)), (first, (5, 2)), (second, (5, 4))):
        before = model.privacy_spent(DELTA).epsilon
        model.compile(optimizer=optimizer, loss="mse")
        assert model.privacy_spent(DELTA).epsilon == pytest.approx(before, rel=1e-9)
        train(model, 2)
        assert model.privacy_spent(DELTA).epsilon > before
        assert dict(setups.steps_and_noise(model)) == {1.0: expected[0], 2.0: expected[1]}


def test_two_processes_that_go_on_from_one_checkpoint_are_added_up():
    """Both have 5 steps, and 2 of them in common."""
    model = train(setups.line_model(setups.dp_sgd()), 2)
    other = setups.line_model(setups.dp_sgd())
    other.optimizer.build(other.trainable_variables)
    other.optimizer.load_own_variables(stored(model.optimizer))
    train(model, 3)
    train(other, 3)
    assert (steps(model), steps(other)) == (5, 5)
    counted = []
    for _ in range(2):
        other.optimizer.load_own_variables(stored(model.optimizer))
        counted.append(steps(other))
    assert counted == [8, 8]


def test_a_state_loaded_in_between_does_not_change_what_runs_and_is_counted():
    """As `BackupAndRestore` does: it loads when `fit` has already set up noise and ledger."""
    saved = setups.pure_noise_model(setups.dp_sgd(1.0, 0.5))
    setups.recorded_fit(saved, *setups.pure_noise_data(40), 4)
    store = stored(saved.optimizer)
    model = setups.pure_noise_model(setups.dp_sgd(1.0, 2.0))

    class Restore(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.optimizer.load_own_variables(store)

    x, y = setups.pure_noise_data(40)
    (update,) = setups.recorded_fit(model, x, y, 10, callbacks=[Restore()]).updates
    setups.spread(update, 2.0 / 10)
    assert {row.expected_batch_size for row in model.privacy_ledger} == {4, 10}
    assert set(setups.steps_and_noise(model)) == {(0.5, 1), (2.0, 1)}


def test_loading_draws_a_fresh_key():
    optimizer = setups.dp_sgd(seed=1)
    optimizer.build(setups.line_model(optimizer).trainable_variables)
    before = setups.key_of(optimizer)
    optimizer.load_own_variables(stored(optimizer))
    assert setups.key_of(optimizer) not in (before, bytes(8))


@pytest.mark.parametrize(
    ("make_optimizer", "message"),
    [
        (setups.dp_sgd, r"holds \d+ variables, this optimizer has"),
        (momentum, "has shape .*, the saved"),
    ],
)
def test_a_state_that_does_not_fit_raises_and_changes_nothing(make_optimizer, message):
    model = train(setups.line_model(momentum()), 2)
    before = stored(model.optimizer)
    other = make_optimizer()
    other.build(setups.line_model(other, num_inputs=2).trainable_variables)
    with pytest.raises(ValueError, match=message):
        model.optimizer.load_own_variables(stored(other))
    for name, value in stored(model.optimizer).items():
        np.testing.assert_array_equal(value, before[name])
    assert steps(model) == 2


class GoBack(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.keys = []

    def on_epoch_end(self, epoch, logs=None):
        variables = self.model.optimizer.variables
        self.keys.append(setups.key_of(self.model.optimizer))
        if epoch == 0:
            self.values = [np.array(keras.ops.convert_to_numpy(each)) for each in variables]
        elif epoch == 1:
            for variable, value in zip(variables, self.values, strict=True):
                variable.assign(value)


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_a_callback_that_sets_the_optimizer_back_frees_no_step_and_repeats_no_noise(sampling):
    model, back = setups.line_model(setups.dp_sgd(seed=3)), GoBack()
    x, y = setups.line_data([1.0] * 10)
    options = {"batch_size": 5, "epochs": 4, "verbose": 0, "sampling": sampling}
    model.fit(x, y, callbacks=[back], **options)
    assert steps(model) == 8
    assert model.privacy_ledger.releases >= (8 if sampling == "poisson" else 4)
    assert back.keys[0] == back.keys[1] != back.keys[2] == back.keys[3]


def test_the_weights_of_the_optimizer_cannot_be_set():
    with pytest.raises(NotImplementedError, match="hold its privacy ledger"):
        setups.dp_sgd().set_weights([])


def fail(*args):
    raise KeyboardInterrupt


class EvaluateAndFail(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            self.model.evaluate(*setups.line_data([1.0] * 10), verbose=0)
            self.model.train_function = fail


class FailLater(keras.callbacks.Callback):
    """The first step of the second epoch fails, after weights were kept or loaded."""

    def __init__(self, path=None):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        self.weights = self.model.get_weights()

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            if self.path:
                self.model.load_weights(self.path)
            self.model.train_function = fail


@pytest.mark.parametrize("kind", ["later", "evaluated", "loaded"])
def test_steps_before_an_evaluation_or_a_load_count_where_a_later_step_fails(kind, tmp_path):
    """Keras for JAX forgets its state when it evaluates, and puts back what was there before."""
    path = tmp_path / "model.weights.h5"
    train(setups.line_model(setups.dp_sgd()), 3).save_weights(path)
    model = train(setups.line_model(setups.dp_sgd()), 2)
    x, y = setups.line_data([1.0] * 50)
    failing = EvaluateAndFail() if kind == "evaluated" else FailLater(kind == "loaded" and path)
    options = {"batch_size": 5, "steps_per_epoch": 4, "epochs": 2, "verbose": 0}
    with pytest.raises(KeyboardInterrupt):
        model.fit(x, y, validation_data=(x, y), callbacks=[failing], **options)
    if kind == "loaded":
        model.load_weights(path)
    assert steps(model) == {"later": 6, "evaluated": 4, "loaded": 9}[kind]


def test_a_process_that_is_forked_off_within_a_run_draws_noise_of_its_own(monkeypatch):
    """As it sees itself, where forking is safe only on PyTorch."""
    model, keys = setups.line_model(setups.dp_sgd(seed=3)), []

    class Fork(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            keys.append(setups.key_of(self.model.optimizer))
            if batch == 1:
                monkeypatch.setattr(os, "getpid", lambda: -1)

    x, y = setups.line_data([1.0] * 12)
    model.fit(x, y, batch_size=4, steps_per_epoch=4, verbose=0, callbacks=[Fork()])
    assert keys[0] == keys[1] != keys[2] == keys[3]


def test_a_process_that_was_forked_off_counts_its_steps_as_another_owner(monkeypatch):
    model = train(setups.line_model(setups.dp_sgd(seed=3)), 4)
    before = model.privacy_ledger
    monkeypatch.setattr(os, "getpid", lambda: -1)
    ours = train(model, 3).privacy_ledger
    assert (before.steps, ours.steps) == (4, 7)
    # What the process made that forked it off, or another that it forked off.
    other = Ledger((before.rows[-1].advance(5),))
    assert ours.merge(other).steps == other.merge(ours).steps == 4 + 3 + 5


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
@pytest.mark.parametrize("mode", ["int8", "float8"])
def test_layers_that_are_quantized_carry_the_ledger_on(mode):
    """Without a bias nothing is left of the variables that were trained."""
    model = train(setups.line_model(setups.dp_sgd()), 4)
    model.quantize(mode)
    inputs = keras.Input(model.input_shape[1:])
    layer = model.layers[-1]
    assert steps(ka.PrivateModel(inputs, layer(inputs))) == 4
