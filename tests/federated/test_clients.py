"""Clients from arrays, frames, dicts, HDF5 files, functions and other clients, and divisions."""

import pickle

import h5py
import numpy as np
import pandas
import polars
import pyarrow
import pytest

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


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "clients.h5"
    with h5py.File(path, "w") as file:
        for name, size in (("f1", 3), ("f2", 1), ("f0", 0)):
            group = file.create_group(f"examples/{name}")
            group["pixels"] = np.full((size, 2, 2), float(size), np.float32)
            group["label"] = np.arange(size)
    return path


def test_files_in_the_layout_of_tensorflow_federated_are_read_and_mapped_one_by_one(path):
    clients = pickle.loads(pickle.dumps(ClientData.from_hdf5(path, x="pixels", y="label")))
    assert sorted(clients) == ["f0", "f1", "f2"]
    x, y = clients["f1"]
    assert (x.shape, x.dtype, y.tolist()) == ((3, 2, 2), np.float32, [0, 1, 2])
    assert [clients.num_examples_at(n) for n in range(3)] == [0, 3, 1]
    seen = []

    def first(x, y):
        seen.append(len(x))
        return x[:1] / 255.0, y[:1]

    mapped = clients.map(first)
    seen.clear()
    assert mapped["f1"][0].shape == (1, 2, 2)
    assert seen == [3]
    with pytest.raises(TypeError, match=r"as a tuple `\(x, y\)`"):
        clients.map(lambda x, y: x)["f1"]


def test_a_function_is_called_for_the_clients_that_take_part():
    rng = np.random.default_rng(0)
    x, y, ids = rng.normal(size=(30, 4)), rng.integers(0, 2, 30), np.repeat(list("abc"), 10)
    log = []

    def read(name):
        log.append(name)
        return x[ids == name], y[ids == name]

    clients = ClientData.from_function(["a", "b", "c"], read, num_examples=[10, 10, 10])
    arrays = ClientData.from_arrays(x, y, ids)
    assert [clients.num_examples_at(n) for n in range(3)] == [10, 10, 10]
    assert log == []
    assert clients["b"][0].tolist() == arrays["b"][0].tolist()
    assert clients["b"][0].dtype == arrays["b"][0].dtype
    assert set(log) == {"b"}


def test_a_client_that_cannot_be_read_is_named():
    examples = {0: np.ones(3), 1: np.ones(2), 3: np.ones(0)}
    clients = ClientData.from_function([0, 1, 2, 3], examples.__getitem__, [3, 3, 3, 0])
    assert clients[0][1] is None
    assert len(clients[3][0]) == 0
    with pytest.raises(ValueError, match=r"Client 1 has another number.*Expected: 3. Received: 2"):
        clients[1]
    with pytest.raises(RuntimeError, match="Client 2 could not be read: KeyError: 2"):
        clients[2]


# Frames

COLUMNS = {"user": IDS, "age": [3, 5, 4, 6, 8, 7], "income": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5], "y": Y}
FRAMES = {
    "pandas": pandas.DataFrame,
    "categories": lambda columns: pandas.DataFrame(columns).astype({"user": "category"}),
    "pandas strings": lambda columns: pandas.DataFrame(columns).astype({"user": "string"}),
    "polars": polars.DataFrame,
    "Arrow": pyarrow.table,
}


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_with_a_column_of_clients(kind):
    frame = FRAMES[kind](COLUMNS)
    clients = ClientData.from_dataframe(frame, client="user", label="y")
    x, y = clients["b"]
    assert (clients.client_ids, y.tolist()) == (["a", "b", "c"], [0, 2, 5])
    assert (x.tolist(), x.dtype) == ([[3, 0.5], [4, 2.5], [7, 5.5]], np.float32)
    x, y = ClientData.from_dataframe(frame, "user", features="age")["c"]
    assert (np.asarray(x).tolist(), y) == ([6], None)
    named = {"person": ["income", "age"], "year": "y"}
    x, _ = ClientData.from_dataframe(frame, "user", "y", named)["a"]
    assert (x["person"].tolist(), x["year"].tolist()) == ([[1.5, 5], [4.5, 8]], [1, 4])


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([3, 1, 3, 2, 1, 3], [1, 2, 3]),
        (np.array([3, 1, 3, 2, 1, 3], object), [1, 2, 3]),
        (pandas.array([3, 1, 3, 2, 1, 3], "Int64"), [1, 2, 3]),
        # One array would make strings of the integers.
        (np.array([1, "x", 1, "2", "x", 1], object), [1, "x", "2"]),
        (["a\0", "a", "b", "a", "b", "a"], ["a", "a\0", "b"]),
        ([np.int64(3), 1, np.int32(3), 2, 1, 3], [1, 2, 3]),
        ([("x", 1), ("y", 1), ("x", 1), ("x", 2), ("y", 1)] * 2, [("x", 1), ("x", 2), ("y", 1)]),
        (pandas.to_datetime(["2026-01-02"] * 3 + ["2026-01-01"] * 3), None),
    ],
)
def test_ids_of_many_kinds_are_told_apart(ids, expected):
    column = pandas.Series(ids[:6], dtype=getattr(ids, "dtype", None))
    clients = ClientData.from_dataframe(pandas.DataFrame({**COLUMNS, "user": column}), "user", "y")
    if expected is not None:
        assert clients.client_ids == expected
    assert sorted(np.concatenate([clients[each][1] for each in clients]).tolist()) == list(range(6))


