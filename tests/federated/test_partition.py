"""Divisions of examples among clients."""

import numpy as np
import pytest

from keras_adaclip.federated import partition

LABELS = np.repeat(np.arange(10), 60)


def shares(clients, labels, num_clients):
    """For each client, the share of each label."""
    counts = np.zeros((num_clients, labels.max() + 1))
    np.add.at(counts, (clients, labels), 1)
    return counts / counts.sum(axis=1, keepdims=True)


def test_iid_deals_everything_out():
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
    few, many = (
        shares(partition.dirichlet(LABELS, 30, alpha, seed=0), LABELS, 30).max(axis=1).mean()
        for alpha in (0.05, 100.0)
    )
    assert few > 0.55
    assert many < 0.4
    clients = partition.dirichlet(LABELS, 30, 0.3, seed=0)
    assert np.bincount(clients).tolist() == [20] * 30


def test_pachinko_draws_coarse_labels_first():
    fine = np.repeat(np.arange(20), 30)
    coarse = fine // 4
    clients = partition.pachinko(coarse, fine, 30, root_alpha=0.1, coarse_alpha=10.0, seed=0)
    assert np.bincount(clients).tolist() == [20] * 30
    # Few coarse labels a client, and below them about equal shares of the fine ones.
    assert shares(clients, coarse, 30).max(axis=1).mean() > 0.6
    assert shares(clients, fine, 30).max(axis=1).mean() < 0.5


def test_by_key():
    assert partition.by_key(np.array(["y", "x", "y", "z"])).tolist() == [1, 0, 1, 2]


@pytest.mark.parametrize(
    "call",
    [
        lambda: partition.iid(5, 6),
        lambda: partition.by_label_shards(LABELS, 400, 2),
        lambda: partition.dirichlet(LABELS, 10, 0.0),
        lambda: partition.dirichlet(np.zeros((5, 2)), 2, 1.0),
        lambda: partition.pachinko(np.array([0, 1]), np.array([0, 0]), 1),
        lambda: partition.pachinko(np.array([0, 1]), np.array([0]), 1),
    ],
)
def test_wrong_arguments(call):
    with pytest.raises(ValueError, match=r"Received|below one coarse"):
        call()
