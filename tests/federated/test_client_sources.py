"""Clients from frames, dicts and other clients."""

import numpy as np
import pandas
import polars
import pyarrow
import pytest

from keras_adaclip.federated import ClientData
from tests.federated.test_clients import IDS, X, Y

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
        ([1, "x", 1, "2", "x", 1], [1, "x", "2"]),
        (["a\0", "a", "b", "a", "b", "a"], ["a", "a\0", "b"]),
        ([np.int64(3), 1, np.int32(3), 2, 1, 3], [1, 2, 3]),
        (
            [("x", 1), ("y", 1), ("x", 1), ("x", 2), ("y", 1), ("x", 1)],
            [("x", 1), ("x", 2), ("y", 1)],
        ),
        (pandas.to_datetime(["2026-01-02"] * 3 + ["2026-01-01"] * 3), None),
    ],
)
def test_kinds_of_ids(ids, expected):
    column = pandas.Series(ids[:6], dtype=getattr(ids, "dtype", None))
    clients = ClientData.from_dataframe(pandas.DataFrame({**COLUMNS, "user": column}), "user", "y")
    if expected is not None:
        assert clients.client_ids == expected
    assert sorted(np.concatenate([clients[each][1] for each in clients]).tolist()) == list(range(6))


@pytest.mark.parametrize(
    ("columns", "arguments", "error", "message"),
    [
        ({}, {"client": "person"}, ValueError, "no column 'person'. It has: 'user', 'age'"),
        ({}, {"label": "z"}, ValueError, "no column 'z'"),
        ({}, {"features": ["age", "z"]}, ValueError, "no column 'z'"),
        ({"user": [*IDS[:-1], None]}, {}, TypeError, "with 1 of 6 ids missing"),
        ({"user": [1, 2, None, 1, None, 1]}, {}, TypeError, "leave them out"),
        ({"user": ["nan", *IDS[:-2], np.nan]}, {}, TypeError, "with 1 of 6 ids missing"),
        (
            {"user": pandas.to_datetime(["2026-01-02"] * 5 + [None])},
            {},
            TypeError,
            "with 1 of 6 ids missing",
        ),
        ({"user": np.array([1, "1", 2, 3, 4, 5], object)}, {}, ValueError, "1 and '1' look alike"),
        ({"user": np.array([b"a", "a", "b", "c", "d", "e"], object)}, {}, ValueError, "look alike"),
        ({"user": np.array([True, "True", "b", "c", "d", "e"], object)}, {}, ValueError, "alike"),
        ({"age": list("abcdef")}, {}, TypeError, "must hold numbers"),
    ],
)
def test_frames_that_hold_no_clients_are_refused(columns, arguments, error, message):
    arguments = {"client": "user", "label": "y", **arguments}
    with pytest.raises(error, match=message):
        ClientData.from_dataframe(pandas.DataFrame({**COLUMNS, **columns}), **arguments)


def test_what_is_no_frame_is_refused():
    with pytest.raises(TypeError, match="must be a frame of pandas or polars"):
        ClientData.from_dataframe(COLUMNS, "user")
    with pytest.raises(ValueError, match="no column beside"):
        ClientData.from_dataframe(pandas.DataFrame({"user": IDS, "y": Y}), "user", "y")
    with pytest.raises(TypeError, match="must be a dict of the examples"):
        ClientData.from_dict([1, 2])


def of_dict(log=None):
    def preprocess(x, y):
        if log is not None:
            log.append(len(x))
        return x * 2, y

    examples = {name: (X[np.array(IDS) == name], Y[np.array(IDS) == name]) for name in "cba"}
    clients = ClientData.from_dict(examples)
    return clients if log is None else clients.map(preprocess)


def test_a_dict_of_examples_and_preprocessing():
    log = []
    clients = of_dict(log)
    assert clients.client_ids == ["c", "b", "a"]
    assert log == []
    assert clients["a"][0].tolist() == (X[[1, 4]] * 2).tolist()
    assert log == [2]
    first = clients.map(lambda x, y: (x[:1], y[:1]))
    assert [first.num_examples_at(n) for n in range(3)] == [1, 1, 1]
    with pytest.raises(TypeError, match=r"as a tuple `\(x, y\)`"):
        clients.map(lambda x, y: x)["a"]
    assert ClientData.from_dict({"a": X})["a"][1] is None


def test_a_subset():
    clients = of_dict().subset(["a", "c"])
    assert (clients.client_ids, len(clients)) == (["a", "c"], 2)
    assert clients["a"][1].tolist() == [1, 4]
    assert clients.all_examples()[1].tolist() == [1, 4, 3]
    with pytest.raises(KeyError, match="'b'"):
        clients["b"]
    for wrong in ([], ["a", "a"]):
        with pytest.raises(ValueError, match="each only once"):
            clients.subset(wrong)


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
    with pytest.raises(ValueError, match="`by='examples'`"):
        clients.subset([1]).split(0.5)


def test_the_examples_of_each_client_divided():
    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 12, 20)
    examples = {f"user {n}": np.arange(size)[:, None] + 100 * n for n, size in enumerate(sizes)}
    clients = ClientData.from_dict(examples)
    train, test = clients.split(0.3, by="examples", seed=1)
    for position, client_id in enumerate(clients):
        parts = [part[client_id][0].ravel().tolist() for part in (train, test)]
        assert sorted(parts[0] + parts[1]) == examples[client_id].ravel().tolist()
        assert len(parts[0]) == train.num_examples_at(position) >= 1
        assert len(parts[1]) == min(round(0.3 * sizes[position]), sizes[position] - 1)
    # Without the others, a client's examples are divided alike.
    alone = clients.subset(["user 7"]).split(0.3, by="examples", seed=1)[1]["user 7"][0]
    np.testing.assert_array_equal(alone, test["user 7"][0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((1.5,), ValueError, "test_fraction"),
        ((0.0,), ValueError, "test_fraction"),
        ((0.5, "rows"), ValueError, "must be one of 'client', 'examples'"),
        ((0.5, "client", -1), ValueError, "seed"),
    ],
)
def test_divisions_that_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        of_dict().split(*arguments)


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
