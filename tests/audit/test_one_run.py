"""Whole audits: noise that is there, and noise that is not."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.optimizers.noise_state import NoiseState

NUM_EXAMPLES, BATCH_SIZE, EPOCHS, DELTA = 300, 30, 3, 1e-5
NOISE_MULTIPLIER = 3.0


def private_model(noise_multiplier=NOISE_MULTIPLIER):
    """One weight an input, so that an example with an input of its own leaves its mark there."""
    model = ka.PrivateSequential(
        [
            keras.Input((NUM_EXAMPLES,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    optimizer = ka.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0), clipping=1.0, noise_multiplier=noise_multiplier
    )
    # XLA on TensorFlow takes seconds a model; without it JAX would not compile at all.
    jit_compile = "auto" if keras.backend.backend() == "jax" else False
    model.compile(optimizer=optimizer, loss="mse", jit_compile=jit_compile)
    return model


def own_inputs():
    return np.eye(NUM_EXAMPLES, dtype=np.float32), np.ones((NUM_EXAMPLES, 1), np.float32)


# Half of the examples are out, all of them being canaries.
NUM_PRESENT = NUM_EXAMPLES // 2


def audit(noise_multiplier=NOISE_MULTIPLIER, **options):
    options = {"num_canaries": NUM_EXAMPLES, "kind": "unchanged", "delta": DELTA, **options}
    return ka.audit.one_run(
        lambda: private_model(noise_multiplier),
        *own_inputs(),
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        verbose=0,
        **options,
    )


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
    whole = NoiseState.sum_stddevs
    monkeypatch.setattr(
        NoiseState,
        "sum_stddevs",
        lambda variables, clip_norms: [0.0 * each for each in whole(variables, clip_norms)],
    )
    found = audit()
    assert found.claimed_epsilon == pytest.approx(claimed_epsilon())
    assert found.contradicts_accountant


def test_a_model_that_was_trained_before_is_refused():
    model = private_model()
    x, y = own_inputs()
    model.fit(x, y, batch_size=BATCH_SIZE, epochs=1, verbose=0)
    weights = model.get_weights()
    with pytest.raises(ValueError, match="trained for 10 steps"):
        ka.audit.one_run(lambda: model, x, y, batch_size=30, epochs=1, num_canaries=50)
    assert all(np.array_equal(a, b) for a, b in zip(weights, model.get_weights(), strict=True))


@pytest.mark.parametrize(
    "options", [{"num_guesses": 51}, {"sampling": "shuffle"}, {"class_weight": {0: 1.0}}]
)
def test_bad_arguments_are_refused_before_training(options):
    model = private_model()
    with pytest.raises(ValueError, match=next(iter(options))):
        ka.audit.one_run(
            lambda: model, *own_inputs(), batch_size=30, epochs=1, num_canaries=50, **options
        )
    assert model.privacy_ledger.steps == 0


def test_a_model_without_privacy_is_refused():
    plain = keras.Sequential([keras.Input((NUM_EXAMPLES,)), keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    with pytest.raises(TypeError, match="PrivateModel"):
        ka.audit.one_run(lambda: plain, *own_inputs(), batch_size=30, epochs=1, num_canaries=50)


@pytest.fixture
def canaries():
    return ka.audit.Canaries.draw(*own_inputs(), num_canaries=200, kind="unchanged")


def trained(callback, canaries, epochs=EPOCHS):
    model = private_model()
    data = canaries.dataset(BATCH_SIZE)
    return model, model.fit(data, epochs=epochs, verbose=0, callbacks=[callback]).history


def test_the_callback_logs_a_bound_after_each_epoch(canaries):
    callback = ka.callbacks.AuditCallback(canaries, DELTA)
    seen = []
    logger = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(logs["audit_epsilon"])
    )
    model = private_model()
    history = model.fit(
        canaries.dataset(BATCH_SIZE), epochs=EPOCHS, verbose=0, callbacks=[logger, callback]
    ).history
    assert len(history["audit_epsilon"]) == EPOCHS
    assert seen == history["audit_epsilon"]  # a callback given before it sees it too
    assert callback.result.epsilon_lower_bound == history["audit_epsilon"][-1]
    assert callback.result.claimed_epsilon == model.privacy_spent(DELTA).epsilon
    # The loss was 1 for all at the start, when every weight was zero.
    assert callback.result.scores == pytest.approx(1.0 - canaries.losses(model), abs=1e-5)


def test_the_callback_serves_one_model_after_another(canaries):
    callback = ka.callbacks.AuditCallback(canaries, DELTA, frequency=5)
    trained(callback, canaries, epochs=2)
    second, _ = trained(callback, canaries, epochs=2)
    assert callback.result.scores == pytest.approx(1.0 - canaries.losses(second), abs=1e-5)
    # The losses before are those before the first of the second model's fits.
    second.fit(canaries.dataset(BATCH_SIZE), epochs=1, verbose=0, callbacks=[callback])
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
