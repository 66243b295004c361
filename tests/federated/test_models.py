"""Models beyond the plain ones: sequences, several outputs, losses of layers; what is refused."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka
from keras_adaclip.federated import ClientData, FederatedModel, FederatedSequential
from tests.federated import oracle

SIZES = (3, 5, 1, 4)


def clients_of(x_shape, y_shape=(), num_classes=3):
    generator = np.random.default_rng(0)
    ids = np.repeat(np.arange(len(SIZES)), SIZES)
    x = generator.normal(size=(len(ids), *x_shape)).astype("float32")
    y = generator.integers(0, num_classes, (len(ids), *y_shape))
    return ClientData.from_arrays(x, y, ids)


def compiled(model, loss, chunk=None, **options):
    model.compile(
        optimizer=ka.optimizers.DPOptimizer(
            keras.optimizers.SGD(1.0),
            clipping=1e3,
            noise_multiplier=0.0,
            microbatch_size=chunk,
            seed=1,
        ),
        client_optimizer=keras.optimizers.SGD(0.3),
        client_batch_size=4,
        loss=loss,
        **options,
    )
    return model


@pytest.mark.parametrize("chunk", [None, 1])
def test_sequences_as_long_as_a_batch(chunk, monkeypatch):
    """Four positions, batches of four: a mask of rows must not be one of positions."""
    from keras_adaclip.federated.cohorts import CohortBatches

    batches, take = [], CohortBatches.__getitem__

    def recording(cohorts, index):
        batches.append(take(cohorts, index))
        return batches[-1]

    monkeypatch.setattr(CohortBatches, "__getitem__", recording)

    def stack():
        return [keras.Input((4, 6)), layers.Dense(3)]

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = compiled(FederatedSequential(stack()), loss, chunk, metrics=["accuracy"])
    before = oracle.arrays(model.trainable_variables)
    clients = clients_of((4, 6), (4,))
    model.fit(clients, len(clients), epochs=1, verbose=0)
    plain = keras.Sequential(stack())
    plain.compile(loss=loss)
    found = oracle.contributions(plain, keras.optimizers.SGD(0.3), before, batches[0])
    mean = oracle.clipped_mean(found, 1e3, len(clients))
    expected = oracle.applied(keras.optimizers.SGD(1.0), before, mean)
    for one, other in zip(oracle.arrays(model.trainable_variables), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_losses_of_several_outputs_are_logged():
    inputs = keras.Input((6,))
    outputs = {"a": layers.Dense(1, name="a")(inputs), "b": layers.Dense(1, name="b")(inputs)}
    model = compiled(FederatedModel(inputs, outputs), {"a": "mse", "b": "mae"})
    assert isinstance(model, FederatedModel)
    model.federated_settings.client_optimizer.learning_rate = 0.0
    x, _ = clients_of((6,)).all_examples()
    y = {"a": x[:, :1] + 1.0, "b": 2.0 * x[:, 1:2]}
    # Batches of one size, of which the logs are plain means.
    clients = ClientData.from_arrays(x[:12], {k: v[:12] for k, v in y.items()}, np.arange(12) // 4)
    history = model.fit(clients, 3, epochs=1, verbose=0).history
    expected = model.evaluate(*clients.all_examples(), verbose=0, return_dict=True)
    for name in ("loss", "a_loss", "b_loss"):
        assert history[name][0] == pytest.approx(expected[name], rel=1e-5), name


@pytest.mark.parametrize("kind", ["activity_regularizer", "add_loss"])
def test_losses_of_layers_are_refused(kind):
    class Adding(layers.Layer):
        def call(self, inputs):
            self.add_loss(ops.mean(inputs**2))
            return inputs

    first = Adding() if kind == "add_loss" else layers.Dense(6, activity_regularizer="l2")
    model = compiled(FederatedSequential([keras.Input((6,)), first, layers.Dense(1)]), "mse")
    with pytest.raises(ValueError, match="adds a loss of its own"):
        model.fit(clients_of((6,)), 2, verbose=0)
    assert model.privacy_ledger.steps == 0


def test_what_changes_between_fits_counts():
    model = compiled(FederatedSequential([keras.Input((6,)), layers.Dense(1)]), "mse", chunk=1)
    clients = clients_of((6,))
    model.fit(clients, 4, epochs=1, verbose=0)
    model.optimizer.microbatch_size = 2
    model.client_optimizer.learning_rate = 0.0
    before = oracle.arrays(model.trainable_variables)
    model.fit(clients, 4, epochs=1, verbose=0)
    for one, other in zip(oracle.arrays(model.trainable_variables), before, strict=True):
        np.testing.assert_array_equal(one, other)


def test_clients_unlike_the_first_are_named():
    clients = clients_of((6,))
    examples = clients.examples_at

    def other(position):
        x, y = examples(position)
        return (x, y) if position != 2 else (x[:, :1], y[:0])

    clients.examples_at = other
    model = compiled(FederatedSequential([keras.Input((6,)), layers.Dense(1)]), "mse")
    with pytest.raises(Exception, match=r"Expected of client 2: .*Received: .*\(1, 1\)"):
        model.fit(clients, 4, epochs=5, verbose=0)


def private(model):
    model.compile(
        optimizer=ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def test_examples_and_clients_do_not_share_a_ledger(tmp_path):
    base = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
    clients = clients_of((6,))
    x, y = clients.all_examples()
    by_example = private(ka.privatize(base))
    by_example.fit(x, y, batch_size=4, verbose=0)
    by_client = private(ka.federate(base))
    with pytest.raises(ValueError, match="do not add up"):
        by_client.fit(clients, 2, verbose=0)
    by_example.save_weights(tmp_path / "model.weights.h5")
    fresh = private(FederatedSequential([keras.Input((6,)), layers.Dense(3)]))
    fresh.fit(clients, 2, verbose=0)
    with pytest.raises(ValueError, match="do not add up"):
        fresh.load_weights(tmp_path / "model.weights.h5")
    # Keras may have loaded weights before it raised.
    with pytest.raises(RuntimeError, match="is not known"):
        fresh.privacy_report(1e-3, group_sizes=())


def test_what_was_spent_on_frozen_weights_counts():
    base = layers.Dense(5)
    by_example = private(ka.PrivateSequential([keras.Input((6,)), base]))
    x, y = clients_of((6,)).all_examples()
    by_example.fit(x, y, batch_size=4, verbose=0)
    base.trainable = False
    head = private(ka.PrivateSequential([keras.Input((6,)), base, layers.Dense(3)]))
    head.fit(x, y, batch_size=4, verbose=0)
    assert head.privacy_ledger.steps == 2 * by_example.privacy_ledger.steps


ALL = {"cohort_size": len(SIZES), "sampling": "shuffle", "verbose": 0}


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="compiled as it was")
def test_a_call_replaced_between_two_fits_counts():
    clients, weights = clients_of((5, 5, 1)), []
    for is_replaced in (False, True):
        keras.utils.set_random_seed(3)
        convolution = layers.Conv2D(2, 3)
        stack = [keras.Input((5, 5, 1)), convolution, layers.Flatten(), layers.Dense(3)]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model = compiled(FederatedSequential(stack), loss)
        model.fit(clients, **ALL)
        if is_replaced:
            own = convolution.call
            convolution.call = lambda inputs, own=own: -own(inputs)
        model.fit(clients, **ALL)
        weights.append(model.get_weights()[0])
    assert not np.allclose(*weights)


def test_a_loss_that_decides_by_values():
    clients, weights = clients_of((3,), (1,), num_classes=2), []
    for chunk in (None, 1):
        keras.utils.set_random_seed(5)
        model = FederatedSequential([keras.Input((3,)), layers.Dense(1)])
        compiled(model, "hinge", chunk).fit(clients, **ALL)
        weights.append(model.get_weights()[0])
    np.testing.assert_allclose(*weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "clipping",
    [
        ka.clipping.AdaClip(),
        ka.clipping.MeanNormClipping(),
        ka.clipping.AutomaticClipping(0.5),
        ka.clipping.QuantileClipping(initial_clip_norm=0.05, groups="per_layer"),
    ],
    ids=lambda clipping: type(clipping).__name__,
)
def test_weights_that_are_alike_change_nothing(clipping):
    """With four examples each, `limit / mean` makes up for a weight of `4 / limit`."""
    rng = np.random.default_rng(0)
    clients = ClientData.from_arrays(
        rng.normal(size=(24, 3)).astype("float32"), rng.normal(size=(24, 2)), np.arange(24) % 6
    )
    weights = []
    for weighting in ("uniform", ka.federated.ByExamples(limit=8, mean=4)):
        keras.utils.set_random_seed(5)
        model = FederatedSequential([keras.Input((3,)), layers.Dense(4), layers.Dense(2)])
        model.compile(
            optimizer=ka.optimizers.DPOptimizer(
                keras.optimizers.SGD(1.0), clipping, noise_multiplier=0.0, seed=0
            ),
            client_optimizer=keras.optimizers.SGD(0.1),
            client_weighting=weighting,
            client_batch_size=2,
            loss="mse",
        )
        model.fit(
            clients, cohort_size=6, epochs=4, steps_per_epoch=1, sampling="shuffle", verbose=0
        )
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="compiled as it was")
@pytest.mark.parametrize("chunk", [None, 1])
def test_a_layer_changed_between_two_fits_counts(chunk):
    clients, weights = clients_of((3,), (2,)), []
    for run_eagerly in (False, True):
        keras.utils.set_random_seed(3)
        hidden = layers.Dense(4, activation="tanh")
        model = FederatedSequential([keras.Input((3,)), hidden, layers.Dense(2)])
        compiled(model, "mse", chunk, run_eagerly=run_eagerly)
        for activation in ("tanh", "softplus"):
            hidden.activation = keras.activations.get(activation)
            model.fit(clients, **ALL)
        weights.append(model.get_weights())
    for recorded, eager in zip(*weights, strict=True):
        np.testing.assert_allclose(recorded, eager, rtol=1e-5, atol=1e-6)


class WithSpareLayer(layers.Layer):
    def __init__(self):
        super().__init__()
        self.used, self.never = layers.Dense(3), layers.Dense(2)

    def build(self, input_shape):
        self.used.build(input_shape)

    def call(self, x):
        return self.used(x)


@pytest.mark.parametrize("kind", ["federate", "subclassed"])
def test_a_layer_that_is_never_called(kind):
    """Keras takes a model with such a layer for one that is not built, however often it ran."""
    inputs = keras.Input((4,))

    class Subclassed(FederatedModel):
        def __init__(self):
            super().__init__()
            self.layer = WithSpareLayer()

        def call(self, x):
            return self.layer(x)

    if kind == "federate":
        model = ka.federate(keras.Model(inputs, WithSpareLayer()(inputs)))
    else:
        model = Subclassed()
    clients = clients_of((4,))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compiled(model, loss, metrics=["accuracy"])
    for _ in range(2):
        model.fit(clients, len(clients), verbose=0, validation_data=clients)
    assert model.optimizer.iterations == 2


class WithOwnMetrics(FederatedSequential):
    def __init__(self, *args, returned=(), **kwargs):
        super().__init__(*args, **kwargs)
        self.returned = dict(returned)
        self.own = keras.metrics.Mean(name="own")

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.own.update_state(ops.sum(x, axis=-1), sample_weight)
        return {**super().compute_metrics(x, y, y_pred, sample_weight), **self.returned}


def test_own_metrics_are_those_of_the_local_steps():
    clients = clients_of((4,))
    stack = [keras.Input((4,)), layers.Dense(3)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = compiled(WithOwnMetrics(stack), loss, metrics=["accuracy"])
    history = model.fit(clients, len(clients), verbose=0).history
    x, _ = clients.all_examples()
    np.testing.assert_allclose(history["own"], [x.sum(axis=-1).mean()], rtol=1e-4)
    assert set(history) == {"loss", "accuracy", "own"}


def test_own_metrics_that_would_be_lost_are_refused_by_name():
    clients = clients_of((4,))
    stack = [keras.Input((4,)), layers.Dense(3)]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = compiled(WithOwnMetrics(stack, returned={"extra": 1.0}), loss)
    before = oracle.arrays(model.trainable_variables)
    with pytest.raises(ValueError, match="returns 'extra'"):
        model.fit(clients, len(clients), verbose=0)
    for one, other in zip(oracle.arrays(model.trainable_variables), before, strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_own_loss_is_that_of_the_local_steps():
    class Constant(FederatedSequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return 0.0 * super().compute_loss(x, y, y_pred, sample_weight, training)

    model = compiled(Constant([keras.Input((4,)), layers.Dense(3)]), "mse")
    before = oracle.arrays(model.trainable_variables)
    model.fit(clients_of((4,), (3,)), **ALL)
    for one, other in zip(oracle.arrays(model.trainable_variables), before, strict=True):
        np.testing.assert_array_equal(one, other)
