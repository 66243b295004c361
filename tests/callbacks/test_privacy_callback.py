"""Epsilon in the logs, and the stop before the budget is passed."""

import sys

import keras
import pytest

import keras_adaclip as ka
from keras_adaclip import backend
from keras_adaclip.callbacks import PrivacyCallback
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
    arguments = {"batch_size": 6, "epochs": 2, "validation_data": (X, Y), "verbose": 1}
    model.fit(X, Y, callbacks=[PrivacyCallback(DELTA)], **arguments)
    lines = [line for line in capsys.readouterr().out.replace("\r", "\n").split("\n") if line]
    assert f"epsilon: {planned(8):.4f}" in lines[-1]
    for name in ("accuracy", "loss", "val_loss"):
        assert name in lines[-1]


@pytest.mark.parametrize("as_list", [False, True])
def test_every_callback_sees_epsilon_whatever_the_order(as_list):
    model, seen = helpers.compiled(), {}
    callbacks = [
        keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.update(logs)),
        ka.callbacks.ClippingMonitor(),
        PrivacyCallback(DELTA),
    ]
    if as_list:
        callbacks = keras.callbacks.CallbackList(callbacks, add_history=True, model=model)
    fit(model, callbacks)
    assert seen["clip_norm"] == 1.0
    assert seen["epsilon"] == pytest.approx(planned(4), rel=1e-6)


def test_the_default_delta_is_said(capsys):
    model = helpers.compiled()
    history = model.fit(X, Y, batch_size=6, callbacks=[PrivacyCallback()]).history
    assert f"delta {24**-1.1:.3g} (24 ** -1.1)" in capsys.readouterr().out
    expected = ka.accounting.compute_epsilon(1.0, 24, 6, steps=4, delta=24**-1.1)
    assert history["epsilon"] == pytest.approx([expected], rel=1e-6)


def test_a_large_delta_is_warned_of():
    with helpers.warns(r"`delta` should be well below 1 / num_examples = 0\.0417"):
        fit(helpers.compiled(), PrivacyCallback(0.1))


@pytest.mark.parametrize(
    "argument", [{"delta": 1.0}, {"target_epsilon": 0.0}, {"accountant": "moments"}]
)
def test_bad_arguments(argument):
    with pytest.raises(ValueError, match=next(iter(argument))):
        PrivacyCallback(**argument)


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
    with pytest.raises(ValueError, match=r"next step would bring epsilon from .* past the target"):
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
    ("steps_per_execution", "num_replicas", "allowed", "expected"),
    # Epochs of 4 steps: executions of 3 and 1, or 2 and 2. Over replicas they run on.
    [(3, 1, 2, None), (3, 1, 6, 4), (3, 1, 7, 7), (2, 1, 3, 2), (3, 2, 5, 3)],
)
def test_whole_executions_stay_within_the_target(
    steps_per_execution, num_replicas, allowed, expected, monkeypatch
):
    monkeypatch.setattr(backend, "num_replicas", lambda model: num_replicas)
    model = helpers.compiled(steps_per_execution=steps_per_execution)
    callback = PrivacyCallback(DELTA, just(allowed))
    if expected is None:
        with pytest.raises(ValueError, match=r"next 3 steps would .* nothing was trained"):
            fit(model, callback)
    else:
        fit(model, callback, epochs=3)
    assert model.privacy_spent(DELTA).steps == (expected or 0)


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
    model, weights = helpers.compiled(), []
    keep = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: weights.append(helpers.weights_of(model))
    )
    early = keras.callbacks.EarlyStopping("epsilon", 0, 2, mode="min", restore_best_weights=True)
    history = fit(model, [keep, early, PrivacyCallback(DELTA)], epochs=9)
    helpers.assert_same_weights(model, weights[0])
    assert len(history["epsilon"]) == 3
    assert model.privacy_spent(DELTA).epsilon == pytest.approx(planned(12), rel=1e-6)


@pytest.mark.parametrize(
    ("source", "when"),
    [
        ("weights", "on_train_batch_begin"),
        ("tree", "on_train_batch_end"),
        ("run", "on_train_batch_begin"),
        ("shared", "on_train_batch_end"),
    ],
)
def test_steps_that_are_loaded_within_an_epoch_count_from_the_next_step_on(tmp_path, source, when):
    other, model = helpers.compiled(), helpers.compiled()
    fit(other, None, epochs=4)
    path = tmp_path / "other.weights.h5"
    other.save_weights(path)
    sharing = ka.PrivateModel(model.inputs, model.outputs)

    class Load(keras.callbacks.Callback):
        def load(self, batch, logs=None):
            if batch != 1:
                return
            model = self.model  # On JAX that brings the variables up to date.
            {
                "weights": lambda: model.load_weights(path),
                "tree": lambda: model.set_state_tree(other.get_state_tree()),
                "run": lambda: model.optimizer.include_ledger(other.optimizer.ledger),
                "shared": lambda: sharing.load_weights(path),
            }[source]()

    load = Load()
    setattr(load, when, load.load)
    with pytest.raises(ValueError, match="so training ends here"):
        fit(model, [PrivacyCallback(DELTA, target_epsilon=planned(12)), load])
    ran = 1 if when == "on_train_batch_begin" else 2
    assert model.privacy_ledger.steps == 16 + ran


def test_steps_that_are_loaded_between_epochs_leave_fewer():
    other, model = helpers.compiled(), helpers.compiled()
    fit(other, None)

    def load(epoch, logs):
        if epoch == 0:
            model.optimizer.include_ledger(other.optimizer.ledger)

    loading = keras.callbacks.LambdaCallback(on_epoch_end=load)
    callbacks = [PrivacyCallback(DELTA, target_epsilon=planned(12)), loading]
    history = fit(model, callbacks, epochs=8)
    assert model.privacy_ledger.steps == 12
    assert history["epsilon"][-1] <= planned(12)
