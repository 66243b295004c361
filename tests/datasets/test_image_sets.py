"""The image sets from small files in the published formats, and from tfds's mock."""

import pickle
import sys

import keras
import numpy as np
import pytest

from keras_adaclip.datasets import (
    load_cifar10,
    load_fashion_mnist,
    load_imagenette,
    load_mnist,
    sources,
)
from keras_adaclip.datasets.files import IDX_FILES
from keras_adaclip.datasets.imagenette import CLASSES
from keras_adaclip.datasets.sources import UnavailableError

RNG = np.random.default_rng(0)


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_ADACLIP_DATA", str(tmp_path))
    return tmp_path


def write_idx(path, array):
    header = b"\0\0\x08" + bytes([array.ndim]) + np.array(array.shape, ">u4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def pixels(*shape):
    return RNG.integers(0, 256, shape).astype(np.uint8)


def small_mnist():
    return pixels(5, 28, 28), np.arange(5, dtype=np.uint8), pixels(3, 28, 28), np.arange(3)


def assert_is(data, parts, name):
    x_train, y_train, x_test, y_test = parts
    np.testing.assert_array_equal(data.y_train, y_train)
    np.testing.assert_array_equal(data.y_test, y_test)
    assert (data.y_train.dtype, data.x_train.dtype) == (np.int32, np.float32)
    for found, expected in ((data.x_train, x_train), (data.x_test, x_test)):
        assert found.shape == (*expected.shape[:3], found.shape[-1])
        np.testing.assert_allclose(found.reshape(expected.shape), expected / 255.0, rtol=1e-6)
    assert data.source.startswith(f"{name}, {len(x_train)} + {len(x_test)} images")
    assert "KERAS_ADACLIP_DATA" in data.source


# ---- local files ------------------------------------------------------------------------------


def test_mnist_as_keras_publishes_it(folder):
    parts = small_mnist()
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez(folder / "mnist.npz", **dict(zip(names, parts, strict=True)))
    assert_is(load_mnist(), parts, "MNIST")


@pytest.mark.parametrize(
    ("load", "name", "place"),
    [
        (load_mnist, "MNIST", "mnist"),
        (load_mnist, "MNIST", "MNIST/raw"),
        (load_fashion_mnist, "Fashion-MNIST", "fashion-mnist"),
        (load_fashion_mnist, "Fashion-MNIST", "FashionMNIST/raw"),
    ],
)
def test_idx_files(load, name, place, folder):
    parts = small_mnist()
    (folder / place).mkdir(parents=True)
    for file_name, array in zip(IDX_FILES, parts, strict=True):
        write_idx(folder / place / file_name, array)
    assert_is(load(), parts, name)


@pytest.mark.usefixtures("without_keras_copies")
def test_files_without_a_folder_of_their_own_are_nobodys(folder, monkeypatch):
    # MNIST's and Fashion-MNIST's have the same names.
    for file_name, array in zip(IDX_FILES, small_mnist(), strict=True):
        write_idx(folder / file_name, array)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(FileNotFoundError, match=r"has no `mnist\.npz`"):
        load_mnist()


def test_numbers_of_images_and_labels_must_agree(folder):
    x_train, y_train, x_test, y_test = small_mnist()
    np.savez(
        folder / "mnist.npz", x_train=x_train, y_train=y_train[:4], x_test=x_test, y_test=y_test
    )
    with pytest.raises(ValueError, match="has 5 images and 4 labels"):
        load_mnist()


def small_cifar10(folder, write):
    images, labels = [], []
    for number, name in enumerate((*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")):
        rows = pixels(2, 32, 32, 3)
        images.append(rows)
        labels.append(np.array([number, 9 - number]))
        write(folder / name, rows.transpose(0, 3, 1, 2).reshape(2, -1), labels[-1])
    return np.concatenate(images[:5]), np.concatenate(labels[:5]), images[5], labels[5]


def write_python(path, rows, labels):
    path.write_bytes(pickle.dumps({b"data": rows, b"labels": labels.tolist()}, protocol=3))


def write_binary(path, rows, labels):
    content = np.concatenate([labels[:, None], rows], axis=1).astype(np.uint8)
    path.with_suffix(".bin").write_bytes(content.tobytes())


@pytest.mark.parametrize(
    ("name", "write"),
    [("cifar-10-batches-py", write_python), ("cifar-10-batches-bin", write_binary)],
)
def test_cifar10(name, write, folder):
    (folder / name).mkdir()
    parts = small_cifar10(folder / name, write)
    assert_is(load_cifar10(), parts, "CIFAR-10")


def test_cifar10_that_is_broken(folder):
    place = folder / "cifar-10-batches-bin"
    place.mkdir()
    small_cifar10(place, write_binary)
    (place / "data_batch_3.bin").write_bytes(b"\0" * 100)
    with pytest.raises(ValueError, match=r"data_batch_3\.bin holds 100 bytes"):
        load_cifar10()
    place = folder / "cifar-10-batches-py"
    place.mkdir()
    small_cifar10(place, write_python)
    (place / "data_batch_2").write_bytes(pickle.dumps({b"data": None}))
    with pytest.raises(ValueError, match="data_batch_2 is not as it was published"):
        load_cifar10()


def test_colours_come_last(monkeypatch):
    monkeypatch.delenv("KERAS_ADACLIP_DATA", raising=False)
    images = pixels(2, 32, 32, 3)
    first = images.transpose(0, 3, 1, 2)
    labels = np.array([[1], [2]])
    for shown in (images, first):
        answer = ((shown, labels), (shown, labels))
        monkeypatch.setattr(keras.datasets.cifar10, "load_data", lambda answer=answer: answer)
        data = load_cifar10()
        np.testing.assert_allclose(data.x_test, images / 255.0, rtol=1e-6)
        assert data.y_test.tolist() == [1, 2]


def write_imagenette(folder, classes=CLASSES):
    image_module = pytest.importorskip("PIL.Image")
    for split in ("train", "val"):
        for label, name in enumerate(classes):
            place = folder / split / name
            place.mkdir(parents=True)
            # A dark frame left and right of a square in the middle, 20 by 10 pixels.
            image = np.zeros((10, 20, 3), np.uint8)
            image[:, 5:15] = 20 * label + 50
            image_module.fromarray(image).save(place / f"{split}.JPEG", quality=100)


def test_imagenette(folder):
    write_imagenette(folder / "imagenette2-160")
    data = load_imagenette(image_size=8)
    assert data.x_train.shape == data.x_test.shape == (10, 8, 8, 3)
    assert data.x_train.dtype == np.uint8
    assert data.y_train.tolist() == list(range(10))
    # Of each image the square in the middle.
    middles = data.x_train[:, 2:6, 2:6].mean((1, 2, 3))
    np.testing.assert_allclose(middles, 20 * np.arange(10) + 50, atol=3)
    assert data.x_train.min() > 30
    assert "Imagenette, 10 + 10 images" in data.source


def test_imagenette_that_misses_a_class(folder):
    write_imagenette(folder / "imagenette2", CLASSES[:-1])
    with pytest.raises(ValueError, match=rf"train has no images \(\*\.JPEG\) of {CLASSES[-1]}"):
        load_imagenette()
    with pytest.raises(ValueError, match="image_size=0"):
        load_imagenette(0)


# ---- TensorFlow Datasets ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("load", "shape", "dtype", "host"),
    [
        (load_mnist, (28, 28, 1), np.float32, "storage.googleapis.com"),
        (load_cifar10, (32, 32, 3), np.float32, "www.cs.toronto.edu"),
        (load_imagenette, (160, 160, 3), np.uint8, "s3.amazonaws.com"),
    ],
)
def test_tensorflow_datasets(load, shape, dtype, host, mocked_tfds):
    data = load()
    assert data.x_train.shape == data.x_test.shape == (4, *shape)
    assert data.x_train.dtype == dtype
    assert data.y_train.dtype == np.int32
    assert set(data.y_train) <= set(range(10))
    # The mock draws bytes below 255.
    largest = data.x_train.max() * (255 if dtype == np.float32 else 1)
    assert 240 < largest <= 255
    assert "TensorFlow Datasets" in data.source
    assert [address.split("/")[2] for address in mocked_tfds] == [host]


@pytest.mark.usefixtures("without_keras_copies")
def test_tensorflow_datasets_is_not_waited_for(monkeypatch, tmp_path):
    pytest.importorskip("tensorflow_datasets")
    monkeypatch.delenv("KERAS_ADACLIP_DATA", raising=False)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))

    def no_answer(address):
        raise UnavailableError(f"{address} is silent")

    monkeypatch.setattr(sources, "require_answer", no_answer)
    with pytest.raises(FileNotFoundError, match=r"TensorFlow Datasets: https://.* is silent"):
        load_mnist()
    # Fashion-MNIST downloads nothing by it: there are digits to go on with.
    source = sources.tfds_source("fashion_mnist", lambda rows: rows, published_at=None)
    with pytest.raises(UnavailableError, match="has not been prepared"):
        source.load()
