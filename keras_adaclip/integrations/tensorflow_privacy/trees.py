"""Noise that is summed over a binary tree: what it amounts to, and when a tree restarts.

TensorFlow Privacy calls the events of its trees unsupported: what they cost depends on how often a
client takes part. Where it does so at most once in a tree of T rounds, it adds to the nodes above
one leaf, ceil(log2(T + 1)) of them at most, each with noise of z times its contribution's bound:

    one Gaussian mechanism a tree, with noise multiplier z / sqrt(ceil(log2(T + 1)))

(Kairouz et al. 2021, "Practical and private (deep) learning without sampling or shuffling",
appendix D; `SingleEpochTreeAggregationDpEvent` of `dp_accounting`), for zeroing a client out. So a
pass over the clients (`fit(sampling="shuffle")`) is accounted, because the trees are restarted
where one begins. A `RestartQuery` that restarts more often only makes them smaller.

The noise's key is drawn from the operating system at each restart; TensorFlow Privacy takes the
time of day. One that the user has given (`noise_seed`) stays, until a model is trained further that
has been saved or compiled anew: from the same seed it would draw the same noise again, and the
difference of what two rounds release would be that of their clients.
"""

import os
from typing import Any

import numpy as np
from keras import ops

from keras_adaclip.integrations.tensorflow_privacy.library import is_instance, is_own

Tensor = Any
_LIBRARY = "tensorflow_privacy."
_L2_CLIPPING = "build_l2_gaussian_query.<locals>.l2_clip_fn"
_SUM, _ADAPTIVE = "TreeResidualSumQuery", "QAdaClipTreeResSumQuery"


def has_trees(query: Any) -> bool:
    """Whether `query` is, or wraps, one that sums its noise over a tree."""
    return is_instance(_unwrapped(query), _SUM, _ADAPTIVE)


def node_noise(query: Any, state: Any) -> Tensor | None:
    """The noise of a node over what a client adds to it; with several trees, of all together.

    Args:
        query: a query that `has_trees`.
        state: its global state.

    Returns:
        A float32 scalar; None where clipping or noise is not TensorFlow Privacy's own, so that
        neither is known.
    """
    if not is_own(query):
        return None
    inner = _inner(query)
    if inner is not None:
        return node_noise(inner[1], getattr(state, inner[0]))
    if is_instance(query, _ADAPTIVE):
        estimator = query._quantile_estimator_query._below_estimate_query
        estimator_state = state.quantile_estimator_state.below_estimate_state
        of_sum = node_noise(query._sum_query, state.sum_state)
        of_counts = node_noise(estimator, estimator_state)
        if of_sum is None or of_counts is None:
            return None
        least = ops.minimum(of_sum, of_counts)
        return ops.where(
            least > 0.0,
            1.0 / ops.sqrt(1.0 / ops.square(of_sum) + 1.0 / ops.square(of_counts)),
            least,
        )
    generator = query._tree_aggregator.value_generator
    clips = query._clip_fn
    if not (clips.__module__.startswith(_LIBRARY) and clips.__qualname__.endswith(_L2_CLIPPING)):
        return None
    if not (is_own(generator) and is_instance(generator, "GaussianNoiseGenerator")):
        return None
    return state.tree_state.value_generator_state.stddev / state.clip_value


def share_of_pass(num_rounds: int) -> float:
    """The noise of a tree over that of a node, where a client is in one round at most.

    Args:
        num_rounds: of the tree, from 1.
    """
    # ceil(log2(n + 1)) of a whole number is its number of binary digits.
    return float(num_rounds.bit_length() ** -0.5)


def restarted(query: Any, state: Any, heeds_seed: bool = True) -> Any:
    """The global state with fresh trees, from fresh keys.

    Args:
        query: a query that `has_trees`.
        state: its global state.
        heeds_seed: whether trees whose seed the user has given go on with their own key.
    """
    inner = _inner(query)
    if inner is not None:
        field, wrapped = inner
        return state._replace(**{field: restarted(wrapped, getattr(state, field), heeds_seed)})
    if is_instance(query, _ADAPTIVE):
        estimator = query._quantile_estimator_query._below_estimate_query
        counts = state.quantile_estimator_state.below_estimate_state
        counts = counts._replace(
            numerator_state=_with_key(estimator._numerator, counts.numerator_state, heeds_seed)
        )
        state = state._replace(
            sum_state=_with_key(query._sum_query, state.sum_state, heeds_seed),
            quantile_estimator_state=state.quantile_estimator_state._replace(
                below_estimate_state=counts
            ),
        )
    else:
        state = _with_key(query, state, heeds_seed)
    # None for results: residuals are reset without them.
    return query.reset_state(None, state)


def given_seed(query: Any) -> int | None:
    """The seed that the user has given for the noise of a tree, if any."""
    query = _unwrapped(query)
    sums = query._sum_query if is_instance(query, _ADAPTIVE) else query
    seed: int | None = getattr(sums._tree_aggregator.value_generator, "_seed", None)
    return seed


def _with_key(query: Any, state: Any, heeds_seed: bool) -> Any:
    """The state of one tree with a fresh key for the noise to come."""
    generator = query._tree_aggregator.value_generator
    if not is_instance(generator, "GaussianNoiseGenerator"):
        return state
    if heeds_seed and generator._seed is not None:
        return state
    # Counters are added to both numbers: away from the largest.
    seeds = np.frombuffer(os.urandom(16), np.int64) >> 2
    of_generator = state.tree_state.value_generator_state._replace(
        seeds=ops.convert_to_tensor(seeds, "int64")
    )
    return state._replace(tree_state=state.tree_state._replace(value_generator_state=of_generator))


def _inner(query: Any) -> tuple[str, Any] | None:
    """What a query wraps, and where its state has that one's."""
    if is_instance(query, "RestartQuery"):
        return "inner_query_state", query._inner_query
    if is_instance(query, "NormalizedQuery"):
        return "numerator_state", query._numerator
    return None


def _unwrapped(query: Any) -> Any:
    inner = _inner(query)
    return query if inner is None else _unwrapped(inner[1])
