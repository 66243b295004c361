"""Rule 25: what sees raw rows in a step keeps nothing but the variables of metrics."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from tests.soundness.setups import (
    COMPILED,
    MODES,
    dp_sgd,
    line_data,
    line_model,
    minus_output,
    without_xla,
)

OUTSIDE = []


class CountsPositives(keras.metrics.Sum):
    """Adds the number of positive targets to a variable of somebody else."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        for variable in OUTSIDE:
            variable.assign(variable + keras.ops.sum(keras.ops.cast(y_true > 0.0, "float32")))
        return super().update_state(y_true, sample_weight)


class Holder(CountsPositives):
    """Has the variable among its own."""

    def __init__(self, name):
        super().__init__(name=name)
        self.held = OUTSIDE[0]


class CountingModel(ka.PrivateSequential):
    """Its own `compute_metrics` writes to the variables."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        for variable in OUTSIDE:
            variable.assign(variable + keras.ops.sum(y))
        return super().compute_metrics(x, y, y_pred, sample_weight)


def dense():
    return [keras.Input((1,)), layers.Dense(1, use_bias=False, name="out")]


def model_with(kind, options):
    if kind == "metric":
        return line_model(dp_sgd(), metrics=[CountsPositives(name="positives")], **options)
    model = CountingModel(dense())
    model.compile(dp_sgd(microbatch_size=kind), loss=minus_output, **options)
    return model


# What assigns, a metric or `compute_metrics` with a size of chunks, and what it assigns.
CASES = [("metric", "trained"), ("metric", "outside"), (None, "trained"), (2, "optimizer")]


@pytest.mark.parametrize(("kind", "what"), CASES)
@pytest.mark.parametrize("mode", MODES)
def test_a_metric_that_assigns_another_variable_is_refused_by_name(mode, what, kind):
    model = model_with(kind, MODES[mode])
    other = keras.Variable(np.zeros((1, 1), "float32"), name="somebody_else")
    found = {"trained": model.weights[0], "outside": other}
    OUTSIDE[:] = [found[what]] if what in found else [model.optimizer.inner_optimizer.iterations]
    name = OUTSIDE[0].path
    x, y = line_data([1.0, 2.0, 3.0, 4.0])
    before = [keras.ops.convert_to_numpy(each).copy() for each in [*model.weights, other]]
    with pytest.raises(ValueError, match=f"(?s){name}.*past clipping and noise"):
        model.fit(x, y + 1.0, batch_size=2, verbose=0)
    after = [keras.ops.convert_to_numpy(each) for each in [*model.weights, other]]
    for one, same in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, same)
    assert model.privacy_ledger.steps == 0


class Telling(keras.metrics.Sum):
    """Writes its sum to a weight when it is read, or before it begins anew."""

    def __init__(self, method):
        self.method = method
        super().__init__(name="telling")

    def _tell(self, method):
        for variable in OUTSIDE if method == self.method and hasattr(self, "total") else []:
            variable.assign(self.total.value)

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_true, sample_weight)

    def result(self):
        self._tell("result")
        return super().result()

    def reset_state(self):
        self._tell("reset_state")
        super().reset_state()


class WithNote(layers.Identity):
    """Has a weight that nothing uses."""

    def build(self, input_shape):
        self.note = self.add_weight(shape=(), initializer="zeros", trainable=False, name="note")


@pytest.mark.parametrize("method", ["result", "reset_state"])
def test_a_metric_that_is_read_or_reset_assigns_no_weight(method):
    layer = layers.Dense(1, use_bias=False, name="out")
    holder = WithNote(name="holder")
    model = ka.PrivateSequential([keras.Input((1,)), holder, layer])
    OUTSIDE.clear()
    model.compile(dp_sgd(), loss=minus_output, metrics=[Telling(method)])
    OUTSIDE[:] = [holder.note]
    x, y = line_data([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match=r"(?s)note.*past clipping and noise"):
        model.fit(x, y + 1.0, batch_size=2, epochs=2, verbose=0)
    assert float(holder.note.value) == 0.0


@pytest.mark.parametrize("what", ["trained", "optimizer"])
def test_a_metric_that_holds_a_variable_of_the_model_may_not_assign_it(what):
    model = line_model(dp_sgd())
    model.optimizer.build(model.trainable_variables)
    OUTSIDE[:] = [model.weights[0] if what == "trained" else model.optimizer.own_variables[0]]
    model.compile(model.optimizer, loss=minus_output, metrics=[Holder("holder")])
    x, y = line_data([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match="past clipping and noise"):
        model.fit(x, y + 1.0, batch_size=2, verbose=0)
    assert model.privacy_ledger.steps == 0


class Gated(ka.PrivateSequential):
    """Its loss changes its sign once a metric has seen a large target."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.seen.update_state(y)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        is_large = self.seen.total > 40.0
        return keras.ops.where(is_large, -1.0, 1.0) * keras.ops.sum(y_pred)


@pytest.mark.parametrize("mode", COMPILED)
def test_losses_do_not_read_what_metrics_have_seen(mode):
    model = Gated(dense())
    model.seen = keras.metrics.Sum(name="seen")
    model.compile(dp_sgd(noise_multiplier=0.0), **without_xla(COMPILED[mode]))
    x, y = line_data([1.0] * 4)
    fit = {"sampling": "shuffle", "batch_size": 2, "epochs": 1, "verbose": 0}
    before = model.get_weights()[0].item()
    history = model.fit(x, y + 30.0, **fit).history
    # Two steps of one direction, of a clipped mean each.
    assert model.get_weights()[0].item() - before == pytest.approx(-2.0, rel=1e-4)
    assert history["seen"] == [120.0]


def test_metrics_of_clients_are_refused_alike():
    model = ka.federate(keras.Sequential(dense()))
    metrics = [CountsPositives(name="positives")]
    model.compile(dp_sgd(), client_optimizer="sgd", loss=minus_output, metrics=metrics)
    OUTSIDE[:] = model.weights
    x, y = line_data([1.0, 2.0, 3.0, 4.0])
    clients = ka.federated.ClientData.from_arrays(x, y, np.arange(4))
    with pytest.raises(ValueError, match=r"(?s)out/kernel.*past clipping and noise"):
        model.fit(clients, cohort_size=4, verbose=0)
