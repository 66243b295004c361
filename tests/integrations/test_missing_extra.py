"""What is said where TensorFlow Privacy, or TensorFlow, is not there."""

import sys

import keras
import pytest

import keras_adaclip as ka

integration = ka.integrations.tensorflow_privacy
ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


@pytest.fixture
def without_extra(monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == "tensorflow_privacy" or name.endswith(".tensorflow_queries"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(integration, "tensorflow_queries", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow_privacy", None)


def test_the_extra_is_named(without_extra):
    with pytest.raises(ImportError, match=r"pip install keras-adaclip\[.*tensorflow-privacy\]"):
        _ = integration.GaussianSumQuery


def test_what_is_no_query_is_no_attribute():
    assert not hasattr(integration, "GaussianAverageQuery")
    assert {"GaussianSumQuery", "QueryOptimizer"} <= set(dir(integration))


@pytest.mark.skipif(ON_TENSORFLOW, reason="about the other backends")
def test_other_backends_are_refused():
    with pytest.raises(RuntimeError, match="KERAS_BACKEND=tensorflow"):
        integration.QueryOptimizer("sgd", query=object())
