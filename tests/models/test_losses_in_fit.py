"""Losses that are more than a function of targets and predictions."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import keras_adaclip as ka


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_loss_may_read_the_weights_of_a_teacher(is_frozen):
    """As in distillation; the teacher is no part of the model and stays what it is."""
    teacher = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    teacher.trainable = not is_frozen
    before = teacher.get_weights()

    def distance(y, y_pred):
        return ops.mean(ops.square(teacher(y) - teacher(y_pred)), axis=-1)

    def trained(model):
        keras.utils.set_random_seed(0)
        rng = np.random.default_rng(0)
        x, y = (rng.normal(size=(8, size)).astype("float32") for size in (4, 3))
        model.build((None, 4))
        for variable in model.trainable_variables:
            variable.assign(np.full(variable.shape, 0.1, "float32"))
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, **arguments)
        return model.get_weights()

    plain = keras.Sequential([layers.Dense(3)])
    plain.compile(optimizer=keras.optimizers.SGD(0.1), loss=distance)
    arguments = {}
    expected = trained(plain)
    private = ka.PrivateSequential([layers.Dense(3)])
    optimizer = ka.optimizers.DPOptimizer(
        keras.optimizers.SGD(0.1), clipping=1e6, noise_multiplier=0.0
    )
    private.compile(optimizer=optimizer, loss=distance)
    arguments = {"sampling": "shuffle"}
    found = trained(private)
    assert list(private.gradient_plan.describe().values()) == ["DenseRule"]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    for one, other in zip(teacher.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)
