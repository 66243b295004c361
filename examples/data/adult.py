"""Adult: 48,842 rows of the census of 1994 (Becker and Kohavi 1996).

Nothing here is computed from the rows, because epsilon does not cover what is computed from the
data before `fit`. The categories are those of the published description (`adult.names`), and the
constants that scale the numbers follow from the possible values of a column.
"""

import csv
from pathlib import Path

import keras
import numpy as np

from .download import cached_or_downloaded
from .labelled_data import LabelledData

_PUBLISHED_AT = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult"
_MD5 = {
    "adult.data": "5d7c39d7b8804f071cdd1f2a7c460872",
    "adult.test": "35238206dfdf7f1fe215bbb874adecdc",
}
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
ADULT_NUMBERS = ("age", "education-num", "capital-gain", "capital-loss", "hours-per-week")
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
ADULT_CATEGORIES = {name: (_MISSING, *values.split(", ")) for name, values in _VALUES.items()}


def load_adult() -> LabelledData:
    """Adult: 32,561 + 16,281 rows, class 1 for an income above 50,000 dollars.

    The inputs are a dictionary: `numbers`, float32 of shape `(num_rows, 5)`, and `categories`,
    int32 of shape `(num_rows, 7)`, the place of each value in its list of `ADULT_CATEGORIES`. A
    missing value (`?`) is a category of its own. Two columns are left out: `fnlwgt`, a weight of
    the survey, and `education`, which says the same as `education-num`.

    The numbers are scaled by constants:

    | column | number |
    | --- | --- |
    | age, hours per week | (value - 40) / 20, of values up to 99 |
    | education-num | (value - 8.5) / 4: the codes go from 1 to 16 |
    | capital gain, loss | log(1 + value) / log(100,000): five digits |

    Raises:
        FileNotFoundError: if a file is not in Keras's cache and cannot be downloaded.
        ValueError: if a file has rows of another format.
    """
    parts = []
    for name, md5 in _MD5.items():
        address = f"{_PUBLISHED_AT}/{name}"

        def load(name: str = name, address: str = address, md5: str = md5) -> str:
            return keras.utils.get_file(name, address, file_hash=md5, cache_subdir="datasets/adult")

        parts += _read(Path(cached_or_downloaded("Adult", f"adult/{name}", address, load)))
    x_train, y_train, x_test, y_test = parts
    source = f"Adult, {len(y_train):,} + {len(y_test):,} rows (UCI repository)"
    return LabelledData(x_train, y_train, x_test, y_test, source)


def _read(path: Path) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs and labels of a file."""
    numbers, categories, labels = [], [], []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.reader(file, skipinitialspace=True):
            # The test file begins with a remark.
            if not row or row[0].startswith("|"):
                continue
            try:
                values = dict(zip(_COLUMNS, row, strict=True))
                numbers.append([float(values[name]) for name in ADULT_NUMBERS])
                categories.append(
                    [known.index(values[name]) for name, known in ADULT_CATEGORIES.items()]
                )
                # In the test file the labels end with a full stop.
                labels.append(_INCOMES.index(values["income"].rstrip(".")))
            except ValueError as error:
                raise ValueError(
                    f"{path} has a row of another format, number {len(labels) + 1}: {row} ({error})"
                ) from error
    inputs = {"numbers": _scaled(numbers), "categories": np.asarray(categories, np.int32)}
    return inputs, np.asarray(labels, np.int32)


def _scaled(numbers: list[list[float]]) -> np.ndarray:
    """The numeric columns, scaled by fixed constants: float32 of shape `(num_rows, 5)`."""
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
