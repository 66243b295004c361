"""Noise that is summed over a binary tree: its noise multiplier, and its restarts.

TensorFlow Privacy reports the events of its trees as unsupported, because their cost depends on how
often a client takes part. A client that takes part at most once in a tree of T rounds adds to the
nodes above one leaf, at most ceil(log2(T + 1)), each with noise of z times the bound of its
contribution:

    one Gaussian mechanism for each tree, with noise multiplier z / sqrt(ceil(log2(T + 1)))

(Kairouz et al. 2021, "Practical and private (deep) learning without sampling or shuffling",
appendix D; `SingleEpochTreeAggregationDpEvent` of `dp_accounting`), for zeroing a client out. So a
pass over the clients (`fit(sampling="shuffle")`) is accounted, because the trees restart when it
begins. A `RestartQuery` that restarts more often only makes them smaller.

The key of the noise comes from the operating system at each restart; TensorFlow Privacy itself uses
the time of day. A seed given by the user (`noise_seed`) is refused: with equal noise in two rounds,
the difference of their results would be that of their clients.
"""

import os
from typing import Any

import numpy as np
from keras import ops

from keras_adaclip.integrations.tensorflow_privacy.library import is_instance, is_own

Tensor = Any
_LIBRARY = "tensorflow_privacy."
_L2_CLIPPING = "build_l2_gaussian_query.<locals>.l2_clip_fn"


def has_trees(query: Any) -> bool:
    """Return whether a query is, or wraps, one that sums its noise over a tree."""
    return is_instance(unwrapped(query), "TreeResidualSumQuery")


def node_noise(query: Any, state: Any) -> Tensor | None:
    """Return the noise of a node over the bound of a contribution.

    Args:
        query: A query that `has_trees`.
        state: Its global state.

    Returns:
        A float32 scalar; None if clipping or noise is not TensorFlow Privacy's own.
    """
    if not is_own(query):
        return None
    inner = _inner(query)
    if inner is not None:
        return node_noise(inner[1], getattr(state, inner[0]))
    generator, clips = query._tree_aggregator.value_generator, query._clip_fn
    if not (clips.__module__.startswith(_LIBRARY) and clips.__qualname__.endswith(_L2_CLIPPING)):
        return None
    if not (is_own(generator) and is_instance(generator, "GaussianNoiseGenerator")):
        return None
    return state.tree_state.value_generator_state.stddev / state.clip_value


def share_of_pass(num_rounds: int) -> float:
    """Return the noise multiplier of a tree over that of a node, for one round a client.

    Args:
        num_rounds: Number of rounds in the tree, at least 1.
    """
    # ceil(log2(n + 1)) of an integer is its number of binary digits.
    return float(num_rounds.bit_length() ** -0.5)


def restarted(query: Any, state: Any) -> Any:
    """Return the global state with a fresh tree and a fresh key.

    Args:
        query: A query that `has_trees`.
        state: Its global state.
    """
    inner = _inner(query)
    if inner is not None:
        field, wrapped = inner
        return state._replace(**{field: restarted(wrapped, getattr(state, field))})
    tree = state.tree_state
    if is_instance(query._tree_aggregator.value_generator, "GaussianNoiseGenerator"):
        # TensorFlow Privacy adds counters to both numbers: leave room for them.
        seeds = np.frombuffer(os.urandom(16), np.int64) >> 2
        seeds = ops.convert_to_tensor(seeds, "int64")
        generator_state = tree.value_generator_state._replace(seeds=seeds)
        tree = tree._replace(value_generator_state=generator_state)
    # Residuals are reset without results.
    return query.reset_state(None, state._replace(tree_state=tree))


def refuse_seed(query: Any) -> None:
    """Raise if the user has given a seed for the noise of a tree."""
    if not has_trees(query):
        return
    query = unwrapped(query)
    seed = getattr(query._tree_aggregator.value_generator, "_seed", None)
    if seed is not None:
        raise ValueError(
            f"The noise of the `{type(query).__name__}` comes from a fixed seed, and anyone "
            f"who knows it can subtract the noise. Give the query no `noise_seed`. Received: {seed}"
        )


def unwrapped(query: Any) -> Any:
    """Return the innermost query."""
    inner = _inner(query)
    return query if inner is None else unwrapped(inner[1])


def _inner(query: Any) -> tuple[str, Any] | None:
    """Return the field of a query's state for the query that it wraps, and that query."""
    if is_instance(query, "RestartQuery"):
        return "inner_query_state", query._inner_query
    if is_instance(query, "NormalizedQuery"):
        return "numerator_state", query._numerator
    return None
