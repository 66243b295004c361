"""Poisson batches on their way into Keras's `fit`."""

import gc
import weakref

import keras
import numpy as np
import pytest

from keras_adaclip import backend
from keras_adaclip.sampling import FixedShapeBatches, PoissonDataset

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the others hand the batches on"
)


def batches_of(x, sizes=(16,), num_batches=3, **arguments):
    dataset = PoissonDataset(x, expected_batch_size=4, seed=1, **arguments)
    return FixedShapeBatches(dataset, num_batches, sizes), dataset.first_rows


def prefetched(batches, rows):
    return backend.fit_arguments(batches, rows, keras.Model())["x"]


def test_prefetched_batches_are_those_of_the_data_set_in_order():
    x = {
        "image": np.arange(40.0).reshape(20, 2),
        "pair": [np.arange(20), np.array(["a", "b"] * 10)],
    }
    batches, rows = batches_of(x, sizes=(), y=np.arange(20, dtype="uint8"))
    same, _ = batches_of(x, sizes=(), y=np.arange(20, dtype="uint8"))
    data = prefetched(batches, rows)
    assert int(data.cardinality()) == 3
    # Where a tuner runs, `fit` waits at the end of an epoch until it wakes up.
    assert data.options().autotune.enabled is False
    # Two epochs: the second goes on with the draws where the first has stopped.
    for index, batch in enumerate([*data, *data]):
        expected = same[index]
        np.testing.assert_array_equal(batch["x"]["image"], expected["x"]["image"])
        for ours, theirs in zip(batch["x"]["pair"], expected["x"]["pair"], strict=True):
            ours = [each.decode() if isinstance(each, bytes) else each for each in ours.numpy()]
            np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(batch["y"], expected["y"])
        np.testing.assert_array_equal(batch["mask"], expected["mask"])
        assert batch["y"].dtype == "uint8"
        assert batch["x"]["image"].dtype == "float32"


def test_tensorflow_frees_the_data_set_after_training():
    """TensorFlow keeps every generator that a data set was made of."""
    batches, rows = batches_of(np.zeros((20, 2)))
    data = prefetched(batches, rows)
    assert len(list(data)) == 3
    is_kept = weakref.ref(batches.dataset)
    assert is_kept() is not None
    del data, batches
    gc.collect()
    assert is_kept() is None
