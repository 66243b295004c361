"""Sum queries of TensorFlow Privacy that aggregate the rounds of a `FederatedModel`.

query_optimizer       `QueryOptimizer`, which replaces `DPOptimizer`, and its ledger
tensorflow_queries    a round of a query; the one place that imports TensorFlow Privacy

The module has the queries as attributes: `GaussianSumQuery`, `QuantileAdaptiveClipSumQuery` and
`NestedSumQuery`. (`import tensorflow_privacy` alone fails beside Keras 3, because its Keras parts
need an older one; this module does not import them.)
"""

from typing import Any

from keras_adaclip.integrations.tensorflow_privacy.query_optimizer import QueryOptimizer

__all__ = ["QueryOptimizer"]

_QUERIES = ("GaussianSumQuery", "NestedSumQuery", "QuantileAdaptiveClipSumQuery")


def __getattr__(name: str) -> Any:
    """Return a query class of TensorFlow Privacy, imported on demand.

    Raises:
        ImportError: If TensorFlow Privacy is not installed.
    """
    if name in _QUERIES:
        from keras_adaclip.integrations.tensorflow_privacy import tensorflow_queries

        return getattr(tensorflow_queries, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_QUERIES])
