"""The six tasks of Andrew et al. 2021: the scripts run, and what they read is what it should be."""

import csv
import hashlib
import importlib
import runpy
import shutil
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_adaclip as ka
import made_up
import text
import tff_files

FOLDER = Path(ka.__file__).parents[1] / "examples" / "federated"
TASKS = "emnist_autoencoder emnist_character shakespeare stackoverflow_next_word stackoverflow_tags"
SCRIPTS = {name: importlib.import_module(name) for name in ("cifar100", *TASKS.split())}

# PyTorch compiles nothing, so a few rounds take the least time there.
once = pytest.mark.skipif(keras.backend.backend() != "torch", reason="once is enough")


@once
@pytest.mark.parametrize("name", SCRIPTS)
def test_smoke(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--smoke", "--seed", "1"])
    runpy.run_path(FOLDER / f"{name}.py", run_name="__main__")
    printed = capsys.readouterr().out
    assert "12 clients, 4 a round" in printed
    assert f"round     2  {SCRIPTS[name].TASK.metric} 0." in printed
    assert "A unit is one client." in printed
    assert "nan" not in printed


@once
@pytest.mark.filterwarnings("ignore:.*not covered by epsilon")
def test_fashion_mnist_over_clients_and_its_report(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")

    def run(*arguments):
        command = ["fashion_mnist.py", "--output", str(tmp_path), *arguments]
        monkeypatch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(FOLDER / "fashion_mnist.py"), run_name="__main__")
        assert not ended.value.code
        return capsys.readouterr().out

    assert "[2/2]" in run("--smoke")
    with (tmp_path / "runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = [(each["kind"], each["value"]) for each in rows]
    assert found == [("quantile", "0.5"), ("fixed", "1.0")]
    assert all(0.2 < float(each["accuracy"]) < 0.9 for each in rows)
    assert {each["data"].partition(", ")[2] for each in rows} == {"60 clients"}
    assert (tmp_path / "tables.md").read_text().splitlines()[0].endswith(rows[0]["data"])
    for name in ("tables.md", "accuracy.png", "tracking.png"):
        assert (tmp_path / name).stat().st_size > 0
    # What is there is not made again.
    assert "[1/" not in run("--smoke")


WORDS = text.Vocabulary((b"the", b"cat", b"sat"))
PAD, THE, CAT, SAT, OTHER, BEGIN, END = range(7)


def test_next_words():
    x, y = text.next_word_examples([b"the cat sat", b"dog", b"the the cat sat"], WORDS, 4)
    assert x.tolist() == [[BEGIN, THE, CAT, SAT], [BEGIN, OTHER, END, PAD], [BEGIN, THE, THE, CAT]]
    # A sentence that fills the sequence has no end: no more of it was read.
    assert y.tolist() == [[THE, CAT, SAT, END], [OTHER, END, PAD, PAD], [THE, THE, CAT, SAT]]


def test_accuracy_of_tokens():
    y_true = np.array([[THE, CAT, END, PAD], [OTHER, SAT, THE, END]])
    right = np.array([[THE, SAT, END, PAD], [OTHER, SAT, SAT, END]])
    logits = np.eye(7, dtype="float32")[right]
    for ignored, expected in (((PAD,), 5 / 7), ((PAD, OTHER, END), 2 / 4), ((), 6 / 8)):
        metric = text.TokenAccuracy(ignored)
        metric.update_state(y_true, logits)
        assert float(metric.result()) == pytest.approx(expected)
    metric = text.TokenAccuracy((PAD,))
    metric.update_state(y_true, logits, sample_weight=np.array([1.0, 0.0]))
    assert float(metric.result()) == pytest.approx(2 / 3)


@pytest.fixture
def published(tmp_path):
    """An archive of made-up EMNIST, and the folder that it is published in."""
    source = tmp_path / "source"
    source.mkdir()
    made_up.emnist(source)
    shutil.make_archive(tmp_path / "published" / "fed_emnist", "bztar", source)
    archive = tmp_path / "published" / "fed_emnist.tar.bz2"
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    return tff_files.Archive(archive.name, sha256, archive.parent.as_uri())


def test_files_are_found_or_downloaded(published, tmp_path):
    names = {"fed_emnist_train.h5": published, "fed_emnist_test.h5": published}
    folder = tmp_path / "data"
    paths = tff_files.find_files(names, folder)
    assert [path.name for path in paths] == list(names)
    clients = ka.federated.ClientData.from_hdf5(paths[0], "pixels", "label")
    assert len(clients) == 12
    # They are there now: nothing is downloaded again.
    nowhere = tff_files.Archive(published.name, published.sha256, "file:///nowhere")
    assert tff_files.find_files(dict.fromkeys(names, nowhere), folder) == paths
    other_hash = tff_files.Archive(published.name, "0" * 64, published.published_at)
    for archive, reason in ((nowhere, "nowhere"), (other_hash, "sha256")):
        message = rf"fed_emnist_test\.h5.*{reason}.*--data FOLDER"
        with pytest.raises(FileNotFoundError, match=message):
            tff_files.find_files({"fed_emnist_test.h5": archive}, tmp_path / "empty")
