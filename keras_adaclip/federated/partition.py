"""Ways to divide the examples of a data set among simulated clients.

Each function returns whose every example is, as integers of shape `(num_examples,)` for
`ClientData.from_arrays`. A division is part of a simulation: it looks at labels, without noise.
"""

from typing import Any

import numpy as np

from keras_adaclip.accounting import check_integer

__all__ = ["by_key", "by_label_shards", "dirichlet", "iid", "pachinko"]


def iid(num_examples: int, num_clients: int, seed: int | None = None) -> np.ndarray:
    """Shuffles the examples and deals them out: sizes differ by one at most.

    Args:
        num_examples: number of examples.
        num_clients: number of clients, up to `num_examples`.
        seed: of the shuffle.

    Example:

    >>> np.bincount(iid(10, num_clients=4, seed=0)).tolist()
    [3, 3, 2, 2]
    """
    num_examples = check_integer(num_examples, "num_examples", minimum=1)
    num_clients = check_integer(num_clients, "num_clients", minimum=1, maximum=num_examples)
    return np.random.default_rng(seed).permutation(np.arange(num_examples) % num_clients)


def by_label_shards(
    y: Any, num_clients: int, shards_per_client: int = 2, seed: int | None = None
) -> np.ndarray:
    """Sorts by label, cuts into shards, and deals these out (McMahan et al. 2017, section 3).

    With two shards a client, most clients have examples of two labels.

    Args:
        y: labels of shape `(num_examples,)`.
        num_clients: number of clients.
        shards_per_client: number of shards that each client gets.
        seed: of the dealing.

    Raises:
        ValueError: where there are fewer examples than shards, or `y` has more than one axis.
    """
    labels = _checked_labels(y)
    num_clients = check_integer(num_clients, "num_clients", minimum=1)
    shards_per_client = check_integer(shards_per_client, "shards_per_client", minimum=1)
    num_shards = num_clients * shards_per_client
    if num_shards > len(labels):
        raise ValueError(
            "There are fewer examples than shards. Received: "
            f"{len(labels)} examples, num_clients={num_clients}, "
            f"shards_per_client={shards_per_client}"
        )
    owners = np.random.default_rng(seed).permutation(num_shards) % num_clients
    shard_of_place = np.arange(len(labels)) * num_shards // len(labels)
    clients = np.empty(len(labels), np.int64)
    clients[np.argsort(labels, kind="stable")] = owners[shard_of_place]
    return clients


def dirichlet(y: Any, num_clients: int, alpha: float, seed: int | None = None) -> np.ndarray:
    """Each client's labels follow shares of its own, drawn from a symmetric Dirichlet law.

    Clients take turns in drawing a label by their shares, among those of which examples are left
    (Hsu, Qi and Brown 2019), so that sizes differ by one at most.

    Args:
        y: labels of shape `(num_examples,)`.
        num_clients: number of clients, up to the number of examples.
        alpha: positive; towards 0 each client has one label, for large values all are alike.
        seed: of the draws.

    Raises:
        ValueError: where there are fewer examples than clients, `alpha` is not positive, or `y` has
            more than one axis.
    """
    labels = _checked_labels(y)
    num_clients = check_integer(num_clients, "num_clients", minimum=1, maximum=len(labels))
    if not 0.0 < alpha < np.inf:
        raise ValueError(f"Argument `alpha` must be positive. Received: alpha={alpha}")
    generator = np.random.default_rng(seed)
    kinds, numbers = np.unique(labels, return_inverse=True)
    shares = generator.dirichlet(np.full(len(kinds), float(alpha)), num_clients)
    piles = [generator.permutation(np.flatnonzero(numbers == kind)) for kind in range(len(kinds))]
    left = np.array([len(pile) for pile in piles])
    clients = np.empty(len(labels), np.int64)
    for turn in range(len(labels)):
        client = turn % num_clients
        kind = _drawn(generator, shares[client], left)
        left[kind] -= 1
        clients[piles[kind][left[kind]]] = client
    return clients


def pachinko(
    coarse: Any,
    fine: Any,
    num_clients: int,
    root_alpha: float = 0.1,
    coarse_alpha: float = 10.0,
    seed: int | None = None,
) -> np.ndarray:
    """Pachinko allocation over two levels of labels, as of CIFAR-100 (Reddi et al. 2021).

    Each client draws shares of the coarse labels from one Dirichlet law, and of the fine labels
    below each from another. It takes examples one by one, by drawing first a coarse label and then
    a fine one below it among those of which examples are left.

    Args:
        coarse: coarse labels of shape `(num_examples,)`.
        fine: fine labels of shape `(num_examples,)`, each below one coarse label.
        num_clients: number of clients, up to the number of examples.
        root_alpha: concentration of the shares of coarse labels.
        coarse_alpha: concentration of the shares of the fine labels below a coarse one.
        seed: of the draws.

    Raises:
        ValueError: where a fine label stands below two coarse ones, or an argument is out of range.
    """
    coarse, fine = _checked_labels(coarse), _checked_labels(fine)
    if len(coarse) != len(fine):
        raise ValueError(
            "Coarse and fine labels must be as many. "
            f"Received: {len(coarse)} coarse and {len(fine)} fine labels"
        )
    num_clients = check_integer(num_clients, "num_clients", minimum=1, maximum=len(fine))
    generator = np.random.default_rng(seed)
    kinds, first, numbers = np.unique(fine, return_index=True, return_inverse=True)
    parents, parent_of_kind = np.unique(coarse[first], return_inverse=True)
    if not np.array_equal(parents[parent_of_kind][numbers], coarse):
        raise ValueError("Each fine label must stand below one coarse label.")
    below = [np.flatnonzero(parent_of_kind == parent) for parent in range(len(parents))]
    piles = [generator.permutation(np.flatnonzero(numbers == kind)) for kind in range(len(kinds))]
    left = np.array([len(pile) for pile in piles])
    clients = np.empty(len(fine), np.int64)
    sizes = np.bincount(np.arange(len(fine)) % num_clients, minlength=num_clients)
    for client, size in enumerate(sizes):
        of_root = generator.dirichlet(np.full(len(parents), root_alpha))
        of_parents = [generator.dirichlet(np.full(len(each), coarse_alpha)) for each in below]
        for _ in range(size):
            left_below = np.array([left[each].sum() for each in below])
            parent = _drawn(generator, of_root, left_below)
            kind = below[parent][_drawn(generator, of_parents[parent], left[below[parent]])]
            left[kind] -= 1
            clients[piles[kind][left[kind]]] = client
    return clients


def by_key(keys: Any) -> np.ndarray:
    """One client for each value of a key, such as an author or a hospital.

    Args:
        keys: an array of shape `(num_examples,)`.

    Returns:
        Integers from 0, in the order of the sorted keys.

    Example:

    >>> by_key(["b", "a", "b"]).tolist()
    [1, 0, 1]
    """
    return np.unique(_checked_labels(keys), return_inverse=True)[1]


def _drawn(generator: np.random.Generator, shares: np.ndarray, left: np.ndarray) -> int:
    """A number by its share, among those of which some are left."""
    weights = shares * (left > 0)
    total = weights.sum()
    # All of these may be gone, or so rare that their shares round to zero.
    weights = weights / total if total > 0.0 else (left > 0) / np.count_nonzero(left)
    return int(generator.choice(len(shares), p=weights))


def _checked_labels(labels: Any) -> np.ndarray:
    labels = np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or len(labels) == 0:
        raise ValueError(
            "Labels must be an array of shape (num_examples,) with one label an example. "
            f"Received: shape {labels.shape}"
        )
    return labels
