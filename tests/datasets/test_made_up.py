"""Made-up data have the shapes of the real sets, and classes that can be told apart."""

import numpy as np
import pytest

from keras_adaclip.datasets import make_up_images, make_up_table, make_up_texts


def nearest_mean_accuracy(x_train, y_train, x_test, y_test):
    """Of the classifier that takes the class whose mean is nearest."""
    x_train, x_test = (x.reshape(len(x), -1).astype(float) for x in (x_train, x_test))
    means = np.stack([x_train[y_train == label].mean(axis=0) for label in np.unique(y_train)])
    distances = ((x_test[:, None] - means) ** 2).sum(axis=-1)
    return np.mean(distances.argmin(axis=1) == y_test)


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3)])
def test_images(shape):
    data = make_up_images("X", shape, num_train=200, num_test=100)
    assert data.x_train.shape == (200, *shape)
    assert data.x_test.shape == (100, *shape)
    assert (data.x_train.dtype, data.y_train.dtype) == (np.float32, np.int32)
    assert 0.0 <= data.x_train.min() < data.x_train.max() <= 1.0
    assert set(data.y_train) == set(range(10))
    assert data.source == "made up on the spot, in the shape of X"
    parts = (data.x_train, data.y_train, data.x_test, data.y_test)
    assert nearest_mean_accuracy(*parts) > 0.95
    np.testing.assert_array_equal(
        make_up_images("X", shape, num_train=200, num_test=100).x_test, data.x_test
    )


def test_images_of_bytes():
    data = make_up_images("X", (20, 20, 3), num_train=4, num_test=2, as_bytes=True)
    assert data.x_train.dtype == np.uint8
    assert data.x_train.max() > 100


def test_the_first_alone():
    data = make_up_images("X", (4, 4, 1), num_train=20, num_test=10)
    first = data.first(6, 3)
    assert (len(first.x_train), len(first.y_train), len(first.x_test), len(first.y_test)) == (
        6,
        6,
        3,
        3,
    )
    np.testing.assert_array_equal(first.x_test, data.x_test[:3])
    assert first.source == data.source


def test_texts():
    data = make_up_texts("X", num_tokens=200, length=64, num_train=200, num_test=100)
    assert data.x_train.shape == (200, 64)
    assert data.x_test.shape == (100, 64)
    assert data.x_train.dtype == np.int32
    assert (data.x_train[:, 0] == 1).all()
    assert (data.x_train[:, :32] > 0).all()
    assert 150 < data.x_train.max() < data.num_tokens == 200
    # Nothing follows the end of a text.
    is_filling = data.x_train == 0
    assert (is_filling[:, :-1] <= is_filling[:, 1:]).all()
    assert is_filling.any()
    bags = [
        np.stack([np.bincount(row, minlength=200)[1:] for row in x])
        for x in (data.x_train, data.x_test)
    ]
    assert nearest_mean_accuracy(bags[0], data.y_train, bags[1], data.y_test) > 0.95


def test_rows():
    data = make_up_table("X", num_train=400, num_test=200)
    assert data.numeric_train.shape == (400, len(data.numeric)) == (400, 5)
    assert data.categorical_test.shape == (200, len(data.categories)) == (200, 7)
    for column, values in zip(data.categorical_train.T, data.categories.values(), strict=True):
        assert set(column) <= set(range(len(values)))
    parts = (data.numeric_train, data.y_train, data.numeric_test, data.y_test)
    assert nearest_mean_accuracy(*parts) > 0.85
