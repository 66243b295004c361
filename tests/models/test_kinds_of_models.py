"""Every kind of Keras model trains privately, and counts its steps."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from tests.models import helpers
from tests.models.unsafe import Unsafe

X, Y = helpers.features(), helpers.labels()


@keras.saving.register_keras_serializable(package="tests")
class WithOwnWeightsAndNoise(ka.PrivateModel):
    """Owns a weight itself and draws its own random numbers in training."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seeds = keras.random.SeedGenerator(7)
        self.logits = keras.layers.Dense(helpers.NUM_CLASSES)

    def build(self, input_shape):
        self.scale = self.add_weight(shape=(input_shape[-1],), initializer="ones", name="scale")
        self.logits.build(input_shape)

    def call(self, x, training=False):
        if training:
            x = x + 0.1 * keras.random.normal(ops.shape(x), seed=self.seeds)
        return self.logits(x * self.scale)


@keras.saving.register_keras_serializable(package="tests")
class Wrapped(ka.PrivateModel):
    """A functional model made inside its own constructor."""

    def __init__(self, width=5, **kwargs):
        inputs = keras.Input((helpers.NUM_FEATURES,))
        hidden = keras.layers.Dense(width, "relu")(inputs)
        super().__init__(inputs, keras.layers.Dense(3)(hidden), **kwargs)
        self.width = width

    def get_config(self):
        return {"width": self.width, "name": self.name}


def test_models_of_all_kinds_beside_each_other_are_trained_counted_saved_and_loaded(tmp_path):
    """Keras makes a class that is called as a functional model into a functional one."""
    unbuilt = ka.PrivateSequential(helpers.dense_layers())
    own = WithOwnWeightsAndNoise
    models = [own(), helpers.dense_model(), unbuilt, Wrapped(), own()]
    assert not isinstance(helpers.dense_model(keras.Model), ka.PrivateModel)
    assert not isinstance(models[1], own)
    for model in models:
        helpers.compiled(model, metrics=["accuracy"])
        history = helpers.quiet_fit(model, X, Y, batch_size=6, validation_data=(X, Y))
        assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
        assert all(np.isfinite(values).all() for values in history.values())
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        assert type(loaded) is type(model)
        found, expected = (each.predict(X, verbose=0) for each in (loaded, model))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        helpers.quiet_fit(loaded, X, Y, batch_size=6)
        spent = loaded.privacy_spent(1e-3)
        assert (spent.steps, spent.sampling) == (8, "poisson")
        assert int(loaded.optimizer.iterations) == 8
    assert spent.epsilon == pytest.approx(helpers.planned(8), rel=1e-6)


class WithSpareLayers(keras.layers.Layer):
    """One dense layer is called always, one in training alone, one never."""

    def __init__(self, has_spare=True, **kwargs):
        super().__init__(**kwargs)
        start = keras.initializers.GlorotUniform(seed=5)
        self.used = keras.layers.Dense(3, kernel_initializer=start)
        if has_spare:
            self.in_training = keras.layers.Dense(3, kernel_initializer="zeros")
            self.never = keras.layers.Dense(2)
        self.has_spare = has_spare

    def build(self, input_shape):
        self.used.build(input_shape)

    def call(self, x, training=False):
        if training and self.has_spare:
            return self.used(x) + 0.0 * self.in_training(x)
        return self.used(x)


class Around(ka.PrivateModel):
    """A subclassed model around a layer."""

    def __init__(self, inputs, layer):
        super().__init__()
        self.layer = layer

    def call(self, x, training=False):
        return self.layer(x, training=training)


BUILDS = {
    "functional": lambda inputs, layer: ka.privatize(keras.Model(inputs, layer(inputs))),
    "sequential": lambda *layers: ka.PrivateSequential(layers),
    "subclassed": Around,
}


