"""What is refused, and that it is said of clients and cohorts: which layer, which argument, why."""

import re

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.federated import ClientData, FederatedModel, FederatedSequential
from tests.federated.support import clients_of, compiled, weights

CLIENTS = clients_of((3, 5, 1, 4))
# One large client decides how much padding all others have.
WITH_A_LARGE_ONE = clients_of((5, 4, 40))


def fit(stack, clients=CLIENTS, kind=FederatedSequential, callbacks=None, **options):
    """Train a stack of layers, or check that a refusal leaves it as it was."""
    model = kind([keras.Input((4,)), *stack, layers.Dense(3, activation="softmax")])
    options = {"loss": "sparse_categorical_crossentropy", "client_batch_size": None, **options}
    compiled(model, noise_multiplier=1.0, **options)
    before = weights(model)
    try:
        arguments = {"steps_per_epoch": 2, "verbose": 0, "callbacks": callbacks}
        return model.fit(clients, 2, **arguments).history["loss"]
    except ValueError:
        assert model.privacy_ledger.steps == 0
        np.testing.assert_array_equal(weights(model), before)
        raise


class Noise(layers.Layer):
    """Draws random numbers in inference too."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, inputs):
        return inputs + keras.random.normal(ops.shape(inputs), seed=self.seeds)


class Counting(layers.Layer):
    """Keeps state of its own: each call counts."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        self.calls.assign(self.calls + 1.0)
        return inputs * (1.0 + 0.1 * self.calls)


class OtherNumbers(layers.Layer):
    def call(self, inputs):
        return inputs + float(np.random.default_rng().normal())


@pytest.mark.parametrize("kind", [Noise, Counting])
def test_random_numbers_and_state_of_a_layer_are_no_padding_that_the_loss_counts(kind):
    assert np.isfinite(fit([kind()])).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.BatchNormalization(), r"batch_normalization.*GroupNormalization"),
        (lambda: layers.Dense(4, activity_regularizer="l2"), "adds a loss of its own"),
        (lambda: OtherNumbers(name="other"), r"other: .*draws? .*keras\.random"),
    ],
)
def test_layers_that_would_leave_the_guarantee_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        fit([make()])


class Late(layers.Layer):
    """Lets padding count: in training, or where three rows and the initial weights hide it."""

    def __init__(self, kind):
        super().__init__(name="late")
        self.kind = kind

    def build(self, shape):
        self.gate = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs, training=False):
        rows, gate = inputs.shape[0], self.gate
        if self.kind == "number":
            return inputs * (1.0 + gate * ops.cast(ops.shape(inputs)[0], inputs.dtype))
        if self.kind == "training":
            gate = 1.0 * training
        elif self.kind == "many":  # TensorFlow may not know while it traces.
            gate = 1.0 * (rows > 8 if isinstance(rows, int) else rows is None)
        return inputs - gate * ops.mean(inputs, axis=0, keepdims=True)


@pytest.mark.parametrize(
    ("kind", "others", "size"),
    [
        *((kind, 0, None) for kind in ("training", "many", "mean", "number")),
        ("mean", 1, None),
        ("training", 1, 4),
    ],
)
def test_a_layer_that_lets_padding_count_is_named(kind, others, size):
    with pytest.raises(ValueError, match=r"late: Its output for one row depends on other rows"):
        fit([*[layers.Dropout(0.5)] * others, Late(kind)], WITH_A_LARGE_ONE, client_batch_size=size)


def mean_in_large_batches(y_true, y_pred):
    own = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
    return own if y_pred.shape[0] <= 8 else own + 0.0 * own + ops.mean(own)


def mean(y_true, y_pred):
    return ops.mean(ops.square(y_pred - 1.0))


def random_loss(y_true, y_pred):
    own = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
    return own + keras.random.uniform((), seed=SEEDS)


