"""Every private name of Keras that the package relies on is there and does what is relied on.

Those of metrics are tested in `tests/soundness/test_rules_masks.py`, those of the compilers of JAX
in `test_jax_compiling.py` and `tests/models/test_augmentation.py`.
"""

import keras
import numpy as np
import pytest
from keras import layers, ops

from keras_adaclip.backend import keras_private
from tests.gradients.architectures import Scale
from tests.models import helpers

BACKEND = keras.backend.backend()


def two_outputs():
    inputs = keras.Input((3,))
    hidden = layers.Dense(2, kernel_regularizer="l2", name="hidden")(layers.Dropout(0.5)(inputs))
    outputs = {"a": layers.Dense(1, name="a")(hidden), "b": layers.Dense(2, name="b")(hidden)}
    return keras.Model(inputs, outputs)


def compiled():
    model, rng = two_outputs(), np.random.default_rng(0)
    metrics = {"metrics": {"a": ["mae"]}, "weighted_metrics": {"b": ["mse"]}}
    model.compile(optimizer="adam", loss={"a": "mse", "b": "mae"}, **metrics)
    x, *y = (rng.normal(size=(4, size)).astype("float32") for size in (3, 1, 2))
    before = helpers.weights_of(model)
    y = dict(zip("ab", y, strict=True))
    keras_private.build_for_training(model, x, y, None)
    # It builds everything and trains nothing.
    helpers.assert_same_weights(model, before)
    return model, x, y


def test_flatten_layers_finds_inner_layers_once_and_outermost_first():
    inner = keras.Sequential([keras.Input((2,)), layers.Dense(2)])
    inputs = keras.Input((2,))
    model = keras.Model(inputs, inner(inner(inputs)))
    found = keras_private.flatten_layers(model)
    assert found[0] is model
    assert sum(layer is inner for layer in found) == 1
    assert found.index(inner) < found.index(inner.layers[0])


def test_own_variables_are_those_of_the_layer_and_not_of_its_inner_layers():
    layer, norm = Scale(), layers.BatchNormalization()
    for each in (layer, norm):
        each.build((None, 2))
    assert keras_private.own_variables(layer) == [layer.scale]
    assert keras_private.own_trainable_variables(layer.inner) == layer.inner.trainable_variables
    assert keras_private.own_variables(norm) == norm.variables
    assert keras_private.own_trainable_variables(norm) == [norm.gamma, norm.beta]
    norm.trainable = False
    assert keras_private.own_trainable_variables(norm) == []


@pytest.mark.parametrize("has_own_call", [False, True])
def test_a_call_is_replaced_for_a_time(has_own_call):
    layer = layers.Dense(2)
    layer.build((None, 2))
    if has_own_call:
        layer.call = lambda inputs: inputs - 1.0
    own = vars(layer).get("call")

    def assert_adds(number):
        outputs = ops.convert_to_numpy(layer(np.zeros((1, 2))))
        np.testing.assert_array_equal(outputs, np.full((1, 2), number))

    before = -1.0 if has_own_call else 0.0
    assert_adds(before)
    with keras_private.replaced_calls({layer: lambda inputs: inputs + 1.0}):
        with keras_private.replaced_calls({layer: lambda inputs: inputs + 2.0}):
            assert_adds(2.0)
        assert_adds(1.0)
    assert_adds(before)
    assert vars(layer).get("call") is own


def test_masks_are_read_and_attached_where_keras_looks_for_them():
    embedded = layers.Embedding(3, 2, mask_zero=True)(np.array([[1, 0]]))
    mask = keras_private.mask_of(embedded)
    np.testing.assert_array_equal(ops.convert_to_numpy(mask), [[True, False]])
    plain = ops.ones((1, 2, 2))
    assert keras_private.mask_of(plain) is None
    assert keras_private.attach_mask(plain, None) is plain
    keras_private.attach_mask(plain, mask)
    loss = keras.losses.MeanAbsoluteError(reduction="sum")
    targets = ops.convert_to_tensor([[[0.0, 0.0], [5.0, 5.0]]])
    assert float(loss(targets, plain)) == 1.0


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_logits_are_found_on_tensorflow_alone(activation):
    logits = ops.convert_to_tensor([[1.0, 2.0]])
    outputs = getattr(keras.activations, activation)(logits)
    _, found = keras_private.marks_of(outputs)
    if BACKEND != "tensorflow":
        assert found is None
        return
    np.testing.assert_array_equal(ops.convert_to_numpy(found), [[1.0, 2.0]])
    # The cross-entropies really start from them.
    logits = ops.convert_to_tensor([[0.0, 99.0]])
    other = keras_private.attach_marks(ops.ones((1, 2)) / 2.0, (None, logits))
    wrong = keras.losses.CategoricalCrossentropy()(np.array([[1.0, 0.0]], "float32"), other)
    assert float(wrong) == pytest.approx(99.0)


