"""The sources of Fashion-MNIST, in order, what takes its place, and the reader of IDX files."""

import builtins
import gzip
import struct
import sys

import keras
import numpy as np
import pytest

from keras_adaclip.datasets import load_fashion_mnist
from keras_adaclip.datasets.fashion_mnist import read_idx

NAMES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def write_idx(path, array, shape=None):
    shape = array.shape if shape is None else shape
    header = struct.pack(">HBB", 0, 8, len(shape)) + struct.pack(f">{len(shape)}I", *shape)
    with gzip.open(path, "wb") as file:
        file.write(header + array.astype("uint8").tobytes())


def images(size, seed):
    return np.random.default_rng(seed).integers(0, 256, (size, 28, 28)).astype("uint8")


def small_data():
    return (images(5, 0), np.arange(5) % 10), (images(3, 1), np.arange(3) % 10)


@pytest.fixture(autouse=True)
def without_other_copies(monkeypatch):
    """No folder of the user's, and no TensorFlow Datasets."""
    monkeypatch.delenv("KERAS_ADACLIP_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)


@pytest.fixture
def debian_folder(tmp_path):
    arrays = [array for pair in small_data() for array in pair]
    for name, array in zip(NAMES, arrays, strict=True):
        write_idx(tmp_path / f"{name}-ubyte.gz", array)
    return tmp_path


def test_an_idx_file_is_read_back(tmp_path):
    array = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    write_idx(tmp_path / "file.gz", array)
    found = read_idx(tmp_path / "file.gz")
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("content", [b"", b"\0\0", b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0"])
def test_other_files_are_refused(tmp_path, content):
    with gzip.open(tmp_path / "file.gz", "wb") as file:
        file.write(content)
    with pytest.raises(ValueError, match=r"file\.gz is not an IDX file of unsigned bytes"):
        read_idx(tmp_path / "file.gz")


def test_truncated_files_are_refused(tmp_path):
    write_idx(tmp_path / "short.gz", np.zeros(5), shape=(2, 3))
    with pytest.raises(ValueError, match=r"holds 5 bytes where its header says \(2, 3\)"):
        read_idx(tmp_path / "short.gz")
    with gzip.open(tmp_path / "header.gz", "wb") as file:
        file.write(b"\0\0\x08\x03\0\0")
    with pytest.raises(ValueError, match="ends within its header"):
        read_idx(tmp_path / "header.gz")
    write_idx(tmp_path / "cut.gz", images(3, 0))
    content = (tmp_path / "cut.gz").read_bytes()
    (tmp_path / "cut.gz").write_bytes(content[:-200])
    with pytest.raises(ValueError, match=r"cut\.gz is truncated"):
        read_idx(tmp_path / "cut.gz")


def assert_well_formed(data, num_train, num_test):
    assert data.x_train.shape == (num_train, 28, 28, 1)
    assert data.x_test.shape == (num_test, 28, 28, 1)
    assert data.x_train.dtype == np.float32
    assert data.y_train.dtype == np.int32
    assert 0.0 <= data.x_train.min() < data.x_train.max() <= 1.0
    assert len(data.y_train) == num_train
    assert set(np.unique(data.y_test)) <= set(range(10))


def test_keras_copy_comes_first(monkeypatch, debian_folder):
    monkeypatch.setattr(keras.datasets.fashion_mnist, "load_data", small_data)
    data = load_fashion_mnist(debian_folder)
    assert_well_formed(data, 5, 3)
    assert "Keras" in data.source
    np.testing.assert_allclose(data.x_train[..., 0], images(5, 0) / 255.0, rtol=1e-6)


def test_a_folder_of_the_users_comes_first(monkeypatch, debian_folder, tmp_path):
    monkeypatch.setattr(keras.datasets.fashion_mnist, "load_data", small_data)
    place = tmp_path / "mine" / "fashion-mnist"
    place.mkdir(parents=True)
    for path in debian_folder.glob("*.gz"):
        path.rename(place / path.name)
    monkeypatch.setenv("KERAS_ADACLIP_DATA", str(place.parent))
    data = load_fashion_mnist(debian_folder)
    assert "KERAS_ADACLIP_DATA" in data.source
    assert_well_formed(data, 5, 3)
    (place / "t10k-labels-idx1-ubyte.gz").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte\.gz is truncated"):
        load_fashion_mnist(debian_folder)


@pytest.mark.usefixtures("without_keras_copies")
def test_debians_files_come_second(debian_folder):
    data = load_fashion_mnist(debian_folder)
    assert_well_formed(data, 5, 3)
    assert str(debian_folder) in data.source
    assert "5 + 3 images" in data.source
    np.testing.assert_allclose(data.x_test[..., 0], images(3, 1) / 255.0, rtol=1e-6)


@pytest.mark.usefixtures("without_keras_copies")
def test_real_digits_come_last(tmp_path):
    pytest.importorskip("sklearn")
    data = load_fashion_mnist(tmp_path)
    assert_well_formed(data, 1500, 297)
    assert data.source.startswith("scikit-learn's digits")
    assert np.bincount(data.y_train).min() > 100


@pytest.mark.usefixtures("without_keras_copies")
def test_without_any_source(monkeypatch, tmp_path):
    real = builtins.__import__

    def without_sklearn(name, *args, **kwargs):
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_sklearn)
    for name in [name for name in sys.modules if name.startswith("sklearn")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"pip install keras-adaclip\[datasets\]"):
        load_fashion_mnist(tmp_path)
