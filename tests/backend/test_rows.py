"""Rows of a batch: those that a gather takes, those that are emptied."""

import keras
import numpy as np
import pytest

from keras_adaclip import backend


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("shape", [(5,), (4, 3)])
def test_taken_rows(channels, shape):
    rng = np.random.default_rng(channels)
    rows = rng.normal(size=(6, 7, channels)).astype("float32")
    places = rng.integers(0, 7, size=shape).astype("int32")
    taken = backend.take_rows(keras.ops.convert_to_tensor(rows), places)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(taken), rows[:, places])


@pytest.mark.parametrize("kept", [[True] * 3, [False] * 3, [True, False, True]])
@pytest.mark.parametrize("shape", [(3,), (3, 2), (3, 2, 4)])
def test_rows_that_are_not_kept_are_zero_whatever_they_hold(kept, shape):
    values = np.arange(1.0, 1.0 + np.prod(shape), dtype="float32").reshape(shape)
    expected = np.where(np.reshape(kept, (3, *[1] * (len(shape) - 1))), values, 0.0)
    values[~np.array(kept)] = np.nan
    given = keras.ops.convert_to_tensor(values), keras.ops.convert_to_tensor(kept)
    found = backend.zero_where_not(given[1], given[0])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(found), expected)
