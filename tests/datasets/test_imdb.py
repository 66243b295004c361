"""IMDB: token ids from Keras's file, from texts and from tfds's mock."""

import keras
import numpy as np
import pytest

from keras_adaclip.datasets import load_imdb
from keras_adaclip.datasets.imdb import hashed_words


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_ADACLIP_DATA", str(tmp_path))
    return tmp_path


def ragged(*sequences):
    values = np.empty(len(sequences), object)
    values[:] = sequences
    return values


def write_npz(folder):
    np.savez(
        folder / "imdb.npz",
        x_train=ragged([1, 5, 2], [9, 8, 7, 3, 4, 1]),
        y_train=np.array([1, 0]),
        x_test=ragged([2]),
        y_test=np.array([1]),
    )


def test_ranks_as_keras_publishes_them(folder):
    write_npz(folder)
    data = load_imdb(num_tokens=10, length=5)
    # 1 begins a text, ranks count from 3, and 2 stands for ranks of 7 and more. The last ids stay.
    assert data.x_train.tolist() == [[1, 4, 8, 5, 0], [2, 2, 6, 7, 4]]
    assert data.x_test.tolist() == [[1, 5, 0, 0, 0]]
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([1, 0], [1])
    assert data.x_train.dtype == data.y_train.dtype == np.int32
    assert data.num_tokens == 10
    assert "frequency in the reviews themselves" in data.source


def test_they_are_as_kerass_own_loader_gives_them(folder, monkeypatch):
    write_npz(folder)
    ours = load_imdb(num_tokens=10, length=5)
    monkeypatch.delenv("KERAS_ADACLIP_DATA")
    # The module of `load_data` finds its file by `get_file`.
    module = keras.datasets.imdb.load_data.__globals__
    monkeypatch.setitem(module, "get_file", lambda *names, **named: str(folder / "imdb.npz"))
    theirs = load_imdb(num_tokens=10, length=5)
    assert "Keras's copy" in theirs.source
    # Keras shuffles.
    assert sorted(theirs.x_train.tolist()) == sorted(ours.x_train.tolist())
    assert theirs.x_test.tolist() == ours.x_test.tolist()


def test_texts(folder):
    for split in ("train", "test"):
        for name, text in (("neg", "Awful!"), ("pos", "Good.<br /><br />Don't miss it")):
            place = folder / "aclImdb" / split / name
            place.mkdir(parents=True)
            (place / "0_1.txt").write_text(text, encoding="utf-8")
    data = load_imdb(num_tokens=50, length=6)
    awful, good, dont, miss, it = hashed_words("awful good don't miss it", 50)[1:]
    assert data.x_train.tolist() == [[1, awful, 0, 0, 0, 0], [1, good, dont, miss, it, 0]]
    np.testing.assert_array_equal(data.x_test, data.x_train)
    assert data.y_train.tolist() == [0, 1]
    assert "hashes" in data.source
    (folder / "aclImdb" / "test" / "pos" / "0_1.txt").unlink()
    with pytest.raises(ValueError, match="holds no reviews"):
        load_imdb()


def test_hashes_know_no_other_text():
    # The CRC-32 of "good" is 1,820,610,194, whatever else was read.
    assert hashed_words("good", 1_000) == [1, 3 + 1_820_610_194 % 997]
    ids = hashed_words(" ".join(f"word{n}" for n in range(5_000)), 100)
    assert set(ids[1:]) == set(range(3, 100))


def test_tensorflow_datasets(mocked_tfds):
    data = load_imdb(num_tokens=100, length=8)
    assert data.x_train.shape == data.x_test.shape == (4, 8)
    assert (data.x_train[:, 0] == 1).all()
    assert set(data.y_train) <= {0, 1}
    assert 3 <= data.x_train.max() < 100
    assert "TensorFlow Datasets; ids are hashes" in data.source
    assert len(mocked_tfds) == 1


@pytest.mark.parametrize("arguments", [{"num_tokens": 3}, {"length": 0}])
def test_arguments(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"Received: {name}={value}"):
        load_imdb(**arguments)
