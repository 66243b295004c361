"""Rule 25: what sees raw rows in a step keeps nothing but the variables of metrics."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_adaclip as ka
from tests.soundness import setups
from tests.soundness.setups import COMPILED, MODES, dp_sgd, minus_output

OUTSIDE = []
X, Y = setups.line_data([1.0, 2.0, 3.0, 4.0])


class Writing(keras.metrics.Sum):
    """Adds what it has seen to variables of others, in one of its methods."""

    def __init__(self, method="update_state", held=None):
        self.method = method
        super().__init__(name="writing")
        # Keras takes it for one of the metric's own.
        self.held = held

    def write(self, method):
        if method == self.method and hasattr(self, "total"):
            for variable in OUTSIDE:
                variable.assign(variable + keras.ops.cast(self.total, variable.dtype))

    def update_state(self, y_true, y_pred, sample_weight=None):
        super().update_state(y_true, sample_weight)
        self.write("update_state")

    def result(self):
        self.write("result")
        return super().result()

    def reset_state(self):
        self.write("reset_state")
        super().reset_state()


class WritingModel(ka.PrivateSequential):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        for variable in OUTSIDE:
            variable.assign(variable + keras.ops.cast(keras.ops.sum(y), variable.dtype))
        return super().compute_metrics(x, y, y_pred, sample_weight)


class WithNote(layers.Identity):
    def build(self, input_shape):
        self.note = self.add_weight(shape=(), initializer="zeros", trainable=False, name="note")


def dense():
    return [keras.Input((1,)), WithNote(), layers.Dense(1, use_bias=False, name="out")]


# What writes, and the variable; a metric that holds it, or `compute_metrics` with a size of chunks.
CASES = [
    ("update_state", "trained"),
    ("update_state", "outside"),
    ("result", "note"),
    ("reset_state", "note"),
    ("held", "trained"),
    ("held", "optimizer"),
    (None, "trained"),
    (2, "optimizer"),
]


@pytest.mark.parametrize(
    ("mode", "writer", "what"),
    [(mode, *case) for mode in MODES for case in CASES if mode in COMPILED or case[0] != "held"],
)
def test_a_metric_that_assigns_another_variable_is_refused_by_name(mode, writer, what):
    OUTSIDE.clear()
    is_metric = isinstance(writer, str)
    optimizer = dp_sgd(microbatch_size=None if is_metric else writer)
    model = (ka.PrivateSequential if is_metric else WritingModel)(dense())
    other = keras.Variable(np.zeros((), "float32"), name="somebody_else")
    found = {"trained": model.trainable_variables[0], "note": model.layers[0].note}
    found |= {"outside": other, "optimizer": optimizer.inner_optimizer.iterations}
    held = {"method": "update_state", "held": found[what]} if writer == "held" else {}
    metrics = [Writing(**held or {"method": writer})] if is_metric else []
    options = {"loss": minus_output, "metrics": metrics, **MODES[mode]}
    model.compile(optimizer, **setups.without_xla(options))
    OUTSIDE[:] = [found[what]]
    before = [keras.ops.convert_to_numpy(each).copy() for each in [*model.weights, other]]
    with pytest.raises(ValueError, match=f"(?s){found[what].path}.*past clipping and noise"):
        model.fit(X, Y + 1.0, batch_size=2, epochs=2, verbose=0)
    after = [keras.ops.convert_to_numpy(each) for each in [*model.weights, other]]
    for one, same in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, same)
    # A metric is read and reset after the steps of an epoch.
    assert model.privacy_ledger.steps == 0 or what == "note"


class Gated(ka.PrivateSequential):
    """Its loss changes its sign once a metric has seen a large target."""

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        ones = keras.ops.ones_like(y)
        self.seen.update_state(ones, ones, y)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        is_large = keras.ops.sum(self.seen.accumulator) > 40.0
        return keras.ops.where(is_large, -1.0, 1.0) * keras.ops.sum(y_pred)


@pytest.mark.parametrize("mode", COMPILED)
def test_losses_do_not_read_what_metrics_have_seen(mode):
    model = Gated(dense())
    # Sums and means are read as zero by other means.
    model.seen = keras.metrics.TruePositives(name="seen")
    model.compile(dp_sgd(noise_multiplier=0.0), **setups.without_xla(COMPILED[mode]))
    fit = {"sampling": "shuffle", "batch_size": 2, "epochs": 1, "verbose": 0}
    before = model.get_weights()[-1].item()
    history = model.fit(np.ones_like(X), Y + 30.0, **fit).history
    # Two steps of one direction, of a clipped mean each.
    assert model.get_weights()[-1].item() - before == pytest.approx(-2.0, rel=1e-4)
    assert history["seen"] == [120.0]


def test_metrics_of_clients_are_refused_too():
    model = ka.federate(keras.Sequential(dense()))
    OUTSIDE.clear()
    metrics = [Writing()]
    model.compile(dp_sgd(), client_optimizer="sgd", loss=minus_output, metrics=metrics)
    OUTSIDE[:] = model.trainable_variables
    clients = ka.federated.ClientData.from_arrays(X, Y, np.arange(4))
    with pytest.raises(ValueError, match=r"(?s)out/kernel.*past clipping and noise"):
        model.fit(clients, cohort_size=4, verbose=0)
