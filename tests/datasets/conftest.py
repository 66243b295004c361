"""Keras without copies of data sets, and TensorFlow Datasets with made-up ones."""

import keras
import pytest

from keras_adaclip.datasets import sources

NUM_EXAMPLES = 4


@pytest.fixture
def without_keras_copies(monkeypatch):
    """Keras has no copy of a data set and can fetch none."""

    def fail(**named):
        raise Exception("URL fetch failure")

    for name in ("mnist", "cifar10", "imdb", "fashion_mnist"):
        monkeypatch.setattr(getattr(keras.datasets, name), "load_data", fail)


@pytest.fixture
def mocked_tfds(monkeypatch, without_keras_copies):
    """TensorFlow Datasets gives four made-up examples a split; the addresses it was to ask."""
    tfds = pytest.importorskip("tensorflow_datasets")
    asked = []
    monkeypatch.delenv("KERAS_ADACLIP_DATA", raising=False)
    monkeypatch.setattr(sources, "require_answer", asked.append)
    with tfds.testing.mock_data(num_examples=NUM_EXAMPLES):
        yield asked
