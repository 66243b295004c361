"""The delta of a budget, over one `fit` and several."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka

AutoDPOptimizer, PrivacyCallback = ka.optimizers.AutoDPOptimizer, ka.callbacks.PrivacyCallback
N = 200


def data(num_examples=N):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_examples, 4)).astype("float32")
    return x, (x[:, 0] > 0).astype("int32")


def compiled(optimizer):
    model = ka.PrivateSequential([keras.Input((4,)), keras.layers.Dense(2)])
    compile_with(model, optimizer)
    return model


def compile_with(model, optimizer):
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"num_examples": 20}),
        ({}, {"validation_split": 0.5}),
        ({"callbacks": [1e-6]}, {}),
        ({"callbacks": [1e-6]}, {"callbacks": [1e-3]}),
    ],
)
@pytest.mark.parametrize("how", ["the same model", "loaded", "compiled again"])
def test_a_later_fit_gets_no_new_budget_from_a_larger_delta(first, second, how, tmp_path):
    model = compiled(AutoDPOptimizer(3.0))
    fit(model, **first)
    if how == "loaded":
        model.save(tmp_path / "model.keras")
        model = keras.models.load_model(tmp_path / "model.keras")
    if how == "compiled again":
        if "callbacks" in first:
            pytest.skip("A new optimizer may be given another delta.")
        compile_with(model, AutoDPOptimizer(3.0))
    steps = model.privacy_ledger.steps
    with pytest.raises(ValueError, match=r"The budget is spent|one delta"):
        fit(model, **second)
    assert model.privacy_ledger.steps == steps


def fit(model, num_examples=N, callbacks=(), **arguments):
    callbacks = [PrivacyCallback(delta) for delta in callbacks]
    return model.fit(*data(num_examples), verbose=0, callbacks=callbacks, **arguments)


def test_a_smaller_delta_of_a_later_fit_counts():
    model = compiled(AutoDPOptimizer(3.0))
    fit(model)
    spent = model.privacy_spent(1e-6).epsilon
    model.optimizer.target_epsilon = 12.0
    assert spent < 12.0
    fit(model, callbacks=[1e-6])
    assert 0.99 * 12.0 <= model.privacy_spent(1e-6).epsilon <= 12.0


def test_the_delta_of_a_refused_fit_is_forgotten():
    model = compiled(AutoDPOptimizer(3.0))
    callbacks = [PrivacyCallback(1e-9), keras.callbacks.ModelCheckpoint("model.h5")]
    with pytest.raises(ValueError, match="ModelCheckpoint"):
        model.fit(*data(), callbacks=callbacks)
    assert model.optimizer.planned_delta == 1e-9
    fit(model)
    assert model.privacy_spent(N**-1.1).epsilon > 0.99 * 3.0


@pytest.mark.parametrize("delta", [4e-3, 1e-9])
def test_a_callback_without_delta_reports_for_that_of_the_optimizer(delta, tmp_path):
    model = compiled(AutoDPOptimizer(3.0, delta=delta))
    callback = PrivacyCallback(report_path=tmp_path / "report.json")
    history = model.fit(*data(), verbose=0, callbacks=[callback])
    assert history.params["delta"] == callback.effective_delta == delta
    assert 0.99 * 3.0 <= history.history["epsilon"][-1] <= 3.0


def test_the_notice_says_where_delta_comes_from(capsys):
    compiled(AutoDPOptimizer(3.0)).fit(*data(), verbose=2)
    assert f"delta {N**-1.1:.3g} (200 ** -1.1)" in " ".join(capsys.readouterr().out.split())
    compiled(AutoDPOptimizer(3.0, delta=1e-3)).fit(*data(), verbose=2)
    assert "delta 0.001." in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("of_optimizer", "deltas"), [(1e-3, [1e-6]), (None, [1e-3, 1e-6])])
def test_two_deltas_are_refused(of_optimizer, deltas):
    model = compiled(AutoDPOptimizer(3.0, delta=of_optimizer))
    with pytest.raises(ValueError, match="plans for one delta"):
        fit(model, callbacks=deltas)
    assert model.privacy_ledger.steps == 0


def test_two_callbacks_may_report_for_two_deltas_without_a_plan():
    model = compiled(ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0))
    fit(model, callbacks=[1e-3, 1e-6], batch_size=20)
    assert model.privacy_ledger.steps == 10


def test_a_smaller_data_set_does_not_renew_the_budget_of_a_callback():
    model = compiled(ka.optimizers.DPOptimizer("sgd", noise_multiplier=0.8))
    callback = PrivacyCallback(target_epsilon=3.0)
    model.fit(*data(), verbose=0, epochs=9, batch_size=20, callbacks=[callback])
    assert callback.has_stopped
    with pytest.raises(ValueError, match="past the target of 3"):
        model.fit(*data(50), verbose=0, batch_size=20, callbacks=[callback])
