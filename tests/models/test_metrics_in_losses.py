"""Metrics that a model updates in `compute_loss`, or a layer in its `call`."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from tests.models import helpers
from tests.soundness.setups import without_xla

X, Y = helpers.features(), helpers.features(shape=(3,), seed=3)


class Largest(keras.metrics.Metric):
    """The largest number so far: no sum over examples."""

    def __init__(self, name="largest"):
        super().__init__(name=name)
        self.most = self.add_variable((), "zeros", name="most")

    def update_state(self, values, sample_weight=None):
        self.most.assign(ops.maximum(self.most, ops.max(values)))

    def result(self):
        return self.most


def tracking(cls, metric):
    """Return a class whose loss updates a metric, as the documentation of Keras has it."""

    class Tracking(cls):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.tracker = metric

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            loss = super().compute_loss(x, y, y_pred, sample_weight, training=training)
            self.tracker.update_state(loss)
            return loss

    return Tracking


class Watching(keras.layers.Layer):
    """Updates a metric of its own."""

    def __init__(self):
        super().__init__()
        self.watched = keras.metrics.Mean(name="watched")

    def call(self, inputs):
        self.watched.update_state(ops.mean(inputs))
        return inputs


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
@pytest.mark.parametrize("kind", [keras.metrics.Mean, keras.metrics.Sum])
def test_what_compute_loss_adds_to_a_metric_reaches_the_log(kind, sampling):
    model = helpers.dense_model(tracking(ka.PrivateModel, kind(name="tracked")))
    model.compile(helpers.dp_optimizer(0.0), "mse", **without_xla({}))
    counted = 24 if kind is keras.metrics.Sum else 1
    expected = counted * np.mean(np.square(model.predict(X, verbose=0) - Y))
    (tracked,) = helpers.quiet_fit(model, X, Y, batch_size=24, sampling=sampling)["tracked"]
    assert tracked == pytest.approx(expected, rel=1e-4)


REFUSED = {
    "no sum": lambda: helpers.dense_model(tracking(ka.PrivateModel, Largest())),
    "a layer": lambda: ka.PrivateSequential([keras.Input((4,)), Watching(), keras.layers.Dense(3)]),
    "clients": lambda: helpers.dense_model(tracking(ka.FederatedModel, keras.metrics.Mean("all"))),
    "a layer of clients": lambda: ka.FederatedModel(
        *(lambda x: (x, keras.layers.Dense(3)(Watching()(x))))(keras.Input((4,)))
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_updates_that_private_steps_would_lose_are_refused_by_name(name):
    model = REFUSED[name]()
    model.compile(helpers.dp_optimizer(), loss="mse", **without_xla({}))
    names = {"no sum": "most", "clients": "all"}
    data = (X, Y, 6)
    if isinstance(model, ka.FederatedModel):
        clients = ka.federated.ClientData.from_dict({n: (X[n::4], Y[n::4]) for n in range(4)})
        # A round may be empty: no step may run before the model is refused.
        data = (clients, 1, 30)
    with pytest.raises(ValueError, match=f"{names.get(name, 'watched')}.*Update a metric in `comp"):
        model.fit(*data, verbose=0)
    assert model.privacy_ledger.steps == 0
