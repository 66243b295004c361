"""Keras's optimizers through a stateless scope: the same updates, and nothing written past it."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_adaclip.backend.keras_private import functional_optimizer

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=2, decay_rate=0.5)
    ),
    "adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1, clipnorm=0.5),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.1, momentum=0.5, centered=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "adamax": lambda: keras.optimizers.Adamax(0.1),
    "nadam": lambda: keras.optimizers.Nadam(0.1),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "lion": lambda: keras.optimizers.Lion(0.1),
}


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_updates_are_those_of_the_optimizer(name):
    optimizer, functional = OPTIMIZERS[name](), functional_optimizer(OPTIMIZERS[name]())
    start = np.arange(4.0, dtype="float32")
    variable, twin = keras.Variable(start), keras.Variable(start)
    optimizer.build([variable])
    functional.build([twin])
    value, state = twin.value, [each.value for each in functional.variables]
    before = [np.array(ops.convert_to_numpy(each)) for each in state]
    for step in range(4):
        gradient = np.array([1.0, -2.0, 0.5, 3.0 * step], "float32")
        optimizer.apply([ops.convert_to_tensor(gradient)], [variable])
        with keras.StatelessScope(
            [(twin, value), *zip(functional.variables, state, strict=True)]
        ) as scope:
            functional.apply([ops.convert_to_tensor(gradient)], [twin])
            value = scope.get_current_value(twin)
            state = [scope.get_current_value(each) for each in functional.variables]
    np.testing.assert_allclose(
        ops.convert_to_numpy(value), ops.convert_to_numpy(variable.value), rtol=1e-5, atol=1e-5
    )
    np.testing.assert_array_equal(ops.convert_to_numpy(twin.value), start)
    for each, old in zip(functional.variables, before, strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(each.value), old)


def test_a_users_own_optimizer():
    class Halving(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            super().update_step(0.5 * gradient, variable, learning_rate)

    functional = functional_optimizer(Halving(1.0))
    variable = keras.Variable(np.zeros(2, "float32"))
    functional.build([variable])
    mapping = [(each, each.value) for each in [variable, *functional.variables]]
    with keras.StatelessScope(mapping) as scope:
        functional.apply([ops.ones(2)], [variable])
        value = scope.get_current_value(variable)
    np.testing.assert_allclose(ops.convert_to_numpy(value), [-0.5, -0.5])
