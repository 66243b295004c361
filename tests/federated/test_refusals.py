"""What is refused, and that it is said of clients and cohorts: which layer, which argument, why."""

import re

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.federated import ClientData, FederatedModel, FederatedSequential

CLIENTS = ClientData.from_arrays(
    np.random.default_rng(0).normal(size=(13, 4)).astype("float32"),
    np.arange(13) % 3,
    np.repeat(np.arange(4), (3, 5, 1, 4)),
)


def fit(
    stack,
    loss="sparse_categorical_crossentropy",
    kind=FederatedSequential,
    clients=CLIENTS,
    callbacks=None,
    client_batch_size=None,
):
    model = kind([keras.Input((4,)), *stack, layers.Dense(3, activation="softmax")])
    model.compile(
        optimizer=ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0),
        client_batch_size=client_batch_size,
        loss=loss,
    )
    before = [ops.convert_to_numpy(each) for each in model.trainable_variables]
    try:
        history = model.fit(clients, 2, steps_per_epoch=2, verbose=0, callbacks=callbacks)
        return history.history["loss"]
    except ValueError:
        assert model.privacy_ledger.steps == 0
        for old, new in zip(before, model.trainable_variables, strict=True):
            np.testing.assert_array_equal(old, ops.convert_to_numpy(new))
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


class Centring(layers.Layer):
    """Mixes the rows of a batch, in training alone."""

    def call(self, inputs, training=False):
        return inputs - ops.mean(inputs, axis=0) if training else inputs


class OtherNumbers(layers.Layer):
    """Draws random numbers that are not Keras's."""

    def call(self, inputs):
        return inputs + float(np.random.default_rng().normal())


@pytest.mark.parametrize("kind", [Noise, Counting])
def test_random_numbers_and_state_of_a_layer_are_no_padding_that_the_loss_counts(kind):
    assert np.isfinite(fit([kind()])).all()


@pytest.mark.parametrize("client_batch_size", [None, 4])
@pytest.mark.parametrize("others", [[], [layers.Dropout(0.5)]])
def test_a_layer_that_lets_padding_count_is_named(others, client_batch_size):
    with pytest.raises(ValueError, match=r"centring: Its output for one row depends on other rows"):
        fit([*others, Centring(name="centring")], client_batch_size=client_batch_size)


class Late(layers.Layer):
    """Lets padding count in one of several ways, which three rows and today's weights hide."""

    def __init__(self, way, **kwargs):
        super().__init__(**kwargs)
        self.way = way

    def build(self, shape):
        self.gate = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        rows = inputs.shape[0]
        if self.way == "number":
            return inputs * (1.0 + self.gate * ops.cast(ops.shape(inputs)[0], inputs.dtype))
        if self.way == "command":
            gate = ops.relu(self.gate - 1e15)
        elif self.way == "many":  # TensorFlow may not know while it traces.
            gate = 1.0 * (rows > 8 if isinstance(rows, int) else rows is None)
        else:
            gate = self.gate
        return inputs + gate * ops.mean(inputs, axis=0, keepdims=True)


def of_sizes(*sizes):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(sum(sizes), 4)).astype("float32")
    ids = np.repeat(np.arange(len(sizes)), sizes)
    return ClientData.from_arrays(x, np.arange(sum(sizes)) % 3, ids)


@pytest.mark.parametrize("others", [[], [layers.Dropout(0.5)]])
@pytest.mark.parametrize("way", ["many", "mean", "number"])
def test_a_layer_that_lets_padding_count_only_later_is_named(way, others):
    """One large client would decide how much padding all others have."""
    with pytest.raises(ValueError, match=r"late: Its output for one row depends on other rows"):
        fit([*others, Late(way, name="late")], clients=of_sizes(5, 4, 40))


def test_what_was_proved_of_padding_is_proved_again_before_each_epoch():
    late = Late("command", name="late")
    gate = keras.callbacks.LambdaCallback(on_epoch_begin=lambda *_: late.gate.assign(2e15))
    message = r"late: Its output.*It did not when training began"
    with pytest.raises(ValueError, match=message):
        fit([late], clients=of_sizes(5, 4, 12), callbacks=[gate])


def test_a_loss_that_counts_padding_of_large_batches_only_is_refused():
    def loss(y_true, y_pred):
        own = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
        return own if y_pred.shape[0] <= 8 else own + 0.0 * own + ops.mean(own)

    with pytest.raises(ValueError, match="counts the rows that pad"):
        fit([], loss, clients=of_sizes(5, 4, 12))


def test_a_layer_whose_random_numbers_are_not_those_of_keras_is_named():
    with pytest.raises(ValueError, match=r"other: .*draws random numbers outside.*SeedGenerator"):
        fit([OtherNumbers(name="other")])


