"""Whole audits: noise that is there, and noise that is not."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.optimizers.state import NoiseState
from tests.soundness.setups import dp_sgd, without_xla

NUM_EXAMPLES, BATCH_SIZE, EPOCHS, DELTA = 300, 30, 3, 1e-5
NOISE_MULTIPLIER = 3.0


def private_model(noise_multiplier=NOISE_MULTIPLIER):
    """One weight an input, so that an example with an input of its own leaves its mark there."""
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = ka.PrivateSequential([keras.Input((NUM_EXAMPLES,)), dense])
    optimizer = dp_sgd(noise_multiplier=noise_multiplier)
    model.compile(optimizer=optimizer, loss="mse", **without_xla({}))
    return model


def own_inputs():
    return np.eye(NUM_EXAMPLES, dtype=np.float32), np.ones((NUM_EXAMPLES, 1), np.float32)


# Half of the examples are out, all of them being canaries.
NUM_PRESENT = NUM_EXAMPLES // 2


def audit(noise_multiplier=NOISE_MULTIPLIER, **options):
    options = {"num_canaries": NUM_EXAMPLES, "kind": "unchanged", "delta": DELTA, **options}
    options |= {"batch_size": BATCH_SIZE, "epochs": EPOCHS, "verbose": 0}
    return ka.audit.one_run(lambda: private_model(noise_multiplier), *own_inputs(), **options)


def claimed_epsilon():
    return ka.accounting.compute_epsilon(
        NOISE_MULTIPLIER, NUM_PRESENT, BATCH_SIZE, epochs=EPOCHS, delta=DELTA
    )


def test_with_its_noise_training_stays_below_the_accountants_epsilon():
    found = audit(confidence=1 - 1e-6)
    assert found.claimed_epsilon == pytest.approx(claimed_epsilon())
    assert found.epsilon_lower_bound <= found.claimed_epsilon
    assert not found.contradicts_accountant
    assert found.num_canaries == NUM_EXAMPLES == len(found.scores)


def test_without_its_noise_training_is_found_out():
    found = audit(noise_multiplier=0.0, delta=None)
    assert found.delta == pytest.approx(0.01 / NUM_EXAMPLES)
    assert found.claimed_epsilon == np.inf
    assert found.epsilon_lower_bound > claimed_epsilon()
    # Those that were in and drawn have a lower loss, all others the loss they had.
    assert np.all(found.scores[~found.is_member] == 0.0)
    # A member is drawn in none of 15 steps with probability 0.8 to the power 15, 0.035.
    assert np.mean(found.scores[found.is_member] > 0.0) > 0.85


def test_noise_that_is_lost_on_its_way_contradicts_the_accountant(monkeypatch):
    def without_noise(variables, clip_norms):
        return [0.0 * each for each in whole(variables, clip_norms)]

    whole = NoiseState.sum_stddevs
    monkeypatch.setattr(NoiseState, "sum_stddevs", without_noise)
    found = audit()
    assert found.claimed_epsilon == pytest.approx(claimed_epsilon())
    assert found.contradicts_accountant


def plain_model():
    model = keras.Sequential([keras.Input((NUM_EXAMPLES,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def model_after_an_epoch():
    model = private_model()
    model.fit(*own_inputs(), batch_size=BATCH_SIZE, epochs=1, verbose=0)
    return model


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (model_after_an_epoch, {}, ValueError, "trained for 10 steps"),
        (plain_model, {}, TypeError, "PrivateModel"),
        (private_model, {"num_guesses": 51}, ValueError, "num_guesses"),
        (private_model, {"sampling": "shuffle"}, ValueError, "sampling"),
        (private_model, {"sample_weight": [1.0] * 400}, ValueError, "sample_weight"),
    ],
)
def test_models_and_arguments_are_refused_before_training(make, options, error, message):
    model = make()
    weights = model.get_weights()
    options = {"batch_size": 30, "epochs": 1, "num_canaries": 50, **options}
    with pytest.raises(error, match=message):
        ka.audit.one_run(lambda: model, *own_inputs(), **options)
    assert all(np.array_equal(a, b) for a, b in zip(weights, model.get_weights(), strict=True))


@pytest.fixture
def canaries():
    return ka.audit.Canaries.draw(*own_inputs(), num_canaries=200, kind="unchanged")


def fit(model, canaries, *callbacks, epochs=EPOCHS):
    data = canaries.dataset(BATCH_SIZE)
    return model.fit(data, epochs=epochs, verbose=0, callbacks=list(callbacks)).history


def test_the_callback_logs_a_bound_after_each_epoch(canaries):
    callback = ka.callbacks.AuditCallback(canaries, DELTA)
    seen = []
    logger = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(logs["audit_epsilon"])
    )
    model = private_model()
    history = fit(model, canaries, logger, callback)
    assert len(history["audit_epsilon"]) == EPOCHS
    assert seen == history["audit_epsilon"]  # a callback given before it sees it too
    assert callback.result.epsilon_lower_bound == history["audit_epsilon"][-1]
    assert callback.result.claimed_epsilon == model.privacy_spent(DELTA).epsilon
    # The loss was 1 for all at the start, when every weight was zero.
    assert callback.result.scores == pytest.approx(1.0 - canaries.losses(model), abs=1e-5)


def test_the_callback_serves_one_model_after_another(canaries):
    callback = ka.callbacks.AuditCallback(canaries, DELTA, frequency=5)
    fit(private_model(), canaries, callback, epochs=2)
    second = private_model()
    # The losses before are those before the first of the second model's fits.
    for epochs in (2, 1):
        fit(second, canaries, callback, epochs=epochs)
        assert callback.result.scores == pytest.approx(1.0 - canaries.losses(second), abs=1e-5)
    assert callback.result.claimed_epsilon == second.privacy_spent(DELTA).epsilon


@pytest.mark.parametrize("what", ["other canaries", "arrays", "other coins"])
def test_the_callback_refuses_other_data(what, canaries):
    x, y = own_inputs()
    others = ka.audit.Canaries.draw(x, y, num_canaries=200, kind="unchanged")
    model = private_model()
    callback = ka.callbacks.AuditCallback(canaries, DELTA)
    weights = model.get_weights()
    turned = ka.audit.Canaries(x, y, canaries.rows, ~canaries.is_member)
    arguments = {
        "other canaries": {"x": others.dataset(30)},
        "other coins": {"x": turned.dataset(30)},
        "arrays": {"x": x, "y": y, "batch_size": 30},
    }[what]
    with pytest.raises(ValueError, match=r"canaries.dataset\(batch_size\)"):
        model.fit(**arguments, verbose=0, callbacks=[callback])
    assert all(np.array_equal(a, b) for a, b in zip(weights, model.get_weights(), strict=True))
