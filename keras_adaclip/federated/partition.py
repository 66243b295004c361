"""Divisions of the examples of a data set among simulated clients.

Each function returns the client of every example, as integers of shape `(num_examples,)` for
`ClientData.from_arrays`. A division is part of a simulation: it looks at labels, without noise.
"""

from typing import Any

import numpy as np
from numpy.random import Generator

from keras_adaclip._checks import check_integer, check_positive
from keras_adaclip.sampling import common_length

__all__ = ["by_key", "by_label_shards", "dirichlet", "iid", "pachinko"]


def iid(num_examples: int, num_clients: int, seed: int | None = None) -> np.ndarray:
    """Shuffle the examples and divide them evenly: sizes differ by one at most.

    Args:
        num_examples: The number of examples.
        num_clients: The number of clients, up to `num_examples`.
        seed: The seed of the shuffle.

    Example:

    >>> np.bincount(iid(10, num_clients=4, seed=0)).tolist()
    [3, 3, 2, 2]
    """
    num_examples = check_integer("num_examples", num_examples, minimum=1)
    return np.random.default_rng(seed).permutation(_turns(num_clients, num_examples))


def by_label_shards(
    y: Any, num_clients: int, shards_per_client: int = 2, seed: int | None = None
) -> np.ndarray:
    """Sort by label, cut into shards, and assign these at random (McMahan et al. 2017, section 3).

    With two shards a client, most clients have examples of two labels.

    Args:
        y: Labels of shape `(num_examples,)`.
        num_clients: The number of clients.
        shards_per_client: The number of shards of each client.
        seed: The seed of the assignment.

    Raises:
        ValueError: If there are fewer examples than shards, or `y` has more than one axis.
    """
    labels = _checked_labels(y)
    shards_per_client = check_integer("shards_per_client", shards_per_client, minimum=1)
    most_clients = len(labels) // shards_per_client
    num_clients = check_integer("num_clients", num_clients, minimum=1, maximum=most_clients)
    num_shards = num_clients * shards_per_client
    owners = np.random.default_rng(seed).permutation(num_shards) % num_clients
    shard_of_place = np.arange(len(labels)) * num_shards // len(labels)
    clients = np.empty(len(labels), np.int64)
    clients[np.argsort(labels, kind="stable")] = owners[shard_of_place]
    return clients


def dirichlet(y: Any, num_clients: int, alpha: float, seed: int | None = None) -> np.ndarray:
    """Give each client labels in proportions drawn from a symmetric Dirichlet distribution.

    Clients take turns in drawing a label by their proportions, among the labels with examples left
    (Hsu, Qi and Brown 2019), so that sizes differ by one at most.

    Args:
        y: Labels of shape `(num_examples,)`.
        num_clients: The number of clients, up to the number of examples.
        alpha: A positive number. Towards 0 each client has one label; large values make all alike.
        seed: The seed of the draws.

    Raises:
        ValueError: If there are fewer examples than clients, `alpha` is not positive, or `y` has
            more than one axis.
    """
    labels = _checked_labels(y)
    alpha = check_positive("alpha", alpha)
    turns = _turns(num_clients, len(labels))
    return _allocation(np.zeros(len(labels)), labels, turns, 1.0, alpha, seed)


def pachinko(
    coarse: Any,
    fine: Any,
    num_clients: int,
    root_alpha: float = 0.1,
    coarse_alpha: float = 10.0,
    seed: int | None = None,
) -> np.ndarray:
    """Allocate by two levels of labels, as for CIFAR-100 (Reddi et al. 2021).

    Each client draws proportions of the coarse labels from one Dirichlet distribution, and of the
    fine labels below each from another. One client after the other takes its examples: it draws
    first a coarse label and then a fine one below it, among those with examples left.

    Args:
        coarse: Coarse labels of shape `(num_examples,)`.
        fine: Fine labels of shape `(num_examples,)`, each below one coarse label.
        num_clients: The number of clients, up to the number of examples.
        root_alpha: The concentration of the proportions of coarse labels.
        coarse_alpha: The concentration of the proportions of the fine labels below a coarse one.
        seed: The seed of the draws.

    Raises:
        ValueError: If a fine label stands below two coarse ones, or an argument is out of range.
    """
    coarse, fine = _checked_labels(coarse), _checked_labels(fine)
    common_length({"coarse": coarse, "fine": fine})
    root_alpha = check_positive("root_alpha", root_alpha)
    coarse_alpha = check_positive("coarse_alpha", coarse_alpha)
    turns = np.sort(_turns(num_clients, len(fine)))
    return _allocation(coarse, fine, turns, root_alpha, coarse_alpha, seed)


