"""The loaders of the examples, on small files of the published formats, and made-up data."""

import gzip
import shutil
import struct

import numpy as np
import pytest

import data
from data import adult, download

RNG = np.random.default_rng(0)
IDX_FILES = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Keras's folder of data sets, empty."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    # Keras reads the variable when it is imported.
    monkeypatch.setattr("keras.src.backend.config._KERAS_DIR", str(tmp_path / "keras"))
    folder = tmp_path / "keras" / "datasets"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def no_network(monkeypatch):
    def no_answer(address, seconds=None):
        raise TimeoutError("no answer")

    monkeypatch.setattr(download, "require_answer", no_answer)


def write_fashion_mnist(folder):
    """Five images to train on and three to test on, and their arrays."""
    x = RNG.integers(0, 256, (8, 28, 28)).astype(np.uint8)
    arrays = x[:5], np.arange(5), x[5:], np.arange(3)
    folder.mkdir()
    for name, array in zip(IDX_FILES, arrays, strict=True):
        sizes = struct.pack(f">{array.ndim}I", *array.shape)
        content = b"\0\0\x08" + bytes([array.ndim]) + sizes + array.astype(np.uint8).tobytes()
        (folder / f"{name}-ubyte.gz").write_bytes(gzip.compress(content))
    return arrays


def assert_images(found, arrays):
    x_train, y_train, x_test, y_test = arrays
    np.testing.assert_allclose(found.x_train[..., 0], x_train / 255.0, rtol=1e-6)
    np.testing.assert_allclose(found.x_test[..., 0], x_test / 255.0, rtol=1e-6)
    np.testing.assert_array_equal(found.y_train, y_train)
    np.testing.assert_array_equal(found.y_test, y_test)
    assert (found.x_train.dtype, found.y_train.dtype) == (np.float32, np.int32)


@pytest.mark.usefixtures("no_network")
def test_fashion_mnist_from_keras_then_debian_then_digits(cache, tmp_path):
    keras_arrays = write_fashion_mnist(cache / "fashion-mnist")
    debian_arrays = write_fashion_mnist(tmp_path / "debian")
    assert_images(data.load_fashion_mnist(tmp_path / "debian"), keras_arrays)
    shutil.rmtree(cache / "fashion-mnist")
    assert_images(data.load_fashion_mnist(tmp_path / "debian"), debian_arrays)
    pytest.importorskip("sklearn")
    found = data.load_fashion_mnist(tmp_path / "nowhere")
    assert found.source.startswith("scikit-learn's digits, 1,500 + 297 images (Fashion-MNIST could")
    assert found.name == "scikit-learn's digits"
    assert found.first(9, 4).source == f"{found.source}, the first 9 + 4"
    assert found.x_train.shape == (1500, 28, 28, 1)


@pytest.mark.usefixtures("cache", "no_network")
@pytest.mark.parametrize(
    ("load", "file"), [(data.load_mnist, "mnist.npz"), (data.load_adult, "adult/adult.data")]
)
def test_without_a_network_the_error_names_the_file(load, file):
    with pytest.raises(FileNotFoundError, match=rf"no answer.*https://.*keras/datasets/{file}"):
        load()


BACHELOR = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, United-States, <=50K"
)
WIDOW = (
    "90, ?, 77053, HS-grad, 9, Widowed, ?, Not-in-family, White, Female, 0, 4356, 18, "
    "United-States, >50K"
)


def test_adult_is_scaled_by_constants_alone(cache, monkeypatch):
    monkeypatch.setattr(adult, "_MD5", {"adult.data": None, "adult.test": None})
    (cache / "adult").mkdir()
    (cache / "adult" / "adult.test").write_text(f"|1x3 Cross validator\n{WIDOW}.\n\n")
    loaded = []
    for rows in ((BACHELOR, WIDOW), (BACHELOR,)):
        (cache / "adult" / "adult.data").write_text("\n".join(rows) + "\n\n")
        loaded.append(data.load_adult())
    both, one = loaded
    assert (both.y_train.tolist(), both.y_test.tolist()) == ([0, 1], [1])
    log = np.log(100_000)
    expected = [
        [-0.05, 1.125, np.log(2175) / log, 0.0, 0.0],
        [2.5, 0.125, 0.0, np.log(4357) / log, -1.1],
    ]
    np.testing.assert_allclose(both.x_train["numbers"], expected, rtol=1e-6)
    codes = zip(data.ADULT_CATEGORIES.values(), both.x_train["categories"][1], strict=True)
    values = ["?", "Widowed", "?", "Not-in-family", "White", "Female", "United-States"]
    assert [known[code] for known, code in codes] == values
    # Nothing is computed from the other rows.
    for name, values in one.x_train.items():
        np.testing.assert_array_equal(values, both.x_train[name][:1])
