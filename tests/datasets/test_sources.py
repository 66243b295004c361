"""One source after another, what is said where none has the data, and no endless wait."""

import socket
import sys
import urllib.error
import urllib.request

import keras
import pytest

from keras_adaclip.datasets import load_cifar10, load_imagenette, load_imdb, load_mnist, sources
from keras_adaclip.datasets.sources import Source, UnavailableError, first_available

LOADERS = {
    "MNIST": (load_mnist, "mnist"),
    "CIFAR-10": (load_cifar10, "cifar10"),
    "Imagenette": (load_imagenette, None),
    "IMDB": (load_imdb, "imdb"),
}


def fail(error):
    def load(*arguments, **named):
        raise error

    return load


def test_the_first_that_has_it_wins():
    asked = []

    def source(name, value):
        def load():
            asked.append(name)
            if value is None:
                raise UnavailableError("nothing here")
            return value

        return Source(name, load)

    found = first_available("X", [source("a", None), source("b", 1), source("c", 2)], "files")
    assert found == (1, "b")
    assert asked == ["a", "b"]


def test_what_each_answered_is_told():
    empty = [
        Source("one place", fail(UnavailableError("it rained"))),
        Source("another", fail(UnavailableError("it snowed"))),
    ]
    with pytest.raises(FileNotFoundError) as caught:
        first_available("X-MNIST", empty, "`x.npz`")
    message = str(caught.value)
    assert message.startswith("X-MNIST is not available here")
    assert message.index("1. one place: it rained") < message.index("2. another: it snowed")
    assert "Put `x.npz` into a folder" in message
    assert "KERAS_ADACLIP_DATA" in message


def test_a_broken_file_is_not_passed_over():
    broken = Source("here", fail(ValueError("truncated")))
    with pytest.raises(ValueError, match="truncated"):
        first_available("X", [broken, Source("there", lambda: 1)], "files")


def test_the_local_folder(monkeypatch, tmp_path):
    def answer(read):
        return sources.local_source(read, "file x").load()

    monkeypatch.delenv("KERAS_ADACLIP_DATA", raising=False)
    with pytest.raises(UnavailableError, match="is not set"):
        answer(lambda folder: 1)
    monkeypatch.setenv("KERAS_ADACLIP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UnavailableError, match=r"nowhere.*is no folder"):
        answer(lambda folder: 1)
    monkeypatch.setenv("KERAS_ADACLIP_DATA", str(tmp_path))
    with pytest.raises(UnavailableError, match="has no file x"):
        answer(lambda folder: None)
    assert answer(lambda folder: folder) == tmp_path


@pytest.mark.usefixtures("without_keras_copies")
@pytest.mark.parametrize("name", LOADERS)
def test_without_any_source(name, monkeypatch, tmp_path):
    load, _ = LOADERS[name]
    monkeypatch.setenv("KERAS_ADACLIP_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(FileNotFoundError) as caught:
        load()
    message = str(caught.value)
    assert f"{name} is not available here" in message
    assert f"1. the folder of KERAS_ADACLIP_DATA: {tmp_path} has no " in message
    assert ("URL fetch failure" in message) == (name != "Imagenette")
    assert "TensorFlow Datasets: tensorflow-datasets is not installed: pip install" in message


@pytest.mark.parametrize("name", ["MNIST", "CIFAR-10", "IMDB"])
def test_keras_copy_comes_before_tensorflow_datasets(name, monkeypatch):
    load, module = LOADERS[name]
    monkeypatch.delenv("KERAS_ADACLIP_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    x = [[1, 2]] if name == "IMDB" else keras.ops.zeros((1, 2, 2), dtype="uint8").__array__()
    asked = []

    def load_data(**named):
        asked.append(named)
        return (x, [0]), (x, [1])

    monkeypatch.setattr(getattr(keras.datasets, module), "load_data", load_data)
    data = load()
    assert "Keras's copy" in data.source
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([0], [1])
    assert asked == [
        {"num_words": 10_000, "start_char": 1, "oov_char": 2, "index_from": 3}
        if name == "IMDB"
        else {}
    ]


def test_the_time_limit_is_undone():
    before = socket.getdefaulttimeout()
    during = []
    source = sources.keras_source(lambda: during.append(socket.getdefaulttimeout()))
    source.load()
    assert during == [20.0]
    with pytest.raises(UnavailableError, match="Exception: none"):
        sources.keras_source(fail(Exception("none"))).load()
    assert socket.getdefaulttimeout() == before


def test_servers_that_answer_and_servers_that_do_not(monkeypatch):
    address = "https://example.org/file"
    refused = urllib.error.HTTPError(address, 403, "forbidden", None, None)
    monkeypatch.setattr(urllib.request, "urlopen", fail(refused))
    sources.require_answer(address)  # It is there.
    for error in (TimeoutError("timed out"), urllib.error.URLError("no such host")):
        monkeypatch.setattr(urllib.request, "urlopen", fail(error))
        with pytest.raises(UnavailableError, match=r"example\.org does not answer"):
            sources.require_answer(address)


def test_the_wait_for_an_answer_is_bounded():
    with socket.socket() as silent:  # It listens, and never says a word.
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1 does not answer \(timed out"):
            sources.require_answer(address, seconds=0.05)
