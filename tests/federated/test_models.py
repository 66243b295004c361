"""Models beyond the plain ones: several outputs, own losses and metrics, changes between fits."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.federated import ClientData, FederatedModel, FederatedSequential
from tests.federated.support import FROM_LOGITS, clients_of, compiled, weights

SIZES = (3, 5, 1, 4)
ALL = {"cohort_size": len(SIZES), "sampling": "shuffle", "verbose": 0}


def linear(*before, units=3):
    return [keras.Input((4,)), *before, layers.Dense(units)]


def test_losses_of_several_outputs_are_logged():
    inputs = keras.Input((4,))
    outputs = {"a": layers.Dense(1, name="a")(inputs), "b": layers.Dense(1, name="b")(inputs)}
    model = compiled(FederatedModel(inputs, outputs), client=0.0, loss={"a": "mse", "b": "mae"})
    assert isinstance(model, FederatedModel)
    x, _ = clients_of((4, 4, 4)).all_examples()
    y = {"a": x[:, :1] + 1.0, "b": 2.0 * x[:, 1:2]}
    # With batches of one size the logs are plain means.
    clients = ClientData.from_arrays(x, y, np.arange(12) // 4)
    history = model.fit(clients, 3, epochs=1, verbose=0).history
    expected = model.evaluate(clients, verbose=0, return_dict=True)
    for name in ("loss", "a_loss", "b_loss"):
        assert history[name][0] == pytest.approx(expected[name], rel=1e-5), name


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="compiled as it was")
@pytest.mark.parametrize("chunk", [None, 1])
def test_a_layer_changed_between_two_fits_counts(chunk):
    clients, found = clients_of(SIZES), []
    for run_eagerly in (False, True):
        keras.utils.set_random_seed(3)
        hidden = layers.Dense(4, activation="tanh")
        model = compiled(linear(hidden), microbatch_size=chunk, run_eagerly=run_eagerly)
        for activation in ("tanh", "softplus"):
            hidden.activation = keras.activations.get(activation)
            model.fit(clients, **ALL)
        found.append(weights(model))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-6)


def test_clients_unlike_the_first_are_named():
    clients = clients_of(SIZES)
    examples = clients.examples_at

    def other(position):
        x, y = examples(position)
        return (x, y) if position != 2 else (x[:, :1], y[:0])

    clients.examples_at = other
    with pytest.raises(Exception, match=r"Expected of client 2: .*Received: .*\(1, 1\)"):
        compiled(linear()).fit(clients, 4, epochs=5, verbose=0)


def private(model):
    model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0), loss=FROM_LOGITS)
    return model


def test_examples_and_clients_do_not_share_a_ledger(tmp_path):
    base = keras.Sequential(linear())
    clients = clients_of(SIZES)
    by_example = private(ka.privatize(base))
    by_example.fit(*clients.all_examples(), batch_size=4, verbose=0)
    with pytest.raises(ValueError, match="do not add up"):
        private(ka.federate(base)).fit(clients, 2, verbose=0)
    by_example.save_weights(tmp_path / "model.weights.h5")
    fresh = private(FederatedSequential(linear()))
    fresh.fit(clients, 2, verbose=0)
    with pytest.raises(ValueError, match="do not add up"):
        fresh.load_weights(tmp_path / "model.weights.h5")
    # Keras may have loaded weights before it raised.
    with pytest.raises(RuntimeError, match="is not known"):
        fresh.privacy_report(1e-3, group_sizes=())


class WithOwnMetrics(FederatedSequential):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.own = keras.metrics.Mean(name="own")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.own.update_state(ops.sum(x, axis=-1), sample_weight)
        return super().compute_metrics(x, y, y_pred, sample_weight)


def test_own_metrics_are_those_of_the_local_steps():
    clients = clients_of(SIZES)
    model = compiled(WithOwnMetrics(linear()), metrics=["accuracy"])
    history = model.fit(clients, len(clients), verbose=0).history
    x, _ = clients.all_examples()
    np.testing.assert_allclose(history["own"], [x.sum(axis=-1).mean()], rtol=1e-4)
    assert set(history) == {"loss", "accuracy", "own"}


def test_own_metrics_that_would_be_lost_are_refused_by_name(monkeypatch):
    monkeypatch.setattr(WithOwnMetrics, "compute_metrics", lambda self, *args: {"extra": 1.0})
    model = compiled(WithOwnMetrics(linear()))
    with pytest.raises(ValueError, match="returns 'extra'"):
        model.fit(clients_of(SIZES), len(SIZES), verbose=0)
    assert model.privacy_ledger.steps == 0


def test_an_own_loss_is_that_of_the_local_steps():
    class Constant(FederatedSequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return 0.0 * super().compute_loss(x, y, y_pred, sample_weight, training)

    model = compiled(Constant(linear()))
    before = weights(model)
    model.fit(clients_of(SIZES), **ALL)
    np.testing.assert_array_equal(weights(model), before)