def frame(columns=(), **arguments):
    arguments = {"client": "user", "label": "y", **arguments}
    return ClientData.from_dataframe(pandas.DataFrame({**COLUMNS, **dict(columns)}), **arguments)


def of_columns(*names):
    return ClientData.from_dataframe(pandas.DataFrame({n: COLUMNS[n] for n in names}), "user", "y")


def users(*ids):
    return {"user": np.array(ids, object)}


def of_dict():
    return ClientData.from_dict({"c": (X[3:4], Y[3:4]), "b": (X[:2], Y[:2]), "a": (X[4:], Y[4:])})


REFUSED = [
    (lambda: ClientData.from_arrays(X, Y, IDS[:-1]), ValueError, "same number of rows"),
    (lambda: ClientData.from_arrays(X, Y, np.zeros(6)), TypeError, "one integer or string"),
    (lambda: ClientData.from_arrays(X, Y, [*IDS[:-1], None]), TypeError, "one integer or string"),
    (lambda: ClientData.from_arrays(X, Y, IDS, ["a", "b"]), ValueError, "such as 'c'"),
    (lambda: ClientData.from_arrays(3.0, Y, IDS), TypeError, "first axis"),
    (lambda: ClientData.from_function("aa", np.ones), ValueError, "2 entries of 1 clients"),
    (lambda: ClientData.from_function([], np.ones), ValueError, "at least one id"),
    (lambda: ClientData.from_function("ab", np.ones, [1]), ValueError, "1 numbers for 2 clients"),
    (lambda: frame(client="person"), ValueError, r"no column 'person'. It has: \['user', 'age'"),
    (lambda: frame(features=["age", "z"]), ValueError, "no column 'z'"),
    (lambda: frame(users(*IDS[:-1], None)), TypeError, "with 1 of 6 ids missing"),
    (lambda: frame(users("nan", *IDS[:-2], np.nan)), TypeError, "with 1 of 6 ids missing"),
    (lambda: frame({"user": [1, 2, None, 1, None, 1]}), TypeError, "leave them out"),
    (lambda: frame(users(1, "1", 2, 3, 4, 5)), ValueError, "1 and '1' look alike"),
    (lambda: frame(users(b"a", "a", "b", "c", "d", "e")), ValueError, "look alike"),
    (lambda: frame(users(True, "True", "b", "c", "d", "e")), ValueError, "alike"),
    (lambda: frame({"age": list("abcdef")}), TypeError, "must hold numbers"),
    (lambda: ClientData.from_dataframe(COLUMNS, "user"), TypeError, "must be a frame of pandas or"),
    (lambda: of_columns("user", "y"), ValueError, "no column beside"),
    (lambda: ClientData.from_dict([1, 2]), TypeError, "must be a dict of the examples"),
    (lambda: of_dict().subset([]), ValueError, "each only once"),
    (lambda: of_dict().subset(["a", "a"]), ValueError, "each only once"),
    (lambda: of_dict().split(1.5), ValueError, "test_fraction"),
    (lambda: of_dict().split(0.0), ValueError, "test_fraction"),
    (lambda: of_dict().split(0.5, "rows"), ValueError, "must be one of 'client', 'examples'"),
    (lambda: of_dict().split(0.5, "client", -1), ValueError, "seed"),
    (lambda: of_dict().subset(["a"]).split(0.5), ValueError, "`by='examples'`"),
    (lambda: partition.iid(5, 6), ValueError, "`num_clients` must lie between 1 and 5"),
    (lambda: partition.by_label_shards(LABELS, 400, 2), ValueError, "between 1 and 300"),
    (lambda: partition.dirichlet(np.zeros((5, 2)), 2, 1.0), ValueError, "one label an example"),
    (lambda: partition.pachinko([0, 1], [0, 0], 1), ValueError, "belong to one coarse"),
]


@pytest.mark.parametrize(("make", "error", "message"), REFUSED)
def test_what_holds_no_clients_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_errors_name_the_file_and_the_key(path, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"missing.h5"):
        ClientData.from_hdf5(tmp_path / "missing.h5", "pixels")
    with pytest.raises(ValueError, match=r"clients\.h5.*object 'image' doesn't exist"):
        ClientData.from_hdf5(path, "image")
    with h5py.File(path, "a") as file:
        del file["examples"]
    with pytest.raises(ValueError, match=r"examples/<client id>/<feature>.*'examples' doesn't"):
        ClientData.from_hdf5(path, "pixels")


