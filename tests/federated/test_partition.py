"""Divisions of examples among clients."""

import numpy as np
import pytest

from keras_adaclip.federated import partition

LABELS = np.repeat(np.arange(10), 60)


def largest_share(clients, labels):
    """The share of the most frequent label of a client, averaged over clients."""
    counts = np.zeros((clients.max() + 1, labels.max() + 1))
    np.add.at(counts, (clients, labels), 1)
    return (counts.max(axis=1) / counts.sum(axis=1)).mean()


def test_iid_divides_evenly():
    clients = partition.iid(601, 20, seed=1)
    assert sorted(set(np.bincount(clients).tolist())) == [30, 31]
    assert not np.array_equal(clients, partition.iid(601, 20, seed=2))
    assert np.array_equal(clients, partition.iid(601, 20, seed=1))


def test_shards_hold_few_labels():
    clients = partition.by_label_shards(LABELS, 50, shards_per_client=2, seed=0)
    assert np.bincount(clients).tolist() == [12] * 50
    labels_of = [len(np.unique(LABELS[clients == client])) for client in range(50)]
    assert max(labels_of) <= 3
    assert np.mean(labels_of) < 2.5


def test_dirichlet_goes_from_one_label_to_all():
    few, many = (partition.dirichlet(LABELS, 30, alpha, seed=0) for alpha in (0.05, 100.0))
    assert np.bincount(few).tolist() == np.bincount(many).tolist() == [20] * 30
    assert largest_share(few, LABELS) > 0.55
    assert largest_share(many, LABELS) < 0.4


def test_pachinko_draws_coarse_labels_first():
    fine = np.repeat(np.arange(20), 30)
    clients = partition.pachinko(fine // 4, fine, 30, root_alpha=0.1, coarse_alpha=10.0, seed=0)
    assert np.bincount(clients).tolist() == [20] * 30
    # Few coarse labels a client, and below them about equal shares of the fine ones.
    assert largest_share(clients, fine // 4) > 0.6
    assert largest_share(clients, fine) < 0.5


def test_by_key():
    assert partition.by_key(np.array(["y", "x", "y", "z"])).tolist() == [1, 0, 1, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: partition.iid(5, 6), "`num_clients` must lie between 1 and 5"),
        (lambda: partition.by_label_shards(LABELS, 400, 2), "between 1 and 300"),
        (lambda: partition.dirichlet(np.zeros((5, 2)), 2, 1.0), "one label an example"),
        (lambda: partition.pachinko([0, 1], [0, 0], 1), "belong to one coarse"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()
