"""Adult: rows of the published format, and nothing computed from them."""

import urllib.request

import keras
import numpy as np
import pytest

from keras_adaclip.datasets import load_adult
from keras_adaclip.datasets.adult import CATEGORIES, NUMERIC

BACHELOR = (
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, "
    "Male, 2174, 0, 40, United-States, <=50K"
)
WIDOW = (
    "90, ?, 77053, HS-grad, 9, Widowed, ?, Not-in-family, White, Female, 0, 4356, 18, "
    "United-States, >50K"
)
RICH = (
    "25, Private, 226802, 11th, 7, Married-civ-spouse, Machine-op-inspct, Husband, Black, Male, "
    "99999, 0, 99, Holand-Netherlands, >50K."
)


def write(folder, train=(BACHELOR, WIDOW), test=(RICH,)):
    folder.mkdir(exist_ok=True)
    (folder / "adult.data").write_text("\n".join(train) + "\n\n")
    (folder / "adult.test").write_text("\n".join(("|1x3 Cross validator", *test)) + "\n\n")


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("KERAS_ADACLIP_DATA", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("place", [".", "adult"])
def test_rows(place, folder):
    write(folder / place)
    data = load_adult()
    assert data.y_train.tolist() == [0, 1]
    assert data.y_test.tolist() == [1]
    log = np.log(100_000)
    expected = [
        [-0.05, 1.125, np.log(2175) / log, 0.0, 0.0],
        [2.5, 0.125, 0.0, np.log(4357) / log, -1.1],
    ]
    np.testing.assert_allclose(data.numeric_train, expected, rtol=1e-6)
    np.testing.assert_allclose(data.numeric_test, [[-0.75, -0.375, 1.0, 0.0, 2.95]], rtol=1e-6)
    assert data.numeric == NUMERIC
    values = [
        [known[code] for known, code in zip(data.categories.values(), row, strict=True)]
        for row in data.categorical_train
    ]
    assert values == [
        BACHELOR.split(", ")[1:2] + BACHELOR.split(", ")[5:10] + ["United-States"],
        ["?", "Widowed", "?", "Not-in-family", "White", "Female", "United-States"],
    ]
    # The last of its list.
    assert data.categorical_test[0, -1] == len(CATEGORIES["native-country"]) - 1
    assert (data.numeric_train.dtype, data.categorical_train.dtype) == (np.float32, np.int32)
    assert "Adult, 2 + 1 rows" in data.source


def test_the_categories_are_those_of_the_description():
    sizes = {name: len(values) - 1 for name, values in CATEGORIES.items()}
    assert sizes == {
        "workclass": 8,
        "marital-status": 7,
        "occupation": 14,
        "relationship": 6,
        "race": 5,
        "sex": 2,
        "native-country": 41,
    }
    assert all(len(set(values)) == len(values) for values in CATEGORIES.values())


def test_a_row_is_the_same_whatever_the_others_are(folder):
    write(folder, train=(BACHELOR, WIDOW, RICH))
    among_others = load_adult()
    write(folder, train=(BACHELOR,))
    alone = load_adult()
    np.testing.assert_array_equal(alone.numeric_train, among_others.numeric_train[:1])
    np.testing.assert_array_equal(alone.categorical_train, among_others.categorical_train[:1])


@pytest.mark.parametrize(
    "row",
    [
        BACHELOR.replace("State-gov", "Pirate"),
        BACHELOR.replace("39,", "thirty-nine,"),
        BACHELOR + ", 1",
        BACHELOR.replace("<=50K", "little"),
    ],
)
def test_rows_that_were_not_published(row, folder):
    write(folder, train=(WIDOW, row))
    with pytest.raises(ValueError, match=r"adult\.data is not as it was published, row 2"):
        load_adult()


def test_no_rows(folder):
    write(folder, test=())
    with pytest.raises(ValueError, match=r"adult\.test holds no row"):
        load_adult()


def test_without_a_network(monkeypatch, tmp_path):
    def no_answer(request, timeout):
        raise TimeoutError("timed out")

    monkeypatch.setattr(urllib.request, "urlopen", no_answer)
    monkeypatch.delenv("KERAS_ADACLIP_DATA", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"archive\.ics\.uci\.edu does not answer"):
        load_adult()
    # What was downloaded once needs none.
    (tmp_path / "datasets").mkdir()
    write(tmp_path / "datasets" / "adult")
    assert "the UCI repository" in load_adult().source


def test_what_is_downloaded_must_be_what_was_published(monkeypatch, tmp_path):
    published = tmp_path / "published"
    write(published)
    monkeypatch.delenv("KERAS_ADACLIP_DATA", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("keras_adaclip.datasets.adult.require_answer", lambda address: None)
    asked = []

    def get_file(name, address, **named):
        asked.append((address, named["file_hash"], named["cache_subdir"]))
        return str(published / name)

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    assert len(load_adult().y_train) == 2
    assert [len(md5) for _, md5, _ in asked] == [32, 32]
    assert asked[1][0].endswith("/machine-learning-databases/adult/adult.test")
    assert asked[0][2] == "datasets/adult"