# Clients from clients


def test_a_subset_keeps_the_examples_of_its_clients():
    assert of_dict().client_ids == ["c", "b", "a"]
    clients = of_dict().subset(["a", "c"])
    assert (clients.client_ids, len(clients)) == (["a", "c"], 2)
    assert clients["a"][1].tolist() == [4, 5]
    assert clients.all_examples()[1].tolist() == [4, 5, 3]
    with pytest.raises(KeyError, match="'b'"):
        clients["b"]


def test_clients_divided_by_clients():
    ids = np.arange(2000) % 400
    clients = ClientData.from_arrays(np.arange(2000.0)[:, None], ids, ids)
    train, test = clients.split(0.25, seed=3)
    # Binomial, two-sided at 1e-6.
    assert 100 - 43 <= len(test) <= 100 + 43
    assert sorted([*train, *test]) == list(range(400))
    assert list(clients.split(0.25, seed=3)[1]) == list(test)
    assert list(clients.split(0.25, seed=4)[1]) != list(test)
    assert len({tuple(clients.split(0.25)[1]) for _ in range(5)}) > 1
    # With a client less, every other one stays where it is.
    fewer = clients.subset([each for each in clients if each != 7]).split(0.25, seed=3)
    assert [set(part) for part in fewer] == [set(part) - {7} for part in (train, test)]


def test_the_examples_of_each_client_divided():
    sizes = np.random.default_rng(0).integers(1, 12, 20)
    examples = {f"user {n}": np.arange(size)[:, None] + 100 * n for n, size in enumerate(sizes)}
    clients = ClientData.from_dict(examples)
    train, test = clients.split(0.3, by="examples", seed=1)
    for position, client_id in enumerate(clients):
        parts = [part[client_id][0].ravel().tolist() for part in (train, test)]
        assert sorted(parts[0] + parts[1]) == examples[client_id].ravel().tolist()
        assert len(parts[0]) == train.num_examples_at(position) >= 1
        assert len(parts[1]) == min(round(0.3 * sizes[position]), sizes[position] - 1)
    # Without the others, a client's examples are divided in the same way.
    alone = clients.subset(["user 7"]).split(0.3, by="examples", seed=1)[1]["user 7"][0]
    np.testing.assert_array_equal(alone, test["user 7"][0])


# Divisions of examples among clients

LABELS = np.repeat(np.arange(10), 60)


def largest_share(clients, labels):
    """The share of the most frequent label of a client, averaged over clients."""
    counts = np.zeros((clients.max() + 1, labels.max() + 1))
    np.add.at(counts, (clients, labels), 1)
    return (counts.max(axis=1) / counts.sum(axis=1)).mean()


def test_partitions_divide_evenly_and_by_labels():
    clients = partition.iid(601, 20, seed=1)
    assert sorted(set(np.bincount(clients).tolist())) == [30, 31]
    assert not np.array_equal(clients, partition.iid(601, 20, seed=2))
    assert np.array_equal(clients, partition.iid(601, 20, seed=1))
    clients = partition.by_label_shards(LABELS, 50, shards_per_client=2, seed=0)
    assert np.bincount(clients).tolist() == [12] * 50
    labels_of = [len(np.unique(LABELS[clients == client])) for client in range(50)]
    assert max(labels_of) <= 3
    assert np.mean(labels_of) < 2.5
    few, many = (partition.dirichlet(LABELS, 30, alpha, seed=0) for alpha in (0.05, 100.0))
    assert np.bincount(few).tolist() == np.bincount(many).tolist() == [20] * 30
    assert largest_share(few, LABELS) > 0.55
    assert largest_share(many, LABELS) < 0.4
    fine = np.repeat(np.arange(20), 30)
    clients = partition.pachinko(fine // 4, fine, 30, root_alpha=0.1, coarse_alpha=10.0, seed=0)
    assert np.bincount(clients).tolist() == [20] * 30
    # Few coarse labels a client, and below them about equal shares of the fine ones.
    assert largest_share(clients, fine // 4) > 0.6
    assert largest_share(clients, fine) < 0.5
    assert partition.by_key(np.array(["y", "x", "y", "z"])).tolist() == [1, 0, 1, 2]


def test_a_function_may_use_its_array_again():
    """Otherwise one client's data would be in the contributions of others."""
    buffer = np.zeros((2, 3), "float32")

    def read(client):
        buffer[:] = client
        return buffer

    clients = ClientData.from_function([1, 2], read)
    first, _ = clients.examples_at(0)
    clients.examples_at(1)
    assert (first == 1.0).all()
