"""Rows of a batch: those that a gather takes, those that are emptied."""

import keras
import numpy as np
import pytest

from keras_adaclip import backend
from tests.gradients.support import compiled

is_tensorflow = keras.backend.backend() == "tensorflow"


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("shape", [(5,), (4, 3)])
def test_taken_rows(channels, shape):
    rng = np.random.default_rng(channels)
    rows = rng.normal(size=(6, 7, channels)).astype("float32")
    places = rng.integers(0, 7, size=shape).astype("int32")
    taken = backend.take_rows(keras.ops.convert_to_tensor(rows), places)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(taken), rows[:, places])


@pytest.mark.skipif(not is_tensorflow, reason="sizes known when a step runs")
@pytest.mark.parametrize("channels", [3, 4])
def test_taken_rows_of_a_size_that_is_not_known_before(channels):
    import tensorflow as tf

    signature = [tf.TensorSpec((None, None, channels)), tf.TensorSpec((None, 2), "int32")]
    take = tf.function(backend.take_rows, input_signature=signature)
    rows = np.arange(2.0 * 5 * channels, dtype="float32").reshape(2, 5, channels)
    places = np.array([[4, 0], [2, 2], [1, 3]], "int32")
    np.testing.assert_array_equal(take(rows, places), rows[:, places])


@pytest.mark.parametrize("mode", ["eager", "compiled", "XLA"])
@pytest.mark.parametrize("kept", [[True] * 3, [False] * 3, [True, False, True]])
@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 4)])
def test_rows_that_are_not_kept_are_zero_whatever_they_hold(mode, kept, shape):
    values = np.arange(1.0, 1.0 + np.prod(shape), dtype="float32").reshape(shape)
    expected = np.where(np.reshape(kept, (3, *[1] * (len(shape) - 1))), values, 0.0)
    values[~np.array(kept)] = np.nan
    function = backend.masked
    if mode == "compiled":
        function = compiled(function)
    elif mode == "XLA":
        tf = pytest.importorskip("tensorflow") if is_tensorflow else pytest.skip("TensorFlow's")
        function = tf.function(function, jit_compile=True)
    found = function(keras.ops.convert_to_tensor(kept), keras.ops.convert_to_tensor(values))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(found), expected)
