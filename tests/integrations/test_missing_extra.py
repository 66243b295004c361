"""What is said where TensorFlow Privacy is not there."""

import sys

import pytest

import keras_adaclip as ka

integration = ka.integrations.tensorflow_privacy


def test_the_extra_is_named(monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] == "tensorflow_privacy":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorflow_privacy", None)
    for use in (lambda: integration.GaussianSumQuery, lambda: integration.QueryOptimizer("sgd", 1)):
        with pytest.raises(ImportError, match=r"pip install keras-adaclip\[.*tensorflow-privacy\]"):
            use()


def test_what_is_no_query_is_no_attribute():
    assert not hasattr(integration, "GaussianAverageQuery")
    assert {"GaussianSumQuery", "QueryOptimizer"} <= set(dir(integration))
