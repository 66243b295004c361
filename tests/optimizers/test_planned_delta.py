"""The delta of a budget, over one `fit` and several."""

import pickle

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
    dense = keras.layers.Dense(2, name="dense")
    model = ka.PrivateSequential([keras.Input((4,)), dense], name="model")
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
    assert 0.99 * 12.0 <= model.privacy_spent(1e-6).epsilon <= 12.0
    # The callback still reports for its own.
    assert history.history["epsilon"][-1] == model.privacy_spent(1e-3).epsilon
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


class Stops(keras.callbacks.Callback):
    """Ends training after an epoch, with most of the budget left."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = True


class Dies(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


def planned(delta):
    return AutoDPOptimizer(3.0, delta), []


def guarded(delta):
    optimizer = ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.5)
    return optimizer, [PrivacyCallback(delta, target_epsilon=3.0)]


def trained(kind, delta, *callbacks, model=None, epochs=12):
    """A model that was trained for epsilon 3 at a delta."""
    optimizer, own = kind(delta)
    model = model or compiled(optimizer)
    compile_with(model, optimizer)
    model.fit(*data(), 20, epochs=epochs, verbose=0, callbacks=[*own, *callbacks])
    return model


def through_file(model, path):
    model.save(path / "model.keras")
    return keras.models.load_model(path / "model.keras")


def through_file_without_optimizer(model, path):
    model.save(path / "model.keras")
    return keras.models.load_model(path / "model.keras", compile=False)


def through_weights(model, path):
    model.save_weights(path / "model.weights.h5")
    other = compiled(guarded(None)[0])
    other.load_weights(path / "model.weights.h5")
    return other


def through_tree(model, path):
    other = compiled(guarded(None)[0])
    other.set_state_tree(model.get_state_tree("numpy_array"))
    return other


def through_optimizer_variables(model, path):
    other = compiled(model.optimizer.from_config(model.optimizer.get_config()))
    tree = model.get_state_tree("numpy_array")
    other.set_state_tree({"optimizer_variables": tree["optimizer_variables"]})
    return other


def through_pickle(model, path):
    return pickle.loads(pickle.dumps(model))


def through_layers(model, path):
    return ka.PrivateSequential([keras.Input((4,)), *model.layers])


def after_older_file(model, path):
    """The file knows a promise, and the model another one since."""
    model.save_weights(path / "model.weights.h5")
    trained(guarded, 1e-9, Stops(), model=model)
    model.load_weights(path / "model.weights.h5")
    assert model.privacy_ledger.promised_delta == 1e-9
    return model


WAYS = [
    lambda model, path: model,
    *(through_file, through_file_without_optimizer, through_weights, through_tree),
    *(through_optimizer_variables, through_pickle, through_layers, after_older_file),
]


@pytest.mark.parametrize("way", WAYS)
def test_the_promised_delta_stays_with_the_ledger(way, tmp_path):
    model = way(trained(guarded, 1e-8, Stops()), tmp_path)
    held = model.privacy_ledger.promised_delta
    assert held <= 1e-8
    trained(guarded, 1e-3, model=model)
    assert 2.5 < model.privacy_spent(held).epsilon <= 3.0


@pytest.mark.parametrize(
    ("first", "later"),
    [(planned, planned), (planned, guarded), (guarded, planned), (guarded, guarded)],
)
@pytest.mark.filterwarnings("ignore:Argument `delta` should be")
def test_a_larger_delta_does_not_renew_the_budget(first, later):
    model = trained(first, 1e-8, Stops())
    trained(later, 1e-5, model=model)
    if later is planned:  # All of its steps fit the budget.
        assert model.privacy_ledger.steps == 10 + 120
    assert 2.5 < model.privacy_spent(1e-8).epsilon <= 3.0
    with pytest.raises(ValueError, match=r"budget is spent|past the target of 3"):
        trained(later, 0.5, model=model)


@pytest.mark.parametrize("kind", [planned, guarded])
def test_a_resumed_run_holds_the_delta_that_was_promised_before(kind, tmp_path):
    backup = keras.callbacks.BackupAndRestore
    with pytest.raises(KeyboardInterrupt):
        trained(kind, 1e-8, backup(tmp_path / "backup"), Dies())
    resumed = trained(kind, 1e-3, backup(tmp_path / "backup"))
    assert resumed.privacy_ledger.promised_delta == 1e-8
    assert 2.0 < resumed.privacy_spent(1e-8).epsilon <= 3.0


def test_a_smaller_delta_is_promised_from_then_on():
    model = trained(guarded, 1e-3, Stops())
    trained(guarded, 1e-7, Stops(), model=model)
    assert model.privacy_ledger.promised_delta == 1e-7
    trained(guarded, 1e-3, model=model)
    assert model.privacy_spent(1e-7).epsilon <= 3.0


def test_what_only_reports_promises_nothing():
    model = compiled(ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0))
    fit(model, callbacks=[1e-9])
    assert model.privacy_ledger.promised_delta == 1.0
    trained(guarded, 1e-3, model=model)
    assert 2.5 < model.privacy_spent(1e-3).epsilon <= 3.0 < model.privacy_spent(1e-9).epsilon


def test_a_fit_that_is_refused_promises_nothing():
    model = compiled(ka.optimizers.DPOptimizer("sgd", noise_multiplier=0.1))
    with pytest.raises(ValueError, match="past the target"):
        model.fit(*data(), 20, verbose=0, callbacks=[PrivacyCallback(1e-9, target_epsilon=1.0)])
    assert model.privacy_ledger.promised_delta == 1.0


def test_the_notice_says_that_a_delta_is_held(capsys):
    model = trained(planned, 1e-8, Stops())
    for kind in (planned, guarded):
        optimizer, own = kind(1e-3)
        compile_with(model, optimizer)
        model.fit(*data(), 20, epochs=30, verbose=2, callbacks=[*own, Stops()])
        said = " ".join(capsys.readouterr().out.split())
        assert "at delta 1e-08 (promised before, so that it stays)" in said


@pytest.mark.filterwarnings("ignore:Argument `delta` should be")
def test_clients_hold_the_delta_that_was_promised():
    clients = ka.federated.ClientData.from_arrays(*data(), np.arange(N) // 4)
    model = ka.federate(keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]))
    for delta in (1e-8, 1e-5, 0.5):
        optimizer = ka.optimizers.DPOptimizer("sgd", noise_multiplier=2.0)
        model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            client_optimizer="sgd",
        )
        callbacks = [PrivacyCallback(delta, target_epsilon=3.0)]
        options = {"cohort_size": 10, "epochs": 20, "verbose": 0, "callbacks": callbacks}
        if delta == 1e-8:
            model.fit(clients, **options)
            continue
        with pytest.raises(ValueError, match="past the target of 3"):
            model.fit(clients, **options)
    assert model.privacy_spent(1e-8).epsilon <= 3.0


def test_a_default_delta_is_that_of_the_largest_data_set():
    """Also if nothing was promised for it."""
    model = compiled(ka.optimizers.DPOptimizer("sgd", noise_multiplier=5.0))
    fit(model, batch_size=20)
    compile_with(model, AutoDPOptimizer(3.0))
    fit(model, 50)
    assert model.privacy_spent(N**-1.1).epsilon <= 3.0
