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


def fit(model, num_examples=N, callbacks=(), **arguments):
    callbacks = [PrivacyCallback(delta) for delta in callbacks]
    return model.fit(*data(num_examples), verbose=0, callbacks=callbacks, **arguments)


@pytest.mark.parametrize("second", [{"num_examples": 20}, {"validation_split": 0.5}])
@pytest.mark.parametrize("how", ["the same model", "loaded", "compiled again"])
def test_a_smaller_data_set_does_not_renew_the_budget(second, how, tmp_path):
    model = compiled(AutoDPOptimizer(3.0))
    fit(model)
    if how == "loaded":
        model.save(tmp_path / "model.keras")
        model = keras.models.load_model(tmp_path / "model.keras")
    if how == "compiled again":
        compile_with(model, AutoDPOptimizer(3.0))
    steps = model.privacy_ledger.steps
    with pytest.raises(ValueError, match="The budget is spent"):
        fit(model, **second)
    assert model.privacy_ledger.steps == steps


def test_a_larger_data_set_has_a_smaller_delta(tmp_path):
    model = compiled(AutoDPOptimizer(3.0))
    fit(model)
    config = model.optimizer.get_config()
    assert config["delta"] is None
    model.save(tmp_path / "model.keras")
    for each in (model, keras.models.load_model(tmp_path / "model.keras")):
        each.optimizer.target_epsilon = 9.0
        fit(each, 800)
        assert 0.99 * 9.0 <= each.privacy_spent(800**-1.1).epsilon <= 9.0


def test_a_resumed_run_on_fewer_examples_keeps_to_the_target(tmp_path):
    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                raise KeyboardInterrupt

    def run(num_examples, optimizer, callbacks):
        model = compiled(optimizer)
        callbacks = [*callbacks, keras.callbacks.BackupAndRestore(tmp_path / "backup")]
        if num_examples == N:
            callbacks.append(Dies())
            with pytest.raises(KeyboardInterrupt):
                model.fit(*data(N), epochs=99, verbose=0, callbacks=callbacks, batch_size=20)
        else:
            model.fit(*data(num_examples), 20, epochs=99, verbose=0, callbacks=callbacks)
        return model

    for make in (
        lambda: (AutoDPOptimizer(3.0), []),
        lambda: (
            ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0),
            [PrivacyCallback(target_epsilon=3.0)],
        ),
    ):
        run(N, *make())
        resumed = run(80, *make())
        assert resumed.privacy_ledger.steps > 10
        assert resumed.privacy_spent(N**-1.1).epsilon <= 3.0


def test_a_callback_gives_the_delta_of_its_fit():
    model = compiled(AutoDPOptimizer(3.0))
    history = fit(model, callbacks=[1e-3, 1e-6])
    assert 0.99 * 3.0 <= history.history["epsilon"][-1] <= 3.0
    model.optimizer.target_epsilon = 12.0
    history = fit(model, callbacks=[1e-3])
    assert 0.99 * 12.0 <= history.history["epsilon"][-1] <= 12.0
    assert history.params["delta"] == 1e-3


@pytest.mark.parametrize("delta", [4e-3, 1e-9])
def test_a_callback_without_delta_reports_for_that_of_the_optimizer(delta, tmp_path):
    model = compiled(AutoDPOptimizer(3.0, delta=delta))
    callback = PrivacyCallback(report_path=tmp_path / "report.json")
    history = model.fit(*data(), verbose=0, callbacks=[callback])
    assert history.params["delta"] == callback.effective_delta == delta
    assert 0.99 * 3.0 <= history.history["epsilon"][-1] <= 3.0


def test_the_notice_says_where_delta_comes_from(capsys):
    model = compiled(AutoDPOptimizer(3.0))
    model.fit(*data(), verbose=2)
    assert f"delta {N**-1.1:.3g} (200 ** -1.1)" in " ".join(capsys.readouterr().out.split())
    model.optimizer.target_epsilon = 6.0
    model.fit(*data(50), verbose=2)
    assert f"delta {N**-1.1:.3g} (200 ** -1.1)" in " ".join(capsys.readouterr().out.split())
    compiled(AutoDPOptimizer(3.0, delta=1e-3)).fit(*data(), verbose=2)
    assert "delta 0.001." in " ".join(capsys.readouterr().out.split())


def test_two_deltas_are_refused():
    model = compiled(AutoDPOptimizer(3.0, delta=1e-3))
    with pytest.raises(ValueError, match="plans for one delta"):
        fit(model, callbacks=[1e-6])
    with pytest.raises(ValueError, match="plans for one delta"):
        fit(model, callbacks=[1e-3, 1e-6])
    assert model.privacy_ledger.steps == 0


def test_no_epoch_reports_for_the_delta_of_the_optimizer():
    callback = PrivacyCallback()
    model = compiled(AutoDPOptimizer(3.0, delta=1e-5))
    model.fit(*data(), epochs=0, verbose=0, callbacks=[callback])
    assert callback.effective_delta == 1e-5


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
