"""The queries of TensorFlow Privacy as the aggregation of a round of `FederatedModel`.

query_optimizer     `QueryOptimizer`, in the place of `DPOptimizer`: a round, and saving
query_accounting    its noise in the ledger
event_noise         from the event that a query reports to the noise that the ledger counts
trees               noise that is summed over a tree: what it amounts to, and when it restarts
integer_records     contributions as integers, for queries that add up integers
library             the one place that imports TensorFlow Privacy

The queries themselves can be taken from here: `GaussianSumQuery`, `QuantileAdaptiveClipSumQuery`,
`TreeResidualSumQuery` and the rest. (`import tensorflow_privacy` alone fails beside Keras 3: its
Keras parts need an older one. Taken from here, they are left out by the switch that it offers.)
"""

from typing import Any

from keras_adaclip.integrations.tensorflow_privacy.library import CLASSES, library_class
from keras_adaclip.integrations.tensorflow_privacy.query_optimizer import QueryOptimizer

__all__ = ["QueryOptimizer"]


def __getattr__(name: str) -> Any:
    """A class of TensorFlow Privacy's queries, imported when it is asked for.

    Raises:
        ImportError: where TensorFlow Privacy is not installed.
    """
    if name in CLASSES:
        return library_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *CLASSES])
