"""What the package takes from the inside of Keras and no test of training would show."""

import keras
import numpy as np
from keras import layers, ops

from keras_adaclip.backend import keras_private


@keras.saving.register_keras_serializable(package="tests")
class Halving(keras.optimizers.SGD):
    def update_step(self, gradient, variable, learning_rate):
        super().update_step(0.5 * gradient, variable, learning_rate)


def test_a_functional_optimizer_of_a_users_class_computes_the_same_and_changes_nothing():
    """Keras's own are compared in `tests/federated/test_round.py`."""
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.5)
    options = {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "clipnorm": 0.5}
    optimizer = Halving(rate, **options)
    functional = keras_private.functional_optimizer(Halving(rate, **options))
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
    functions = vars(keras_private.random_functions)
    names = [name for name in dir(keras.random) if name.islower() and name[0] != "_"]
    assert all("replaced_draws" in functions[name].__code__.co_names[0].lower() for name in names)


def test_the_layers_that_an_input_feeds_are_found_also_inside_of_models():
    inner = keras.Sequential([keras.Input((2,)), layers.Embedding(5, 3)])
    inputs = [keras.Input((2,)), keras.Input((2,))]
    dense = layers.Dense(1)
    model = keras.Model(inputs, [inner(inputs[1]), dense(inputs[0])])
    fed = [keras_private.layers_fed_by(model, each) for each in model.inputs]
    assert fed[0] == [dense]
    assert inner.layers[0] in fed[1]