def test_trackers_losses_and_metrics_of_a_compiled_model():
    model, _, _ = compiled()
    assert model.optimizer.built
    trackers = keras_private.output_loss_trackers(model)
    assert [type(tracker) for tracker in trackers] == [keras.metrics.Mean] * 2
    assert keras_private.loss_tracker(model).name == "loss"
    assert float(keras_private.loss_tracker(model).result()) == 0.0
    assert [callable(loss) for loss in keras_private.compiled_losses(model)] == [True] * 2
    assert len(keras_private.compiled_metrics(model)) == 2
    plain = keras.Sequential([layers.Dense(1)])
    assert keras_private.output_loss_trackers(plain) == []
    assert keras_private.compiled_losses(plain) == []
    assert keras_private.compiled_metrics(plain) == []
    metric = keras.metrics.MeanAbsoluteError()
    plain.compile(metrics=["mse", metric])
    # Before Keras builds them, those that were given as objects.
    assert keras_private.compiled_metrics(plain) == [metric]


def test_regularizers_are_hidden_and_come_back():
    model = two_outputs()
    with keras_private.without_regularizers(model):
        assert model.losses == []
    assert len(model.losses) == 1


def test_a_model_is_built_by_keras_except_when_it_is_built_already():
    class Built(keras_private.BuiltBeforeFit, keras.Model):
        pass

    model, names = Built(), ["_symbolic_build", "_maybe_symbolic_build"]
    # Keras's own names, which would fail without data.
    found = [hasattr(keras.Model, name) for name in names]
    assert found == [True, BACKEND == "tensorflow"]
    with keras_private.built_already(model):
        for name in names:
            getattr(model, name)()
    with pytest.raises((TypeError, ValueError, AttributeError)):
        model._symbolic_build()


@keras.saving.register_keras_serializable(package="tests")
class Halving(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(0.5 * gradient, variable, learning_rate)


def optimizer_of_a_user():
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.5)
    return Halving(rate, momentum=0.9, nesterov=True, weight_decay=0.1, clipnorm=0.5)


def test_updates_are_those_of_the_optimizer():
    """Keras's own are compared in `tests/federated/test_round.py`."""
    optimizer = optimizer_of_a_user()
    functional = keras_private.functional_optimizer(optimizer_of_a_user())
    start = np.arange(4.0, dtype="float32")
    variable, other = keras.Variable(start), keras.Variable(start)
    optimizer.build([variable])
    functional.build([other])
    value, state = other.value, [each.value for each in functional.variables]
    before = [np.array(ops.convert_to_numpy(each)) for each in state]
    for step in range(4):
        gradient = ops.convert_to_tensor(np.array([1.0, -2.0, 0.5, 3.0 * step], "float32"))
        optimizer.apply([gradient], [variable])
        mapping = [(other, value), *zip(functional.variables, state, strict=True)]
        with keras.StatelessScope(mapping) as scope:
            functional.apply([gradient], [other])
            value = scope.get_current_value(other)
            state = [scope.get_current_value(each) for each in functional.variables]
    found, expected = map(ops.convert_to_numpy, (value, variable.value))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(ops.convert_to_numpy(other.value), start)
    for each, old in zip(functional.variables, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(each.value), old)


def test_every_function_of_keras_random_is_replaced():
    replaced = []
    with keras_private.replaced_draws(lambda function: replaced.append(function.__name__)):
        pass
    names = {name for name in dir(keras.random) if name.islower() and name[0] != "_"}
    assert set(replaced) == names


def test_the_layers_that_an_input_feeds_are_found_also_inside_of_models():
    inner = keras.Sequential([keras.Input((2,)), layers.Embedding(5, 3)])
    inputs = [keras.Input((2,)), keras.Input((2,))]
    dense = layers.Dense(1)
    model = keras.Model(inputs, [inner(inputs[1]), dense(inputs[0])])
    fed = [keras_private.layers_fed_by(model, each) for each in model.inputs]
    assert fed[0] == [dense]
    assert inner.layers[0] in fed[1]
