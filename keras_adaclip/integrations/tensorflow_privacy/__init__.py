"""Queries of TensorFlow Privacy that aggregate the rounds of a `FederatedModel`.

query_optimizer     `QueryOptimizer`, which replaces `DPOptimizer`: a round, and saving
query_accounting    its noise in the ledger
trees               noise that is summed over a tree: its noise multiplier, and its restarts
library             the one place that imports TensorFlow Privacy

The module has the queries as attributes: `GaussianSumQuery`, `QuantileAdaptiveClipSumQuery`,
`TreeResidualSumQuery` and others. (`import tensorflow_privacy` alone fails beside Keras 3, because
its Keras parts need an older one; this module does not import them.)
"""

from typing import Any

from keras_adaclip.integrations.tensorflow_privacy.library import CLASSES, library_class
from keras_adaclip.integrations.tensorflow_privacy.query_optimizer import QueryOptimizer

__all__ = ["QueryOptimizer"]


def __getattr__(name: str) -> Any:
    """Return a query class of TensorFlow Privacy, imported on demand.

    Raises:
        ImportError: If TensorFlow Privacy is not installed.
    """
    if name in CLASSES:
        return library_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *CLASSES])
