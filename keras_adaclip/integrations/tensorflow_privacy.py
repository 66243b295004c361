"""Sum queries of TensorFlow Privacy as a `DPOptimizer`.

    GaussianSumQuery              FixedClipping,     z = stddev / clipping norm
    QuantileAdaptiveClipSumQuery  QuantileClipping,  z = (z_D^-2 + (2 s)^-2)^(-1/2)

with the noise multiplier z_D of the query's sum and the standard deviation s of the noise on its
counts, which one unit moves by at most 1/2. Sum and counts together are one Gaussian mechanism with
noise multiplier z.

The module has the queries as attributes. (`import tensorflow_privacy` alone fails beside Keras 3,
because its Keras parts need an older one; this module does not import them.)

Source: Andrew et al. 2021, "Differentially private learning with adaptive clipping", section 2.1.
"""

import importlib
import sys
from typing import Any

from keras_adaclip._checks import check_nonnegative, check_positive
from keras_adaclip.clipping import ClippingStrategy, FixedClipping, QuantileClipping
from keras_adaclip.optimizers import DPOptimizer

__all__ = ["QueryOptimizer"]

# The module of each query.
_QUERIES = {
    "GaussianSumQuery": "gaussian_query",
    "QuantileAdaptiveClipSumQuery": "quantile_adaptive_clip_sum_query",
}


def __getattr__(name: str) -> Any:
    if name not in _QUERIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Release 0.9.0 would also import its Keras parts, which need an older Keras.
    sys.skip_tf_privacy_import = True  # type: ignore[attr-defined]
    try:
        module = importlib.import_module(f"tensorflow_privacy.privacy.dp_query.{_QUERIES[name]}")
    except ImportError as error:
        raise ImportError(
            "TensorFlow Privacy is needed for `keras_adaclip.integrations.tensorflow_privacy`: "
            "pip install keras-adaclip[tensorflow,tensorflow-privacy], on Python 3.11, in an "
            "environment of its own, since it pins old releases of NumPy and dp-accounting."
        ) from error
    return getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_QUERIES])


def QueryOptimizer(  # noqa: N802
    optimizer: Any, query: Any, *, microbatch_size: int | None = None, name: str | None = None
) -> DPOptimizer:
    """Return the `DPOptimizer` that clips and noises as a sum query of TensorFlow Privacy does.

    It serves private and federated models on every backend, and is saved and loaded like any other
    `DPOptimizer`, without TensorFlow Privacy. Noise and sums are this package's own. The mean
    divides by the expected number of units, which `expected_num_records` of the query should equal.
    A noised share of counts moves the norm as it is; a query cuts it off at 0 and 1.

    Args:
        optimizer: Any Keras optimizer: an instance, its name, or its config.
        query: A `GaussianSumQuery` or a `QuantileAdaptiveClipSumQuery`, in its initial state.
        microbatch_size: As of `DPOptimizer`.
        name: The name of the optimizer.

    Returns:
        The optimizer.

    Raises:
        ImportError: If TensorFlow Privacy is not installed.
        TypeError: If `query` is not one of these queries, or an argument has the wrong type.
        ValueError: If an argument or a number of the query is out of range.

    Guarantees:
        The ledger counts each step as the one Gaussian mechanism that the event of the query's
        result composes to.

    Example:

        queries = ka.integrations.tensorflow_privacy
        query = queries.GaussianSumQuery(l2_norm_clip=1.0, stddev=1.1)
        optimizer = queries.QueryOptimizer("sgd", query)

    Reference:
        McMahan and Andrew 2018, "A general approach to adding differential privacy to iterative
        training procedures".
    """
    clipping, noise_multiplier = _clipping_and_noise(query)
    return DPOptimizer(
        optimizer,
        clipping,
        noise_multiplier=noise_multiplier,
        microbatch_size=microbatch_size,
        name=name,
    )


def _clipping_and_noise(query: Any) -> tuple[ClippingStrategy, float]:
    """Return the clipping strategy and the total noise multiplier of a query."""
    gaussian, quantile = map(__getattr__, _QUERIES)
    # A class of the user's may have another result.
    if type(query) not in (gaussian, quantile):
        raise TypeError(
            "Argument `query` must be a `GaussianSumQuery` or a `QuantileAdaptiveClipSumQuery` of "
            "TensorFlow Privacy, of these very classes. For a mean give the query of its sum, "
            f"which is divided by the expected number of units. Received: query={query!r}"
        )
    state = query.initial_global_state()
    if type(query) is gaussian:
        fixed = FixedClipping(float(state.l2_norm_clip))
        return fixed, check_nonnegative("stddev", float(state.stddev)) / float(state.l2_norm_clip)
    estimator = state.quantile_estimator_state
    count_stddev = float(estimator.below_estimate_state.numerator_state.stddev)
    # The state does not hold it, and the release is pinned.
    is_geometric = query._quantile_estimator_query._geometric_update
    strategy = QuantileClipping(
        float(estimator.target_quantile),
        float(estimator.current_estimate),
        float(estimator.learning_rate),
        count_stddev or None,
        update="geometric" if is_geometric else "linear",
    )
    of_sum = check_nonnegative("noise_multiplier", float(state.noise_multiplier))
    if of_sum == 0.0:
        return strategy, 0.0
    count_stddev = check_positive("clipped_count_stddev", count_stddev)
    return strategy, (of_sum**-2 + (2.0 * count_stddev) ** -2) ** -0.5