def by_key(keys: Any) -> np.ndarray:
    """Make one client for each value of a key, such as an author or a hospital.

    Args:
        keys: An array of shape `(num_examples,)`.

    Returns:
        Integers from 0, in the order of the sorted keys.

    Example:

    >>> by_key(["b", "a", "b"]).tolist()
    [1, 0, 1]
    """
    return np.unique(_checked_labels(keys), return_inverse=True)[1]


def _allocation(
    coarse: np.ndarray,
    fine: np.ndarray,
    turns: np.ndarray,
    root_alpha: float,
    coarse_alpha: float,
    seed: int | None,
) -> np.ndarray:
    """Return the client of every example, when clients take one example each in their turns.

    Args:
        coarse: Coarse labels of shape `(num_examples,)`.
        fine: Fine labels of shape `(num_examples,)`.
        turns: The client of each turn, of shape `(num_examples,)`.
        root_alpha: The concentration of each client's proportions of coarse labels.
        coarse_alpha: The concentration of its proportions of the fine labels below a coarse one.
        seed: The seed of the draws.
    """
    kinds, first, numbers = np.unique(fine, return_index=True, return_inverse=True)
    parents, parent_of_kind = np.unique(coarse[first], return_inverse=True)
    if not np.array_equal(parents[parent_of_kind][numbers], coarse):
        raise ValueError("Each fine label must belong to one coarse label.")
    generator, num_clients = np.random.default_rng(seed), turns.max() + 1
    below = [np.flatnonzero(parent_of_kind == parent) for parent in range(len(parents))]
    of_root = generator.dirichlet(np.full(len(parents), root_alpha), num_clients)
    shares = [generator.dirichlet(np.full(len(each), coarse_alpha), num_clients) for each in below]
    piles = [generator.permutation(np.flatnonzero(numbers == kind)) for kind in range(len(kinds))]
    left = np.array([len(pile) for pile in piles])
    clients = np.empty(len(fine), np.int64)
    for client in turns:
        left_below = np.array([left[each].sum() for each in below])
        parent = _drawn(generator, of_root[client], left_below)
        kind = below[parent][_drawn(generator, shares[parent][client], left[below[parent]])]
        left[kind] -= 1
        clients[piles[kind][left[kind]]] = client
    return clients


def _drawn(generator: Generator, proportions: np.ndarray, left: np.ndarray) -> int:
    """Return the number of a label, drawn by its proportion among those with examples left."""
    weights = proportions * (left > 0)
    total = weights.sum()
    # The labels of this client may be used up, or have proportions that round to zero.
    weights = weights / total if total > 0.0 else (left > 0) / np.count_nonzero(left)
    return int(generator.choice(len(proportions), p=weights))


def _turns(num_clients: int, num_examples: int) -> np.ndarray:
    """Return the client of each turn when all clients take turns, checked to be all needed."""
    num_clients = check_integer("num_clients", num_clients, minimum=1, maximum=num_examples)
    return np.arange(num_examples) % num_clients


def _checked_labels(labels: Any) -> np.ndarray:
    """Return labels as an array of shape `(num_examples,)`."""
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or len(labels) == 0:
        raise ValueError(
            "Labels must be an array of shape (num_examples,) with one label an example. "
            f"Received: shape {labels.shape}"
        )
    return labels