class OwnLoss(FederatedSequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return ops.mean(ops.abs(y_pred - 1.0))


SEEDS = keras.random.SeedGenerator(1)
EQUAL = layers.Dense(3, kernel_initializer="zeros", name="equal")
COUNTS = "counts the rows that pad"


@pytest.mark.parametrize(
    ("stack", "options", "message"),
    [
        ([], {"loss": mean_in_large_batches, "clients": clients_of((5, 4, 12))}, COUNTS),
        # Random layers hide nothing, nor do equal predictions.
        ([Noise()], {"loss": None, "kind": OwnLoss}, COUNTS),
        ([EQUAL], {"loss": mean, "clients": clients_of((5, 4, 12), y_shape=(3,))}, COUNTS),
        ([], {"loss": random_loss}, "loss: It has no finite value for made-up rows, or two for"),
    ],
)
def test_a_loss_that_counts_padding_or_draws_is_refused(stack, options, message):
    with pytest.raises(ValueError, match=message):
        fit(stack, **options)


def test_frozen_batch_normalization_and_masks_are_fine():
    words = ClientData.from_arrays(
        np.random.default_rng(0).integers(0, 9, (13, 5)), np.arange(13) % 3, np.arange(13) % 4
    )
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 4, mask_zero=True)(inputs)
    x = layers.GlobalAveragePooling1D()(layers.LSTM(4, return_sequences=True)(x))
    model = FederatedModel(inputs, layers.Dense(3)(layers.BatchNormalization(trainable=False)(x)))
    history = compiled(model, noise_multiplier=1.0).fit(words, 2, steps_per_epoch=1, verbose=0)
    assert np.isfinite(history.history["loss"]).all()


def private(clipping=0.3, **options):
    return compiled(clipping=clipping, noise_multiplier=1.0, **options)


class WithoutWeights(keras.metrics.Metric):
    def update_state(self, y_true, y_pred):
        pass


class Twice(ClientData):
    client_ids = ("ann", "bob", "ann")

    def examples_at(self, position):
        return CLIENTS.examples_at(3)


def target():
    return ka.callbacks.PrivacyCallback(1e-3, target_epsilon=0.01)


def audit():
    canaries = ka.audit.Canaries(*CLIENTS.all_examples(), [0, 1], np.array([True, False]))
    return ka.callbacks.AuditCallback(canaries, 1e-3)


# Options, and what to train on or a callback.
CASES = [
    ({}, CLIENTS.all_examples()[0], r"says to which client.*type ndarray"),
    ({}, Twice(), "3 entries of 2 clients"),
    ({"clipping": ka.clipping.QuantileClipping()}, CLIENTS, r"`cohort_size`\) above"),
    ({}, target, "nothing was trained.*lower `cohort_size`"),
    ({"microbatch_size": "auto"}, CLIENTS, "a number of clients"),
    ({}, audit, "audits the training of a `PrivateModel`"),
    ({"metrics": [WithoutWeights(name="plain")]}, CLIENTS, "plain: The metric takes no `sample_w"),
]


@pytest.mark.parametrize(("options", "given", "message"), CASES)
def test_federated_errors_name_clients_and_cohorts(options, given, message):
    model = private(**options)
    data, callbacks = (CLIENTS, [given()]) if callable(given) else (given, None)
    with pytest.raises((TypeError, ValueError, UserWarning), match=f"(?s){message}") as raised:
        model.fit(data, 2, verbose=0, callbacks=callbacks)
    assert not re.search(r"batch size|number of examples|examples to the", str(raised.value))
    assert model.privacy_ledger.steps == 0


def test_the_report_and_the_default_delta_are_about_clients(capsys):
    model = private()
    model.fit(CLIENTS, 2, verbose=2, callbacks=[ka.callbacks.PrivacyCallback()])
    assert "from 4 clients" in (line := capsys.readouterr().out.splitlines()[0])
    assert "(4 ** -1.1)" in line
    text = model.privacy_report(1e-3, group_sizes=(2,)).to_text()
    assert "person with 2 clients" in text
    assert "2 steps, cohorts of 2 of 4" in text
    assert "- The number of clients, which counts as public." in text
    assert not re.search(r"examples|batches|PoissonDataset", text)


def test_clients_are_no_examples():
    model = ka.PrivateSequential([keras.Input((4,)), layers.Dense(3, activation="softmax")])
    model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0), loss="mse")
    with pytest.raises(TypeError, match=r"these are clients.*FederatedModel"):
        model.fit(CLIENTS, batch_size=2)
