"""The one place that imports TensorFlow Privacy.

Release 0.9.0 imports its Keras parts at once, which need an older Keras than ours, unless
`sys.skip_tf_privacy_import` is set: a switch that it offers. Its queries need none of them.
"""

import importlib
import sys
from typing import Any

_MODULES_OF_DISCRETE_NOISE = (
    "discrete_gaussian_query",
    "distributed_discrete_gaussian_query",
    "tree_range_query",
)
# Where each class stands below `tensorflow_privacy.privacy.dp_query`.
CLASSES = {
    "DPQuery": "dp_query",
    "DiscreteGaussianSumQuery": "discrete_gaussian_query",
    "DistributedDiscreteGaussianSumQuery": "distributed_discrete_gaussian_query",
    "DistributedSkellamAverageQuery": "distributed_skellam_query",
    "DistributedSkellamSumQuery": "distributed_skellam_query",
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
    "TreeRangeSumQuery": "tree_range_query",
    "TreeResidualSumQuery": "tree_aggregation_query",
}


def library_class(name: str) -> Any:
    """A class of TensorFlow Privacy.

    Args:
        name: one of `CLASSES`.

    Raises:
        ImportError: where TensorFlow Privacy is not installed, or a part that the class needs.
    """
    return getattr(_module(CLASSES[name]), name)


def is_instance(value: Any, *names: str) -> bool:
    """Whether `value` is of one of these classes; one that was never imported has no instance."""
    loaded = [
        getattr(sys.modules[_path(CLASSES[name])], name)
        for name in names
        if _path(CLASSES[name]) in sys.modules
    ]
    return isinstance(value, tuple(loaded))


def is_own(value: Any) -> bool:
    """Whether the class of `value` is TensorFlow Privacy's own, and not one derived from it."""
    return type(value).__module__.startswith("tensorflow_privacy.")


def _module(name: str) -> Any:
    sys.skip_tf_privacy_import = True  # type: ignore[attr-defined]
    try:
        importlib.import_module("tensorflow_privacy")
    except ImportError as error:
        raise ImportError(
            "TensorFlow Privacy is needed for `keras_adaclip.integrations.tensorflow_privacy`: "
            "pip install keras-adaclip[tensorflow,tensorflow-privacy], on Python 3.11, in an "
            "environment of its own, since it pins old releases of NumPy and dp-accounting."
        ) from error
    try:
        return importlib.import_module(_path(name))
    except (AttributeError, ImportError) as error:
        if name not in _MODULES_OF_DISCRETE_NOISE:
            raise
        raise ImportError(
            "The queries of discrete noise need TensorFlow Probability, which does not import "
            "beside Keras 3 alone: pip install tf_keras, and set the environment variable "
            "TF_USE_LEGACY_KERAS=1 before TensorFlow is imported. (`import keras` stays Keras 3.) "
            f"Received: {error}"
        ) from error


def _path(module: str) -> str:
    return f"tensorflow_privacy.privacy.dp_query.{module}"
