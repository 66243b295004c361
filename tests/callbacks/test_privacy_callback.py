"""Epsilon in the logs, and the stop before the budget is passed."""

import csv
import sys
import types
from unittest import mock

import keras
import pytest

import keras_adaclip as ka
from keras_adaclip import backend
from keras_adaclip.callbacks import PassCounter, PrivacyCallback
from tests.models import helpers

X, Y = helpers.features(), helpers.labels()
DELTA = 1e-3


def planned(steps, noise_multiplier=1.0, batch_size=6, **options):
    return ka.accounting.compute_epsilon(
        noise_multiplier, 24, batch_size, steps=steps, delta=DELTA, **options
    )


def fit(model, callbacks, **options):
    options = {"batch_size": 6, "epochs": 1, **options}
    return helpers.quiet_fit(model, X, Y, callbacks=callbacks, **options)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_epsilon_is_in_the_history(accountant):
    history = fit(helpers.compiled(), PrivacyCallback(DELTA, accountant=accountant), epochs=2)
    expected = [planned(steps, accountant=accountant) for steps in (4, 8)]
    assert history["epsilon"] == pytest.approx(expected, rel=1e-6)


def test_epsilon_is_in_the_last_line_of_the_progress_bar(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    model = helpers.compiled(metrics=["accuracy"])
    model.fit(
        X,
        Y,
        batch_size=6,
        epochs=2,
        callbacks=[PrivacyCallback(DELTA)],
        validation_data=(X, Y),
        verbose=1,
    )
    lines = [line for line in capsys.readouterr().out.replace("\r", "\n").split("\n") if line]
    assert f"epsilon: {planned(8):.4f}" in lines[-1]
    for name in ("accuracy", "loss", "val_loss"):
        assert name in lines[-1]


@pytest.mark.parametrize("as_list", [False, True])
def test_every_callback_sees_epsilon_whatever_the_order(tmp_path, as_list):
    model = helpers.compiled()
    seen = {}
    callbacks = [
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.update(logs)),
        ka.callbacks.ClippingMonitor(),
        PrivacyCallback(DELTA),
    ]
    if as_list:
        callbacks = keras.callbacks.CallbackList(callbacks, add_history=True, model=model)
    fit(model, callbacks)
    with (tmp_path / "log.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert float(row["epsilon"]) == pytest.approx(planned(4), rel=1e-6)
    assert float(row["clip_norm"]) == 1.0
    assert seen["epsilon"] == pytest.approx(planned(4), rel=1e-6)


def test_the_default_delta_is_said(capsys):
    history = fit(helpers.compiled(), PrivacyCallback())
    assert f"delta = {24**-1.1:.3g} (24 examples" in capsys.readouterr().out
    expected = ka.accounting.compute_epsilon(1.0, 24, 6, steps=4, delta=24**-1.1)
    assert history["epsilon"] == pytest.approx([expected], rel=1e-6)


def test_a_large_delta_is_warned_of():
    with helpers.warns(r"`delta` should be well below 1 / num_examples = 0\.0417"):
        fit(helpers.compiled(), PrivacyCallback(0.1))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"delta": 1.0}, ValueError),
        ({"delta": "small"}, TypeError),
        ({"target_epsilon": 0.0}, ValueError),
        ({"accountant": "moments"}, ValueError),
    ],
)
def test_bad_arguments(arguments, error):
    with pytest.raises(error, match=next(iter(arguments))):
        PrivacyCallback(**arguments)


def just(steps, **options):
    """A target that `steps` steps reach and do not pass."""
    return planned(steps, **options) * (1 + 1e-9)


@pytest.mark.parametrize("steps", [4, 6])
def test_stops_before_the_step_that_would_pass_the_target(steps):
    model = helpers.compiled()
    history = fit(model, PrivacyCallback(DELTA, just(steps)), epochs=9)
    assert model.privacy_spent(DELTA).steps == steps
    assert history["epsilon"][-1] == pytest.approx(planned(steps), rel=1e-6)
    assert len(history["epsilon"]) == -(-steps // 4)
    # Nothing is left for another step.
    before = helpers.weights_of(model)
    with pytest.raises(ValueError, match=r"steps: 1.* would bring epsilon from .* past the target"):
        fit(model, PrivacyCallback(DELTA, just(steps)))
    helpers.assert_same_weights(model, before)
    assert model.privacy_spent(DELTA).steps == steps


def test_a_second_fit_goes_on_from_what_was_spent():
    model = helpers.compiled()
    callback = PrivacyCallback(DELTA, just(7))
    fit(model, callback)
    assert not model.stop_training
    fit(model, callback, epochs=5)
    assert model.privacy_spent(DELTA).steps == 7


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="Keras has it elsewhere only")
@pytest.mark.parametrize(
    ("steps_per_execution", "allowed", "expected"),
    # Epochs of 4 steps: executions of 3 and 1, or 2 and 2.
    [(3, 2, None), (3, 6, 4), (3, 7, 7), (2, 3, 2)],
)
def test_whole_executions_stay_within_the_target(steps_per_execution, allowed, expected):
    model = helpers.compiled(steps_per_execution=steps_per_execution)
    callback = PrivacyCallback(DELTA, just(allowed))
    if expected is None:
        with pytest.raises(ValueError, match=r"number of steps: 3\) would bring"):
            fit(model, callback)
    else:
        fit(model, callback, epochs=3)
    assert model.privacy_spent(DELTA).steps == (expected or 0)


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="Keras has it elsewhere only")
@pytest.mark.parametrize(("num_replicas", "expected"), [(1, 4), (2, 3)])
def test_over_replicas_an_execution_may_pass_the_end_of_an_epoch(
    num_replicas, expected, monkeypatch
):
    monkeypatch.setattr(backend, "num_replicas", lambda model: num_replicas)
    model = helpers.compiled(steps_per_execution=3)
    fit(model, PrivacyCallback(DELTA, just(5)), epochs=3)
    assert model.privacy_spent(DELTA).steps == expected


