"""Cross-entropies of probabilities have the gradient of their logits, however far these are."""

import keras
import numpy as np
import pytest
from keras import layers, losses, ops

import keras_adaclip as ka
from tests.gradients.support import assert_close, built, plan_for, row_gradients, runner
from tests.models import helpers
from tests.oracles import clipped_sums

ROWS, CLASSES = 4, 3
FAR = 40.0  # Of logits, whose probabilities Keras clips at 1e-7.
LABELS = np.array([1, 2, 0, 1], "int32")
BINARY = np.eye(CLASSES, dtype="float32")[LABELS]


class OfOwnLast(keras.Layer):
    """Probabilities as a user computes them."""

    def call(self, inputs):
        return ops.sigmoid(inputs)


# By loss: its arguments, targets, and layers that make probabilities of logits.
CASES = {
    "BinaryCrossentropy": ({"label_smoothing": 0.1}, BINARY, [layers.Activation("sigmoid")]),
    "BinaryFocalCrossentropy": ({"gamma": 1.0}, BINARY, [OfOwnLast()]),
    "CategoricalCrossentropy": ({}, BINARY, [layers.Softmax()]),
    "SparseCategoricalCrossentropy": ({"ignore_class": 2}, LABELS, [layers.Softmax()]),
    # Keras squeezes the last axis of such predictions.
    "images": ({}, BINARY.reshape(ROWS, CLASSES, 1), [layers.Reshape((3, 1, 1)), OfOwnLast()]),
}


def prepared(name, last, from_logits):
    """A model with logits that are far from most targets, and its data."""
    arguments, y, probabilities = CASES[name]
    kind = getattr(losses, "BinaryCrossentropy" if name == "images" else name)
    x = np.ones((ROWS, 2), "float32")
    if from_logits:
        probabilities, arguments = probabilities[:-1], {**arguments, "from_logits": True}
    model = keras.Sequential([keras.Input((2,)), layers.Dense(CLASSES), *probabilities])
    model = built(model, x, y, loss=kind(**arguments))
    model.set_weights([np.array([[FAR, 0.0, -FAR]] * 2, "float32"), np.zeros(3, "float32")])
    return model, x, y


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_logits(name):
    of_logits, x, y = prepared(name, layers.Dense, True)
    model, *_ = prepared(name, layers.Dense, False)
    expected = row_gradients(of_logits, x, y)
    assert max(np.abs(each).max() for each in expected) > 0.1
    found = runner(model, plan_for(model, x, y), 0.5)(x, y)
    assert_close(found.gradients, clipped_sums(expected, 0.5))
    np.testing.assert_allclose(found.y_pred, model.predict(x, verbose=0), atol=1e-6)


@pytest.mark.parametrize(
    ("activation", "loss"), [("softmax", "Binary"), ("sigmoid", "Categorical")]
)
def test_a_loss_of_other_probabilities_is_left_as_it_is(activation, loss):
    """The cross-entropy of the sigmoids of what made a softmax is another number."""
    if keras.backend.backend() == "tensorflow":
        pytest.skip("Keras takes it there")
    made = [keras.Input((2,)), layers.Dense(CLASSES, activation=activation)]
    x = np.random.default_rng(0).normal(size=(ROWS, 2)).astype("float32")
    model = built(keras.Sequential(made), x, BINARY, loss=getattr(losses, loss + "Crossentropy")())
    found = runner(model, plan_for(model, x, BINARY), 1e6)(x, BINARY)
    assert_close(found.gradients, clipped_sums(row_gradients(model, x, BINARY), 1e6))


class Doubled(ka.PrivateModel):
    """Adds nothing to the loss, in a method of its own."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return super().compute_loss(x, y, y_pred, sample_weight, training)


@pytest.mark.parametrize("kind", [ka.PrivateModel, Doubled, ka.FederatedModel])
def test_a_far_row_moves_the_weights_of_every_kind_of_model(kind):
    """Of two outputs that share a loss."""
    inputs = keras.Input((2,), name="inputs")
    of_first = layers.Dense(1, activation="sigmoid", name="first")(inputs)
    of_second = layers.Activation("sigmoid", name="second")(layers.Dense(1)(inputs))
    model = kind(inputs, {"first": of_first, "second": of_second})
    x, y = np.ones((8, 2), "float32"), np.zeros((8, 1), "float32")
    far = [np.full((2, 1), FAR, "float32"), np.zeros(1, "float32")]
    model.set_weights(far * 2)
    sgd = keras.optimizers.SGD(1.0)
    optimizer = ka.optimizers.DPOptimizer(sgd, clipping=0.1, noise_multiplier=1e-6)
    model.compile(optimizer, loss=losses.BinaryCrossentropy())
    y = {"first": y, "second": y}
    if kind is ka.FederatedModel:
        clients = ka.federated.ClientData.from_arrays(x, y, np.arange(8))
        model.fit(clients, cohort_size=8, verbose=0)
    else:
        helpers.quiet_fit(model, x, y, batch_size=8)
    pairs = zip(model.get_weights(), far * 2, strict=True)
    assert min(np.abs(after - before).min() for after, before in pairs) > 1e-3
