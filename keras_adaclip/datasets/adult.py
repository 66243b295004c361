"""Adult: what 48,842 people said to the census of 1994 (Becker and Kohavi 1996).

Nothing here is computed from the rows. The categories are those of the published description
(`adult.names`), and the constants that scale the numbers come from what a column can hold: what is
done to the data before `fit` is not covered by epsilon, so means, deviations and vocabularies of
private rows would be given away beside the model.
"""

import csv
import os
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np

from keras_adaclip.datasets.sources import (
    Source,
    UnavailableError,
    first_available,
    local_source,
    require_answer,
)
from keras_adaclip.datasets.table_data import TableData

_FILES = "`adult.data` and `adult.test`, as the UCI repository publishes them,"
_NAMES = ("adult.data", "adult.test")
_PUBLISHED_AT = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
_MD5 = ("5d7c39d7b8804f071cdd1f2a7c460872", "35238206dfdf7f1fe215bbb874adecdc")
_COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)
_INCOMES = ("<=50K", ">50K")
_MISSING = "?"
NUMERIC = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
_VALUES = {
    "workclass": "Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, "
    "Without-pay, Never-worked",
    "marital-status": "Married-civ-spouse, Divorced, Never-married, Separated, Widowed, "
    "Married-spouse-absent, Married-AF-spouse",
    "occupation": "Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, "
    "Prof-specialty, Handlers-cleaners, Machine-op-inspct, Adm-clerical, Farming-fishing, "
    "Transport-moving, Priv-house-serv, Protective-serv, Armed-Forces",
    "relationship": "Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried",
    "race": "White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black",
    "sex": "Female, Male",
    "native-country": "United-States, Cambodia, England, Puerto-Rico, Canada, Germany, "
    "Outlying-US(Guam-USVI-etc), India, Japan, Greece, South, China, Cuba, Iran, Honduras, "
    "Philippines, Italy, Poland, Jamaica, Vietnam, Mexico, Portugal, Ireland, France, "
    "Dominican-Republic, Laos, Ecuador, Taiwan, Haiti, Columbia, Hungary, Guatemala, Nicaragua, "
    "Scotland, Thailand, Yugoslavia, El-Salvador, Trinadad&Tobago, Peru, Hong, "
    "Holand-Netherlands",
}
CATEGORIES = {name: (_MISSING, *values.split(", ")) for name, values in _VALUES.items()}


def load_adult() -> TableData:
    """Adult: 32,561 training and 16,281 test rows, class 1 for an income above 50,000 dollars.

    Two columns are left out: `fnlwgt`, a weight of the survey, and `education`, which
    `education-num` tells as well. A missing value (`?`) is a category of its own. About 76% of the
    rows are of class 0.

    **Nothing is computed from the rows**, which epsilon would not cover: the categories are those
    of the published description, and the numbers are scaled by constants.

    | column | number |
    | --- | --- |
    | age, hours per week | (value - 40) / 20, of values up to 99, the largest of two digits |
    | education-num | (value - 8.5) / 4: the questionnaire's codes go from 1 to 16 |
    | capital gain, loss | log(1 + value) / log(100,000): five digits |

    Looked for in this order:

    1. in the folder that the environment variable `KERAS_ADACLIP_DATA` names: `adult.data` and
       `adult.test`, there or in `adult/`;
    2. in Keras's cache, into which they are downloaded once from the UCI repository
       (<https://archive.ics.uci.edu/dataset/2/adult>). Keras and TensorFlow Datasets have no copy.

    Raises:
        FileNotFoundError: where none has it; the message says what each answered.
        ValueError: where a file is not as it was published.
    """
    paths, origin = first_available(
        "Adult",
        (local_source(_find, _FILES), Source("the UCI repository", _download)),
        _FILES,
    )
    train, test = map(_read, paths)
    return TableData(
        *train,
        *test,
        NUMERIC,
        CATEGORIES,
        f"Adult, {len(train[-1]):,} + {len(test[-1]):,} rows ({origin})",
    )


def _find(folder: Path) -> list[Path] | None:
    for place in (folder, folder / "adult"):
        paths = [place / name for name in _NAMES]
        if all(path.is_file() for path in paths):
            return paths
    return None


def _download() -> list[Path]:
    home = Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser()
    found = _find(home / "datasets")
    if found is not None:
        return found
    require_answer(f"{_PUBLISHED_AT}/{_NAMES[0]}")
    try:
        return [
            Path(
                keras.utils.get_file(
                    name, f"{_PUBLISHED_AT}/{name}", file_hash=md5, cache_subdir="datasets/adult"
                )
            )
            for name, md5 in zip(_NAMES, _MD5, strict=True)
        ]
    # Keras raises a bare `Exception` where a download fails.
    except Exception as error:
        raise UnavailableError(f"{type(error).__name__}: {error}") from error


def _read(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers, categories and labels of a file."""
    numbers, categories, labels = [], [], []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.reader(file, skipinitialspace=True):
            # The test file begins with a remark.
            if not row or row[0].startswith("|"):
                continue
            try:
                values = dict(zip(_COLUMNS, row, strict=True))
                numbers.append([float(values[name]) for name in NUMERIC])
                categories.append([known.index(values[name]) for name, known in CATEGORIES.items()])
                # In the test file the labels end with a full stop.
                labels.append(_INCOMES.index(values["income"].rstrip(".")))
            except ValueError as error:
                raise ValueError(
                    f"{path} is not as it was published, row {len(labels) + 1}: {row} ({error})"
                ) from error
    if not labels:
        raise ValueError(f"{path} holds no row.")
    return scaled(numbers), np.asarray(categories, np.int32), np.asarray(labels, np.int32)


def scaled(numbers: Sequence[Sequence[float]]) -> np.ndarray:
    """The numeric columns by fixed constants, float32 of shape `(num_rows, 5)`.

    Args:
        numbers: rows in the order of `NUMERIC`.
    """
    values = np.asarray(numbers, np.float64).clip(0.0, 99_999.0)
    age, education, gain, loss, hours = values.T
    columns = (
        (age.clip(max=99.0) - 40.0) / 20.0,
        (education - 8.5) / 4.0,
        np.log1p(gain) / np.log(100_000.0),
        np.log1p(loss) / np.log(100_000.0),
        (hours.clip(max=99.0) - 40.0) / 20.0,
    )
    return np.stack(columns, axis=1).astype(np.float32)