@pytest.mark.parametrize("kind", BUILDS)
def test_layers_that_are_never_called_change_nothing(kind):
    """Keras takes a model with such a layer for one that is not built, however often it ran."""
    trained = []
    for has_spare in (True, False):
        layer = WithSpareLayers(has_spare)
        model = BUILDS[kind](keras.Input((helpers.NUM_FEATURES,)), layer)
        helpers.compiled(model, noise_multiplier=0.0, metrics=["accuracy"])
        for _ in range(2):
            data = {"x": X, "y": Y, "batch_size": len(X)}
            if kind == "functional":
                batches = ((X, Y) for _ in iter(int, 1))
                data = {"x": batches, "num_examples": len(X), "steps_per_epoch": 1}
            helpers.quiet_fit(model, **data, validation_data=(X, Y))
        assert model.optimizer.iterations == 2
        trained.append(layer.used.get_weights())
    for one, other in zip(*trained, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


class OwnMetrics(ka.PrivateSequential):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return {"own": ops.sum(sample_weight)}


@pytest.mark.parametrize("microbatch_size", [None, 8])
def test_what_own_metrics_return_is_reported_or_refused_where_it_would_be_lost(microbatch_size):
    """It does not leave the loop over the chunks of a batch."""
    model = OwnMetrics([keras.Input((helpers.NUM_FEATURES,)), *helpers.dense_layers()])
    helpers.compiled(model, microbatch_size=microbatch_size)
    options, before = {"batch_size": len(X), "epochs": 2}, helpers.weights_of(model)
    if microbatch_size is None:
        assert helpers.quiet_fit(model, X, Y, **options)["own"] == [len(X)] * 2
    else:
        with pytest.raises(ValueError, match=r"compute_metrics.*'own'.*microbatch_size"):
            helpers.quiet_fit(model, X, Y, **options)
        helpers.assert_same_weights(model, before)


# Normalization by statistics that training leaves alone, or that the weights alone decide


class WithExtractor(ka.PrivateModel):
    """A head on a feature extractor that is called for inference."""

    def __init__(self, base):
        super().__init__()
        self.base, self.head = base, keras.layers.Dense(3)

    def call(self, x):
        return self.head(self.base(x, training=False))


@pytest.mark.parametrize(("how", "run_eagerly"), [("attribute", True), ("base", False)])
def test_a_batch_normalization_that_is_called_for_inference_is_accepted(how, run_eagerly):
    norm = keras.layers.BatchNormalization(name="norm")
    if how == "attribute":
        norm.build((None, 4))
        layer = Unsafe(lambda self, x, training: self.norm(x, training=False), norm=lambda: norm)
        model = helpers.model_with(layer)
    else:
        base = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), norm])
        model = WithExtractor(base)
    helpers.compiled(model, run_eagerly=run_eagerly)
    before = helpers.weights_of(norm)
    helpers.quiet_fit(model, X, Y, batch_size=6, epochs=2)
    after = norm.get_weights()
    np.testing.assert_array_equal(after[2], before[2])  # the moving mean
    assert np.abs(after[0] - before[0]).max() > 0  # gamma is trained


@pytest.mark.parametrize(
    ("cls", "microbatch_size"), [(ka.PrivateModel, 2), (ka.FederatedModel, None)]
)
def test_spectral_normalization_is_trained(cls, microbatch_size):
    layer = keras.layers.SpectralNormalization(keras.layers.Dense(4, activation="tanh"))
    model = helpers.model_with(layer, cls=cls)
    # Small steps, which one power iteration each keeps up with.
    sgd = keras.optimizers.SGD(0.02)
    helpers.compiled(model, 0.1, optimizer=sgd, seed=1, microbatch_size=microbatch_size)
    before = np.array(ops.convert_to_numpy(layer.vector_u.value))
    if cls is ka.PrivateModel:
        helpers.quiet_fit(model, X, Y, batch_size=6, epochs=20)
    else:
        clients = ka.federated.ClientData.from_arrays(X, Y, np.arange(len(X)) % 6)
        model.fit(clients, cohort_size=2, epochs=8, verbose=0)
    kernel = ops.convert_to_numpy(layer.layer.kernel.value)
    np.testing.assert_allclose(np.linalg.svd(kernel)[1][0], 1.0, atol=0.05)
    assert np.abs(ops.convert_to_numpy(layer.vector_u.value) - before).max() > 1e-3


def test_spectral_normalization_does_not_depend_on_the_data():
    def state_after(x):
        keras.utils.set_random_seed(1)
        layer = keras.layers.SpectralNormalization(keras.layers.Dense(4))
        model = helpers.compiled(helpers.model_with(layer), optimizer=keras.optimizers.SGD(0.0))
        helpers.quiet_fit(model, x, Y, batch_size=6)
        return [ops.convert_to_numpy(each.value) for each in (layer.vector_u, layer.kernel)]

    np.testing.assert_equal(state_after(X), state_after(X[::-1] * 3))
