"""A function mapped over the rows of a batch, and the gradients through it."""

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend


def rows(seed=0, size=5):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(size, 3)).astype("float32"), rng.integers(0, 3, size)


def loss_of_row(values):
    """A loss that picks one number of a row, and something that nobody differentiates."""
    row, label = values
    picked = ops.take(row, label)
    return [ops.square(picked) * ops.sum(row), ops.max(row)]


def differentiated(x, labels, weights):
    """Rows of losses and maxima, and the gradient of the weighted losses by the rows."""
    variable = keras.Variable(x)

    def total():
        losses, largest = backend.map_examples(loss_of_row, [variable.value, labels])
        return ops.sum(losses * weights), (losses, largest)

    (losses, largest), (gradient,) = backend.gradients_of(total, [variable], [variable])
    return [ops.convert_to_numpy(part) for part in (losses, largest, gradient)]


def test_rows_and_gradients_are_those_of_each_row_alone():
    x, labels = rows()
    weights = np.arange(1.0, 6.0, dtype="float32")
    losses, largest, gradient = differentiated(
        x, ops.convert_to_tensor(labels), ops.convert_to_tensor(weights)
    )
    picked, sums = x[np.arange(5), labels], x.sum(axis=1)
    np.testing.assert_allclose(losses, picked**2 * sums, rtol=1e-5)
    np.testing.assert_allclose(largest, x.max(axis=1), rtol=1e-6)
    expected = np.repeat((picked**2)[:, None], 3, axis=1)
    expected[np.arange(5), labels] += 2 * picked * sums
    np.testing.assert_allclose(gradient, weights[:, None] * expected, rtol=1e-4, atol=1e-6)
