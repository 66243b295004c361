"""Clients from arrays and HDF5 files."""

import pickle

import h5py
import numpy as np
import pytest

from keras_adaclip.federated import ClientData

X = np.arange(12.0).reshape(6, 2)
Y = np.arange(6)
IDS = ["b", "a", "b", "c", "a", "b"]


def test_examples_by_client_keep_their_order():
    clients = ClientData.from_arrays(X, Y, IDS)
    assert (len(clients), list(clients)) == (3, ["a", "b", "c"])
    x, y = clients["b"]
    assert (x.tolist(), y.tolist()) == (X[[0, 2, 5]].tolist(), [0, 2, 5])
    assert [clients.num_examples_at(n) for n in range(3)] == [2, 3, 1]
    assert repr(clients) == "<ClientData with 3 clients>"
    with pytest.raises(KeyError, match=r"no client 'z' among the 3 clients"):
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

    clients = ClientData.from_hdf5(path, "pixels", "label", preprocess)
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