def test_a_target_below_the_first_step_trains_nothing():
    model = helpers.compiled()
    before = helpers.weights_of(model)
    with pytest.raises(ValueError, match=r"from 0 to .* past the target of 0\.001.*nothing was"):
        fit(model, PrivacyCallback(DELTA, 0.001))
    helpers.assert_same_weights(model, before)
    assert model.privacy_spent(DELTA).epsilon == 0.0


def passes(model):
    return sum(row.releases for row in model.privacy_ledger)


# Keras warns where an epoch wants more steps than are left of the pass, and begins the next one.
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    ("steps_per_epoch", "epochs", "steps"),
    # A pass is 4 steps; Keras goes on in the data where an epoch is shorter.
    [(None, 3, 12), (2, 4, 8), (3, 3, 7), (6, 2, 8)],
)
def test_shuffled_passes(steps_per_epoch, epochs, steps):
    model = helpers.compiled()
    history = fit(
        model,
        PrivacyCallback(DELTA),
        sampling="shuffle",
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
    )
    assert model.privacy_spent(DELTA).steps == steps
    assert passes(model) == -(-steps // 4)
    assert history["epsilon"][-1] == pytest.approx(planned(steps, sampling="shuffle"), rel=1e-6)


def test_shuffled_passes_stop_at_the_target():
    model = helpers.compiled()
    callback = PrivacyCallback(DELTA, just(8, sampling="shuffle"))
    fit(model, callback, sampling="shuffle", epochs=5)
    assert (model.privacy_spent(DELTA).steps, passes(model)) == (8, 2)


def test_an_exception_leaves_the_ledger_right():
    model = helpers.compiled()

    def interrupt(batch, logs):
        if batch == 2:
            raise KeyboardInterrupt

    stop = keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)
    with pytest.raises(KeyboardInterrupt):
        fit(model, [PrivacyCallback(DELTA), stop])
    assert model.privacy_spent(DELTA).steps == 3
    fit(model, [PrivacyCallback(DELTA)])
    assert model.privacy_spent(DELTA).steps == 7


def test_early_stopping_that_restores_weights_keeps_the_ledger():
    model = helpers.compiled(optimizer=keras.optimizers.SGD(5.0))
    early = keras.callbacks.EarlyStopping(
        "epsilon", mode="min", patience=2, restore_best_weights=True
    )
    history = fit(model, [early, PrivacyCallback(DELTA)], epochs=9)
    assert len(history["epsilon"]) == 3
    assert model.privacy_spent(DELTA).steps == 12


def test_what_is_loaded_during_training_leaves_fewer_steps(tmp_path):
    other = helpers.compiled()
    fit(other, None, epochs=1)
    other.save_weights(tmp_path / "other.weights.h5")

    class Load(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                self.model.load_weights(tmp_path / "other.weights.h5")

    model = helpers.compiled()
    history = fit(model, [PrivacyCallback(DELTA, target_epsilon=planned(12)), Load()], epochs=8)
    assert model.privacy_ledger.steps == 12
    assert history["epsilon"][-1] <= planned(12)


@pytest.mark.parametrize(
    ("way", "when"),
    [
        ("weights", "on_train_batch_begin"),
        ("tree", "on_train_batch_end"),
        ("run", "on_train_batch_begin"),
        ("shared", "on_train_batch_end"),
    ],
)
def test_what_is_loaded_within_an_epoch_counts_from_the_next_step_on(tmp_path, way, when):
    other = helpers.compiled()
    fit(other, None, epochs=4)
    path = tmp_path / "other.weights.h5"
    other.save_weights(path)

    class Load(keras.callbacks.Callback):
        def load(self, batch, logs=None):
            if batch != 1:
                return
            model = self.model  # On JAX that brings the variables up to date.
            if way == "weights":
                model.load_weights(path)
            elif way == "tree":
                model.set_state_tree(other.get_state_tree())
            elif way == "run":
                model.optimizer.include_run(other.optimizer.run)
            else:
                sharing.load_weights(path)

    load = Load()
    setattr(load, when, load.load)
    model = helpers.compiled()
    sharing = ka.PrivateModel(model.inputs, model.outputs)
    with pytest.raises(ValueError, match="so training ends here"):
        fit(model, [PrivacyCallback(DELTA, target_epsilon=planned(12)), load])
    ran = 1 if when == "on_train_batch_begin" else 2
    assert model.privacy_ledger.steps == 16 + ran


def test_the_pass_counter_opens_once_and_begins_epochs():
    for every_epoch in (True, False):
        optimizer = types.SimpleNamespace(begin_epoch=mock.Mock())
        open_ledger = mock.Mock()
        counter = PassCounter(open_ledger, every_epoch)
        counter.set_model(types.SimpleNamespace(optimizer=optimizer))
        for epoch in range(3):
            counter.on_epoch_begin(epoch)
        open_ledger.assert_called_once_with()
        assert optimizer.begin_epoch.mock_calls == [mock.call(is_pass=every_epoch)] * 2
