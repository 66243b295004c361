"""The examples that train on texts run from end to end, and their loaders read published forms."""

import csv
import re
import runpy
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_adaclip as ka

FOLDER = Path(ka.__file__).parents[1] / "examples"
# PyTorch compiles nothing, so a few steps take the least time there.
if keras.backend.backend() != "torch":
    pytest.skip("once is enough", allow_module_level=True)

import data  # noqa: E402
from language_model import NUM_IDS, build_gpt, rows_of  # noqa: E402


@pytest.fixture
def printed_by(monkeypatch, capsys):
    """Runs a script and returns what it prints."""

    def run(name, *options):
        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_language_model(printed_by, tmp_path):
    pytest.importorskip("matplotlib")
    table, figure = tmp_path / "bits.csv", tmp_path / "bits.png"
    options = ("--epsilons", 3, "inf", "--csv", table, "--plot", figure, "--seed", 1)
    printed = printed_by("language_model", "--smoke", *options)
    with table.open() as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    private, plain = rows[:2], rows[2:]
    assert [row["epoch"] for row in rows] == [1, 2, 1, 2]
    assert 0.0 < private[0]["epsilon"] < private[1]["epsilon"] <= 3.0
    assert all(row["epsilon"] == row["target"] == np.inf for row in plain)
    # Fewer bits than if all characters were as likely.
    assert max(private[1]["bits"], plain[1]["bits"]) < np.log2(NUM_IDS) - 0.3
    assert f"epsilon 3: {private[1]['bits']:.3f} bits per held-out character" in printed
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_rows_hold_each_character_once_and_tell_none_of_what_comes():
    x, y = rows_of("To be\nü~", 5)
    assert x.tolist() == [[0, *y[0, :4]], [0, *y[1, :4]]]
    assert y[1, 3:].tolist() == [0, 0]
    # The end of a line is 1, a character outside of the alphabet a question mark.
    assert y[1, :3].tolist() == [1, 2 + ord("?") - 32, NUM_IDS - 1]
    model = build_gpt(NUM_IDS, 5, width=4)
    changed = np.array(x)
    changed[:, 3:] = 7
    before, after = (model.predict(each, verbose=0) for each in (x, changed))
    np.testing.assert_allclose(before[:, :3], after[:, :3], atol=1e-6)
    assert np.abs(before[:, 3:] - after[:, 3:]).max() > 1e-4


def test_finetuning_trains_lora_and_the_last_layer_alone(printed_by):
    printed = printed_by("finetune_text", "--smoke")
    trained = int(re.search(r"(\d+) of \d+ numbers", printed.replace(",", ""))[1])
    # Two factors for the embedding, for the queries and for the values, with the biases of these.
    attention = 2 * (8 * 2 * 4 + 4 * 4 + 8)
    assert trained == (4096 + 8) * 4 + attention + 8 * 2 + 2
    epsilon = re.search(
        r"\(epsilon = (\S+), delta = 1e-05\)-differential privacy after 32", printed
    )
    assert 2.7 < float(epsilon[1]) <= 3.0
    assert re.search(r"accuracy \d+\.\d\d% with privacy, \d+\.\d\d% without", printed)


def test_finetuning_takes_a_preset(printed_by, tmp_path):
    hub = pytest.importorskip("keras_hub").models
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "bad", "film", "good", "the"]
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 8}
    backbone = hub.BertBackbone(len(words), **sizes, max_sequence_length=16)
    tokenizer = hub.BertTokenizer(vocabulary=words)
    preprocessor = hub.BertTextClassifierPreprocessor(tokenizer, sequence_length=16)
    task = hub.BertTextClassifier(backbone, 2, preprocessor=preprocessor)
    task.save_to_preset(tmp_path / "preset")
    printed = printed_by("finetune_text", "--smoke", "--preset", tmp_path / "preset")
    assert "query" in printed
    assert "differential privacy after 32 steps" in printed


def test_reviews_and_texts_are_read_from_folders(tmp_path):
    for part in ("train", "test"):
        for name in ("pos", "neg"):
            folder = tmp_path / "aclImdb" / part / name
            folder.mkdir(parents=True)
            (folder / "0_9.txt").write_text(f"{part} {name} ü", encoding="utf-8")
    reviews = data.load_reviews(tmp_path)
    pairs = ((reviews.x_train, reviews.y_train), (reviews.x_test, reviews.y_test))
    for part, (x, y) in zip(("train", "test"), pairs, strict=True):
        assert dict(zip(x, y, strict=True)) == {f"{part} neg ü": 0, f"{part} pos ü": 1}
    (folder / "0_9.txt").rename(tmp_path / "a.txt")
    assert data.load_texts(tmp_path) == data.load_texts(tmp_path / "a.txt") == {"a": "test neg ü"}
    with pytest.raises(FileNotFoundError, match=r"no reviews.*neg"):
        data.load_reviews(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no \.txt files"):
        data.load_texts(folder)
