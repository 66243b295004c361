"""Rows of a batch that are masked."""

import keras
import numpy as np
import pytest

from keras_adaclip import backend
from tests.gradients.support import compiled

is_tensorflow = keras.backend.backend() == "tensorflow"


@pytest.mark.parametrize("mode", ["eager", "compiled", "XLA"])
@pytest.mark.parametrize("shape", [(3,), (3, 2, 4)])
def test_rows_that_are_not_kept_are_zero_whatever_they_hold(mode, shape):
    kept = np.array([True, False, True])
    values = np.arange(1.0, 1.0 + np.prod(shape), dtype="float32").reshape(shape)
    expected = np.where(np.reshape(kept, (3, *[1] * (len(shape) - 1))), values, 0.0)
    values[~kept] = np.nan
    function = backend.masked if mode == "eager" else compiled(backend.masked)
    if mode == "XLA":
        tf = pytest.importorskip("tensorflow") if is_tensorflow else pytest.skip("TensorFlow's")
        function = tf.function(backend.masked, jit_compile=True)
    found = function(keras.ops.convert_to_tensor(kept), keras.ops.convert_to_tensor(values))
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(found), expected)