def test_a_loss_that_draws_random_numbers_is_not_said_to_count_padding():
    seeds = keras.random.SeedGenerator(1)

    def loss(y_true, y_pred):
        own = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
        return own + keras.random.uniform((), seed=seeds)

    with pytest.raises(ValueError, match="loss: It gave two values for the same targets"):
        fit([], loss)


def test_what_random_layers_do_hides_no_loss_that_counts_padding():
    class Own(FederatedSequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return ops.mean(ops.abs(y_pred - 1.0))

    with pytest.raises(ValueError, match="counts the rows that pad"):
        fit([Noise()], None, Own)


def test_frozen_batch_normalization_and_masks_are_fine():
    words = ClientData.from_arrays(
        np.random.default_rng(0).integers(0, 9, (13, 5)), np.arange(13) % 3, np.arange(13) % 4
    )
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 4, mask_zero=True)(inputs)
    x = layers.GlobalAveragePooling1D()(layers.LSTM(4, return_sequences=True)(x))
    frozen = layers.BatchNormalization(trainable=False)
    model = FederatedModel(inputs, layers.Dense(3, activation="softmax")(frozen(x)))
    model.compile(
        optimizer=ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0),
        loss="sparse_categorical_crossentropy",
    )
    history = model.fit(words, 2, steps_per_epoch=1, verbose=0).history
    assert np.isfinite(history["loss"]).all()


def compiled(clipping=0.3, metrics=None, **options):
    model = FederatedSequential([keras.Input((4,)), layers.Dense(3, activation="softmax")])
    optimizer = ka.optimizers.DPOptimizer(
        keras.optimizers.SGD(1.0), clipping, noise_multiplier=1.0, **options
    )
    loss = "sparse_categorical_crossentropy"
    model.compile(optimizer=optimizer, loss=loss, metrics=metrics)
    return model


def with_option(name):
    model = compiled()
    setattr(model.optimizer.inner_optimizer, name, 1.0)
    return model


class WithoutWeights(keras.metrics.Metric):
    def update_state(self, y_true, y_pred):
        """Counts nothing."""


class Twice(ClientData):
    """A user's own data set, in which a client has two entries."""

    client_ids = ("ann", "bob", "ann")

    def num_examples_at(self, position):
        return 4

    def examples_at(self, position):
        return CLIENTS.examples_at(3)


def canaries():
    return ka.audit.Canaries(*CLIENTS.all_examples(), [0, 1], np.array([True, False]))


def budget(*args, **arguments):
    return [ka.callbacks.PrivacyCallback(*args, **arguments)]


X, Y = CLIENTS.all_examples()
QUANTILE = ka.clipping.QuantileClipping()
CASES = {
    "arrays": (compiled, lambda: (X, Y), {}, r"says to which client.*type ndarray"),
    "a client twice": (compiled, lambda: (Twice(), 2), {}, "3 entries of 2 clients"),
    "bits": (lambda: compiled(QUANTILE), None, {}, r"`cohort_size`\) above 10"),
    "target": (
        compiled,
        None,
        {"callbacks": lambda: budget(1e-3, target_epsilon=0.01)},
        "nothing was trained.*lower `cohort_size`",
    ),
    "auto": (lambda: compiled(microbatch_size="auto"), None, {}, "a number of clients"),
    "audit": (
        compiled,
        None,
        {"callbacks": lambda: [ka.callbacks.AuditCallback(canaries(), 1e-3)]},
        "audits the training of a `PrivateModel`",
    ),
    "metric": (
        lambda: compiled(metrics=[WithoutWeights(name="plain")]),
        None,
        {},
        "plain: The metric takes no `sample_weight`",
    ),
    "clipnorm": (lambda: with_option("clipnorm"), None, {}, "each example or client adds"),
}


@pytest.mark.parametrize("name", list(CASES))
def test_it_is_said_of_clients_and_cohorts(name):
    make, data, arguments, message = CASES[name]
    model = make()
    arguments = {name: value() for name, value in arguments.items()}
    with pytest.raises((TypeError, ValueError, UserWarning), match=f"(?s){message}") as raised:
        model.fit(*(data or (lambda: (CLIENTS, 2)))(), verbose=0, **arguments)
    assert not re.search(r"batch size|number of examples|examples to the", str(raised.value))
    assert model.privacy_ledger.steps == 0


def test_the_report_and_the_default_delta_are_about_clients(capsys):
    model = compiled()
    model.fit(CLIENTS, 2, verbose=0, callbacks=budget())
    assert "(4 clients to the power -1.1)" in capsys.readouterr().out
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
