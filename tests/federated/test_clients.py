"""Clients from arrays, HDF5 files and functions, and divisions of examples among clients."""

import pickle

import h5py
import keras
import numpy as np
import pandas
import pytest

import keras_adaclip as ka
from keras_adaclip.federated import ClientData, partition

X = np.arange(12.0).reshape(6, 2)
Y = np.arange(6)
IDS = ["b", "a", "b", "c", "a", "b"]


@pytest.mark.parametrize("ids", [IDS, np.array(IDS, object), pandas.Series(IDS, dtype="category")])
def test_examples_by_client_keep_their_order(ids):
    clients = ClientData.from_arrays(X, Y, ids)
    assert (len(clients), list(clients)) == (3, ["a", "b", "c"])
    x, y = clients["b"]
    assert (x.tolist(), y.tolist()) == (X[[0, 2, 5]].tolist(), [0, 2, 5])
    assert [clients.num_examples_at(n) for n in range(3)] == [2, 3, 1]
    assert repr(clients) == "<ClientData with 3 clients>"
    with pytest.raises(KeyError, match="'z'"):
        clients["z"]


def test_a_population_may_hold_clients_without_examples():
    clients = ClientData.from_arrays(X, Y, [1, 1, 3, 3, 3, 1], population=[3, 2, 1, 0])
    assert clients.client_ids == [3, 2, 1, 0]
    assert [len(clients[each][0]) for each in (3, 2, 1, 0)] == [3, 0, 3, 0]
    assert clients[1][1].tolist() == [0, 1, 5]


def test_structures_of_arrays():
    clients = ClientData.from_arrays({"a": X, "b": Y}, None, IDS)
    x, y = clients["c"]
    assert y is None
    assert (x["a"].tolist(), x["b"].tolist()) == ([[6.0, 7.0]], [3])
    first, _ = clients.first_examples(4)
    assert first["b"].tolist() == [1, 4, 0, 2]
    assert len(clients.first_examples(9)[0]["b"]) == 6


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((X, Y, IDS[:-1]), ValueError, "same number of rows"),
        ((X, Y, np.zeros(6)), TypeError, "one integer or string"),
        ((X, Y, np.array([*IDS[:-1], None])), TypeError, "one integer or string"),
        ((X, Y, IDS, ["a", "b"]), ValueError, "such as 'c'"),
        ((3.0, Y, IDS), TypeError, "first axis"),
    ],
)
def test_wrong_arrays(arguments, error, message):
    with pytest.raises(error, match=message):
        ClientData.from_arrays(*arguments)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "clients.h5"
    with h5py.File(path, "w") as file:
        for name, size in (("f1", 3), ("f2", 1), ("f0", 0)):
            group = file.create_group(f"examples/{name}")
            group["pixels"] = np.full((size, 2, 2), float(size), np.float32)
            group["label"] = np.arange(size)
    return path


def test_the_layout_of_tensorflow_federated(path):
    clients = pickle.loads(pickle.dumps(ClientData.from_hdf5(path, x="pixels", y="label")))
    assert sorted(clients) == ["f0", "f1", "f2"]
    x, y = clients["f1"]
    assert (x.shape, x.dtype, y.tolist()) == ((3, 2, 2), np.float32, [0, 1, 2])
    assert [clients.num_examples_at(n) for n in range(3)] == [0, 3, 1]


def test_preprocessing_sees_one_client(path):
    seen = []

    def preprocess(x, y):
        seen.append(len(x))
        return x[:1] / 255.0, y[:1]

    clients = ClientData.from_hdf5(path, "pixels", "label").map(preprocess)
    seen.clear()
    assert clients["f1"][0].shape == (1, 2, 2)
    assert seen == [3]


def test_errors_name_the_file_and_the_key(path, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing.h5"):
        ClientData.from_hdf5(tmp_path / "missing.h5", "pixels")
    with pytest.raises(ValueError, match=r"has no feature 'image'.*'label', 'pixels'"):
        ClientData.from_hdf5(path, "image")
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["numbers"] = np.zeros(3)
    with pytest.raises(ValueError, match=r"other.h5 has no group 'examples'.*'numbers'"):
        ClientData.from_hdf5(other, "pixels")


def from_function(x, y, ids, log=None, **arguments):
    def read(name):
        if log is not None:
            log.append(name)
        return x[ids == name], y[ids == name]

    return ClientData.from_function(["a", "b", "c"], read, **arguments)


def test_a_function_is_called_for_the_clients_that_take_part():
    rng = np.random.default_rng(0)
    x, y, ids = rng.normal(size=(30, 3)), rng.integers(0, 2, 30), np.repeat(list("abc"), 10)
    log = []
    read = from_function(x, y, ids, log, num_examples=[10, 10, 10])
    arrays = ClientData.from_arrays(x, y, ids)
    assert log == []
    assert [read.num_examples_at(n) for n in range(3)] == [10, 10, 10]
    assert read["b"][0].tolist() == arrays["b"][0].tolist()
    assert log == ["b"]
    assert read["b"][0].dtype == arrays["b"][0].dtype
    weights = []
    for clients in (arrays, read):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model = ka.federate(model)
        optimizer = ka.optimizers.DPOptimizer("sgd", clipping=1.0, noise_multiplier=0.5, seed=1)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, client_optimizer="sgd", client_batch_size=5, loss=loss)
        model.fit(clients, cohort_size=1, epochs=1, verbose=0)
        weights.append(np.concatenate([value.ravel() for value in model.get_weights()]))
    np.testing.assert_array_equal(*weights)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"client_ids": ["a", "a"]}, ValueError, "2 entries of 1 clients"),
        ({"client_ids": []}, ValueError, "at least one id"),
        ({"num_examples": [1]}, ValueError, "1 numbers for 2 clients"),
    ],
)
def test_functions_that_cannot_be_clients_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        ClientData.from_function(**{"client_ids": ["a", "b"], "read": np.ones} | arguments)


def test_a_client_that_cannot_be_read_is_named():
    clients = ClientData.from_function(
        [0, 1, 2], {0: np.ones(3), 1: np.ones(2)}.__getitem__, [3] * 3
    )
    assert clients[0][1] is None
    with pytest.raises(ValueError, match=r"Client 1 has another number.*Expected: 3. Received: 2"):
        clients[1]
    with pytest.raises(RuntimeError, match="Client 2 could not be read: KeyError: 2"):
        clients[2]


# Divisions

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
def test_wrong_divisions(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_function_may_have_a_client_without_examples():
    clients = ClientData.from_function(
        ["a", "b"], lambda name: (X[: 2 * (name == "a")], Y[: 2 * (name == "a")]), [2, 0]
    )
    assert len(clients["b"][0]) == 0
