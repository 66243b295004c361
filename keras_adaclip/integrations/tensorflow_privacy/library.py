"""The one place that imports TensorFlow Privacy.

Release 0.9.0 also imports its Keras parts, which need an older Keras, unless
`sys.skip_tf_privacy_import` is set. Its queries do not need these parts.
"""

import importlib
import sys
from typing import Any

_LIBRARY = "tensorflow_privacy."
# The module of each class below `tensorflow_privacy.privacy.dp_query`.
CLASSES = {
    "DPQuery": "dp_query",
    "GaussianNoiseGenerator": "tree_aggregation",
    "GaussianSumQuery": "gaussian_query",
    "NestedQuery": "nested_query",
    "NestedSumQuery": "nested_query",
    "NoPrivacyAverageQuery": "no_privacy_query",
    "NoPrivacySumQuery": "no_privacy_query",
    "NormalizedQuery": "normalized_query",
    "PeriodicRoundRestartIndicator": "restart_query",
    "PeriodicTimeRestartIndicator": "restart_query",
    "QAdaClipTreeResSumQuery": "quantile_adaptive_clip_tree_query",
    "QuantileAdaptiveClipSumQuery": "quantile_adaptive_clip_sum_query",
    "RestartQuery": "restart_query",
    "SumAggregationDPQuery": "dp_query",
    "TreeCumulativeSumQuery": "tree_aggregation_query",
    "TreeResidualSumQuery": "tree_aggregation_query",
}


def library_class(name: str) -> Any:
    """Return a class of TensorFlow Privacy.

    Args:
        name: One of `CLASSES`.

    Raises:
        ImportError: If TensorFlow Privacy is not installed.
    """
    sys.skip_tf_privacy_import = True  # type: ignore[attr-defined]
    try:
        importlib.import_module("tensorflow_privacy")
    except ImportError as error:
        raise ImportError(
            "TensorFlow Privacy is needed for `keras_adaclip.integrations.tensorflow_privacy`: "
            "pip install keras-adaclip[tensorflow,tensorflow-privacy], on Python 3.11, in an "
            "environment of its own, since it pins old releases of NumPy and dp-accounting."
        ) from error
    return getattr(importlib.import_module(f"{_LIBRARY}privacy.dp_query.{CLASSES[name]}"), name)


def is_instance(value: Any, *names: str) -> bool:
    """Return whether `value` is of one of these classes, without importing them."""
    bases = {base.__name__ for base in type(value).__mro__ if base.__module__.startswith(_LIBRARY)}
    return not bases.isdisjoint(names)


def is_own(value: Any) -> bool:
    """Return whether the class of `value` is TensorFlow Privacy's own, not one derived from it."""
    return type(value).__module__.startswith(_LIBRARY)
