"""Memory-mapped arrays: their rows come from the file, and their pages do not stay in memory."""

import functools
import os
import pickle

import numpy as np
import pytest

from keras_adaclip.sampling import PoissonDataset, mapped, write_source
from keras_adaclip.sampling.mapped import FileRows, MappedPages, rows_in_file

X = np.arange(600, dtype=np.float32).reshape(100, 3, 2)
IS_LINUX = os.path.exists("/proc/self/statm")
pytestmark = pytest.mark.skipif(not hasattr(os, "preadv"), reason="not on this system")


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "_LARGE", 0)
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


@pytest.mark.parametrize("of", [slice(None), slice(5, None), slice(7, 90)])
def test_rows_are_those_of_the_array(path, of):
    rows = rows_in_file(np.load(path, mmap_mode="r")[of])
    assert isinstance(rows, FileRows)
    assert (len(rows), rows.shape, rows.dtype) == (len(X[of]), X[of].shape, X.dtype)
    for again in (rows, pickle.loads(pickle.dumps(rows))):
        np.testing.assert_array_equal(again[np.array([3, 0, 60])], X[of][[3, 0, 60]])
        np.testing.assert_array_equal(again[:3], X[of][:3])
        np.testing.assert_array_equal(again[4], X[of][4])
        np.testing.assert_array_equal(again[-1], X[of][-1])
        np.testing.assert_array_equal(list(again), X[of])
        for wrong in (len(again), -len(again) - 1, [0, len(again)]):
            with pytest.raises(IndexError, match="Row numbers must lie between"):
                again[wrong]
        assert again[np.arange(0)].shape == (0, 3, 2)


def test_a_file_that_begins_later_and_a_raw_file(tmp_path, path):
    X.tofile(tmp_path / "raw")
    raw = np.memmap(tmp_path / "raw", "float32", "r", offset=24, shape=(99, 3, 2))
    np.testing.assert_array_equal(rows_in_file(raw)[np.array([0, 98])], X[[1, 99]])


def test_other_arrays_stay_as_they_are(path, monkeypatch):
    opened = np.load(path, mmap_mode="r")
    for array in (X, opened[::2], opened.transpose(0, 2, 1), opened[:0], opened.copy()):
        assert rows_in_file(array) is array
    monkeypatch.setattr(mapped, "_LARGE", X.nbytes + 1)
    assert rows_in_file(opened) is opened


def test_changes_are_seen(path):
    shared = np.load(path, mmap_mode="r+")
    rows = rows_in_file(shared)
    shared[3] = -1.0
    np.testing.assert_array_equal(rows[3], -np.ones((3, 2)))
    private = np.load(path, mmap_mode="c")
    private[4] = -2.0
    assert rows_in_file(private) is private


def test_another_file_of_that_name_is_not_read(path, tmp_path):
    opened = np.load(path, mmap_mode="r")
    np.save(tmp_path / "other.npy", -X)
    os.replace(tmp_path / "other.npy", path)
    assert rows_in_file(opened) is opened
    path.unlink()
    assert rows_in_file(opened) is opened


def test_a_file_that_changes_between_processes_is_refused(path):
    pickled = pickle.dumps(rows_in_file(np.load(path, mmap_mode="r")))
    np.save(path, X[:50])
    with pytest.raises(ValueError, match="has changed since its data set was pickled"):
        pickle.loads(pickled)


def test_a_file_that_becomes_shorter_is_named_at_the_row(path):
    options = {"expected_batch_size": 100, "seed": 0}
    data = PoissonDataset.from_source(np.load(path, mmap_mode="r"), **options)
    os.truncate(path, 2000)
    with pytest.raises(RuntimeError, match=r"could not be read: OSError: .*shorter: .*x\.npy"):
        data[0]


def sources(path):
    opened = np.load(path, mmap_mode="r")
    written = write_source(((row, 1.0) for row in X), path.parent / "written")
    return {
        "arrays": PoissonDataset(opened, np.ones(100), expected_batch_size=9, seed=1),
        "mapped": PoissonDataset.from_source(
            opened, map=lambda row: (row, 1.0), expected_batch_size=9, seed=1
        ),
        "written": PoissonDataset.from_source(written, expected_batch_size=9, seed=1),
    }


def test_draws_from_files_are_those_from_memory(path):
    found = {"memory": PoissonDataset(X, np.ones(100), expected_batch_size=9, seed=1)}
    found |= sources(path)
    for _ in range(5):
        batches = {name: data[0] for name, data in found.items()}
        for batch in batches.values():
            np.testing.assert_array_equal(batch["x"], batches["memory"]["x"])
            np.testing.assert_array_equal(batch["y"], batches["memory"]["y"])


class Pairs:
    """A source that maps a file by itself."""

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], 0.0


def megabytes_of_files():
    with open("/proc/self/statm") as status:
        return int(status.read().split()[2]) * os.sysconf("SC_PAGE_SIZE") >> 20


@pytest.mark.skipif(not IS_LINUX, reason="reads /proc")
@pytest.mark.parametrize("way", ["array", "attribute", "variable", "partial", "method"])
def test_pages_do_not_stay_in_memory(way, tmp_path, monkeypatch):
    monkeypatch.setattr(mapped, "_MOST_BYTES", 8 << 20)
    shape = (50_000, 4096)
    x = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "uint8", shape)  # 200 MB of holes
    rows = np.arange(0, 50_000, 2)
    if way == "array":
        data = PoissonDataset.from_source(x, expected_batch_size=500)
    elif way == "attribute":
        data = PoissonDataset.from_source(Pairs(x), expected_batch_size=500)
    else:
        unset = None

        def read(index):
            return (x[index], 0.0) if index >= 0 else unset

        if way == "method":
            read = Pairs(x).__getitem__
        if way == "partial":
            read = functools.partial(lambda rows, index: (rows[0][index], 0.0), [x])
        del unset
        data = PoissonDataset.from_source(range(50_000), map=read, expected_batch_size=500)
    before = megabytes_of_files()
    most = 0
    for part in np.array_split(rows, 50):
        data.take(part)
        most = max(most, megabytes_of_files() - before)
    assert most < 20


def test_pages_of_a_private_copy_stay(path):
    opened = np.load(path, mmap_mode="c")
    opened[3] = 5.0
    pages = MappedPages(Pairs(opened))
    pages._limit = -1
    pages.give_back()
    assert opened[3, 0, 0] == 5.0
