"""Every kind of Keras model trains privately, and counts its steps."""

import keras
import numpy as np
import pytest
from keras import ops

import keras_adaclip as ka
from tests.models import helpers

X, Y = helpers.features(), helpers.labels()


@keras.saving.register_keras_serializable(package="tests")
class WithTraining(ka.PrivateModel):
    """Subclassed, with dropout that only training sees."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden, self.logits = helpers.dense_layers()
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x, training=None):
        return self.logits(self.dropout(self.hidden(x), training=training))


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


def unbuilt():
    return ka.PrivateSequential(helpers.dense_layers())


@pytest.mark.parametrize(
    "build", [helpers.dense_model, unbuilt, WithTraining, WithOwnWeightsAndNoise]
)
def test_trains_and_counts(build):
    model = helpers.compiled(build(), metrics=["accuracy"])
    assert isinstance(model, ka.PrivateModel)
    history = helpers.quiet_fit(model, X, Y, batch_size=6, epochs=2, validation_data=(X, Y))
    assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert all(np.isfinite(values).all() for values in history.values())
    spent = model.privacy_spent(1e-3)
    assert (spent.steps, spent.sampling) == (8, "poisson")
    assert int(model.optimizer.iterations) == 8
    assert spent.epsilon == pytest.approx(
        ka.accounting.compute_epsilon(1.0, len(X), 6, steps=8, delta=1e-3), rel=1e-6
    )


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


def test_subclassed_and_functional_models_beside_each_other_are_saved_and_loaded(tmp_path):
    """Keras makes a class that is called as a functional model into a functional one."""
    models = [WithTraining(), helpers.dense_model(), Wrapped(), WithTraining()]
    assert not isinstance(helpers.dense_model(keras.Model), ka.PrivateModel)
    assert not isinstance(models[1], WithTraining)
    for model in models:
        helpers.quiet_fit(helpers.compiled(model), X, Y, batch_size=6, steps_per_epoch=1)
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
        assert type(loaded) is type(model)
        np.testing.assert_allclose(
            loaded.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5
        )
        helpers.quiet_fit(loaded, X, Y, batch_size=6, steps_per_epoch=1)
        assert loaded.privacy_spent(1e-3).steps == 2


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
