"""Epsilon in the logs, and the stop before the budget is passed."""

import sys

import keras
import pytest

import keras_adaclip as ka
from keras_adaclip import backend
from keras_adaclip.accounting import accountants
from keras_adaclip.callbacks import PrivacyCallback
from tests.models import helpers
from tests.models.helpers import DELTA, planned

X, Y = helpers.features(), helpers.labels()


def fit(model, callbacks, **options):
    options = {"batch_size": 6, "epochs": 1, **options}
    return helpers.quiet_fit(model, X, Y, callbacks=callbacks, **options)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_epsilon_is_in_the_history(accountant):
    history = fit(helpers.compiled(), PrivacyCallback(DELTA, accountant=accountant), epochs=2)
    first, last = (planned(steps, accountant=accountant) for steps in (4, 8))
    assert first <= history["epsilon"][0] <= 1.005 * first
    assert history["epsilon"][1] == pytest.approx(last, rel=1e-6)


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
@pytest.mark.parametrize("target", [None, 100.0])
def test_an_epoch_composes_its_own_steps_alone(target, sampling, monkeypatch):
    composed, compose = [], accountants.self_composed
    monkeypatch.setattr(
        accountants, "self_composed", lambda pld, num: composed.append(num) or compose(pld, num)
    )
    in_epochs = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: in_epochs.append(sum(composed))
    )
    callbacks = [PrivacyCallback(DELTA, target), ka.callbacks.ClippingMonitor(), count]
    history = fit(helpers.compiled(), callbacks, epochs=8, sampling=sampling)
    # The second epoch composes the steps that each later epoch adds.
    assert in_epochs[6] - in_epochs[1] <= 5
    for steps, epsilon in zip(range(4, 33, 4), history["epsilon"], strict=True):
        exact = planned(steps, sampling=sampling)
        assert exact * (1 - 1e-9) <= epsilon <= 1.005 * exact
    assert history["epsilon"][-1] == pytest.approx(exact, rel=1e-9)


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


def test_a_large_delta_is_warned_of():
    with helpers.warns(r"`delta` should be well below 1 / num_examples = 0\.0417"):
        fit(helpers.compiled(), PrivacyCallback(0.1))


def just(steps, **options):
    """A target that `steps` steps reach and do not pass."""
    return planned(steps, **options) * (1 + 1e-9)


@pytest.mark.parametrize(("steps", "sampling"), [(4, "poisson"), (6, "poisson"), (8, "shuffle")])
def test_stops_before_the_step_that_would_pass_the_target(steps, sampling):
    model, target = helpers.compiled(), just(steps, sampling=sampling)
    callback, options = PrivacyCallback(DELTA, target), {"sampling": sampling}
    fit(model, callback, **options)
    # A second `fit` goes on from what was spent.
    if steps > 4:
        history = fit(model, callback, epochs=9, **options)
        assert len(history["epsilon"]) == -(-steps // 4) - 1
        assert history["epsilon"][-1] == pytest.approx(target, rel=1e-6)
    assert model.privacy_spent(DELTA).steps == steps
    # Nothing is left for another step.
    before = helpers.weights_of(model)
    with pytest.raises(ValueError, match=r"next step would bring epsilon from .* past the target"):
        fit(model, callback, **options)
    helpers.assert_same_weights(model, before)
    assert model.privacy_spent(DELTA).steps == steps


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


@pytest.mark.parametrize(
    ("source", "when"),
    [
        ("weights", "on_train_batch_begin"),
        ("shared", "on_train_batch_end"),
        ("run", "on_epoch_end"),
    ],
)
def test_steps_that_are_loaded_within_an_epoch_count_from_the_next_step_on(tmp_path, source, when):
    """And those loaded between epochs leave fewer."""
    other, model = helpers.compiled(), helpers.compiled()
    is_between = when == "on_epoch_end"
    fit(other, None, epochs=1 if is_between else 4)
    path = tmp_path / "other.weights.h5"
    other.save_weights(path)
    sharing = ka.PrivateModel(model.inputs, model.outputs)

    class Load(keras.callbacks.Callback):
        def load(self, number, logs=None):
            if number == (0 if is_between else 1):
                model = self.model  # On JAX that brings the variables up to date.
                if source == "run":
                    model.optimizer.include_ledger(other.optimizer.ledger)
                else:
                    (sharing if source == "shared" else model).load_weights(path)

    load = Load()
    setattr(load, when, load.load)
    callbacks = [PrivacyCallback(DELTA, target_epsilon=planned(12)), load]
    if is_between:
        assert fit(model, callbacks, epochs=8)["epsilon"][-1] <= planned(12)
        assert model.privacy_ledger.steps == 12
    else:
        with pytest.raises(ValueError, match="so training ends here"):
            fit(model, callbacks)
        assert model.privacy_ledger.steps == 16 + (1 if when == "on_train_batch_begin" else 2)
