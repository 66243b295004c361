"""The formats that data sets are published in; files that are not what they seem are refused."""

import gzip
import io
import os
import pickle

import numpy as np
import pytest

from keras_adaclip.datasets.files import read_idx, read_npz, unpickled_arrays

RAGGED = np.array([[1, 2, 3], [4]], dtype=object)


def test_an_idx_file_that_is_not_compressed(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"\0\0\x08\x01\0\0\0\x02\x07\x09")
    assert read_idx(path).tolist() == [7, 9]


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_numbers_and_of_lists(tmp_path, order):
    numbers = np.asarray(np.arange(6, dtype=np.int16).reshape(2, 3), order=order)
    np.savez(tmp_path / "file.npz", numbers=numbers, ragged=RAGGED)
    ragged, found = read_npz(tmp_path / "file.npz", ("ragged", "numbers"))
    np.testing.assert_array_equal(found, numbers)
    assert found.dtype == np.int16
    assert ragged.tolist() == RAGGED.tolist()


def test_an_archive_that_misses_something(tmp_path):
    path = tmp_path / "file.npz"
    np.savez(path, x=np.zeros(3))
    with pytest.raises(ValueError, match=r"file\.npz is not as it was published.*y\.npy"):
        read_npz(path, ("x", "y"))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match="is not as it was published"):
        read_npz(path, ("x",))


class RunsACommand:
    def __reduce__(self):
        return os.system, ("echo it ran",)


def test_a_file_that_would_run_code_is_refused(tmp_path, capfd):
    path = tmp_path / "file.npz"
    np.savez(path, x=np.array([[1], RunsACommand()], dtype=object))
    with pytest.raises(ValueError, match=r"no pickle of arrays and lists alone.*system"):
        read_npz(path, ("x",))
    assert "it ran" not in capfd.readouterr().out


@pytest.mark.parametrize(
    "content",
    # Without a time, which two processes that collect the tests would take at different seconds.
    [b"", b"no pickle", pickle.dumps(print), gzip.compress(b"", mtime=0)],
    ids=["empty", "text", "function", "compressed"],
)
def test_what_is_no_pickle_of_arrays(content):
    with pytest.raises(ValueError, match="no pickle of arrays and lists alone"):
        unpickled_arrays(io.BytesIO(content))


def test_a_pickle_of_python_2():
    # As CIFAR-10's files: a dict whose texts are bytes in Python 3. Written by hand.
    content = b"(dp0\nS'labels'\np1\n(lp2\nI3\naI5\nas."
    assert unpickled_arrays(io.BytesIO(content)) == {b"labels": [3, 5]}


@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_arrays_of_either_numpy(module):
    written = pickle.dumps(np.arange(3, dtype=np.uint8), protocol=3)
    content = written.replace(np.zeros(0).__reduce__()[0].__module__.encode(), module)
    assert module in content
    np.testing.assert_array_equal(unpickled_arrays(io.BytesIO(content)), [0, 1, 2])
