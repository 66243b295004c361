"""`privatize` shares weights, keeps structures, and leaves the given model alone."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models import helpers

X, Y = helpers.features(), helpers.labels()


def normalized(nested=False):
    inputs = keras.Input((6, 6, 3))
    x = keras.layers.Conv2D(4, 3, name="conv")(inputs)
    x = keras.layers.BatchNormalization(name="norm")(x)
    if nested:
        x = keras.Model(inputs, x, name="inner")(inputs)
    outputs = keras.layers.Dense(3, name="logits")(keras.layers.Flatten()(x))
    return keras.Model(inputs, outputs)


@pytest.mark.parametrize("kind", ["functional", "sequential", "unbuilt sequential"])
def test_weights_are_shared_and_the_model_is_not_changed(kind):
    if kind == "functional":
        model = helpers.dense_model(keras.Model)
    else:
        inputs = [keras.Input((helpers.NUM_FEATURES,))] if kind == "sequential" else []
        model = keras.Sequential([*inputs, *helpers.dense_layers()])
    before = type(model), model.get_config(), False
    private = ka.privatize(model)
    assert isinstance(private, ka.PrivateModel)
    assert (type(model), model.get_config(), model.compiled) == before
    helpers.compiled(private)
    helpers.quiet_fit(private, X, Y, batch_size=6, steps_per_epoch=1)
    # The layers are the same objects, so training one trains the other.
    np.testing.assert_array_equal(model.predict(X, verbose=0), private.predict(X, verbose=0))
    assert private.layers[-1] is model.layers[-1]


@pytest.mark.parametrize("nested", [False, True])
def test_batch_normalization_is_replaced(nested):
    model = normalized(nested)
    private = ka.privatize(model, replace_batch_normalization=True)
    kinds = {type(layer).__name__ for layer in private._flatten_layers()}
    assert "GroupNormalization" in kinds
    assert "BatchNormalization" not in kinds
    assert ka.check(private) == []
    assert private.get_layer("logits") is model.get_layer("logits")
    if not nested:
        assert private.get_layer("conv") is model.get_layer("conv")
    # The given model keeps its own normalization.
    assert [issue.layer for issue in ka.check(model)] == ["norm"]


def test_a_class_with_a_loss_of_its_own_takes_what_has_replaced_batch_normalization():
    class OwnLoss(ka.PrivateModel):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean(keras.ops.square(y_pred))

    private = ka.privatize(normalized(), replace_batch_normalization=True)
    model = OwnLoss(private.input, private.output)
    model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.0))
    model.fit(np.ones((4, 6, 6, 3), "float32"), batch_size=2, verbose=0)
    assert model.privacy_ledger.steps == 2


@pytest.mark.parametrize("shape", [(4,), (1, 1, 4), (3, 4)])
@pytest.mark.parametrize("units", [4, 8, 32, 48])
def test_what_replaces_batch_normalization_tells_rows_apart(shape, units):
    """A group of one number, as of a `Dense` layer with as many groups as units, would be zero."""
    made = [keras.layers.Dense(units), keras.layers.BatchNormalization(), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input(shape), *made])
    private = ka.privatize(model, replace_batch_normalization=True)
    x = np.random.default_rng(0).normal(size=(5, *shape)).astype("float32")
    assert np.std(private.predict(x, verbose=0), axis=0).max() > 0.1


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (type("Subclassed", (keras.Model,), {}), "from `keras_adaclip.PrivateModel`"),
        (helpers.dense_model, "private already"),
        (lambda: keras.layers.Dense(1), "must be a Keras model"),
    ],
)
def test_what_cannot_be_made_private(model, message):
    with pytest.raises(TypeError, match=message):
        ka.privatize(model())


def test_cloning_a_compiled_private_model_says_what_to_do():
    stack = [keras.Input((helpers.NUM_FEATURES,)), keras.layers.Dense(3)]
    with pytest.raises(ValueError, match="Clone before you compile"):
        keras.models.clone_model(helpers.compiled(ka.PrivateSequential(stack)))
    ka.privatize(keras.models.clone_model(ka.PrivateSequential(stack)))


def _of_keras(name):
    """A method that does what Keras's does, as one that a user wrote would in part."""

    def method(self, *args, **kwargs):
        return getattr(super(type(self), self), name)(*args, **kwargs)

    return method


OWN_METHODS = (
    *("call", "compile", "compute_loss", "compute_metrics", "evaluate", "fit", "predict"),
    *("make_test_function", "predict_step", "save_own_variables", "test_step", "train_step"),
)


def with_methods(methods, base=keras.Model):
    """A functional model, or a stack of layers, of a class with methods of its own."""
    own = type("Own", (base,), methods)
    if issubclass(base, keras.Sequential):
        return own([keras.Input((helpers.NUM_FEATURES,)), *helpers.dense_layers()])
    return helpers.dense_model(own)


@pytest.mark.parametrize("name", OWN_METHODS)
def test_a_class_with_a_method_of_its_own_is_refused_by_name(name):
    base = keras.Sequential if name < "f" else keras.Model
    with pytest.raises(TypeError, match=rf"type Own .*dropped: '{name}'\. Derive the class"):
        ka.privatize(with_methods({name: _of_keras(name)}, base))


def test_own_methods_of_a_mixin_of_the_instance_or_of_a_private_class_are_refused():
    mixin = type("Mixin", (), {"fit": _of_keras("fit")})
    model = helpers.dense_model(type("Own", (mixin, keras.Model), {}))
    model.compute_metrics = lambda *args, **kwargs: {}
    with pytest.raises(TypeError, match=r"'compute_metrics', 'fit'.*Model` to keep them"):
        ka.federate(model)
    private = with_methods({"compute_loss": _of_keras("compute_loss")}, ka.PrivateModel)
    with pytest.raises(TypeError, match=r"dropped: 'compute_loss'.*FederatedModel` to keep them"):
        ka.federate(private)


def test_what_changes_nothing_of_training_is_no_reason_to_refuse():
    methods = {name: _of_keras(name) for name in ("get_config", "summary")}
    model = with_methods({**methods, "__repr__": lambda self: "own", "helper": lambda self: 1})
    model.compile("sgd", loss=helpers.sparse_crossentropy(), metrics=["accuracy"])
    model.fit(X, Y, verbose=0)
    model.evaluate(X, Y, verbose=0)
    private = ka.privatize(model)
    np.testing.assert_array_equal(private.predict(X, verbose=0), model.predict(X, verbose=0))
    assert not private.compiled
    assert ka.federate(helpers.compiled(private)).privacy_unit == "client"


def test_an_inner_model_whose_call_is_its_own_is_not_taken_apart():
    class Doubling(keras.Model):
        def call(self, x, training=None, mask=None):
            return 2.0 * super().call(x, training=training, mask=mask)

    inputs = keras.Input((6, 6, 3))
    inner = Doubling(inputs, keras.layers.BatchNormalization()(inputs))
    outputs = keras.layers.Dense(3)(keras.layers.Flatten()(inner(inputs)))
    with pytest.raises(TypeError, match="dropped: 'call'"):
        ka.privatize(keras.Model(inputs, outputs), replace_batch_normalization=True)


@pytest.mark.parametrize("cls", [ka.PrivateModel, ka.FederatedModel])
def test_a_model_in_the_place_of_inputs_is_refused_with_what_to_call(cls):
    with pytest.raises(TypeError, match="privatize"):
        cls(helpers.dense_model(keras.Model))
