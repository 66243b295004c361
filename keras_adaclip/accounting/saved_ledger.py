"""The ledger in the file of a saved private model, read without building the model."""

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from keras_adaclip.accounting.ledger import Ledger

# The names of the ledger among the variables of a private model.
LEDGER_KEYS = (
    "privacy_ledger_rows",
    "privacy_ledger_noise",
    "privacy_ledger_identity",
    "privacy_ledger_included",
)
_WEIGHTS_IN_ARCHIVE = "model.weights.h5"
_OWN_VARIABLES = "vars"
_MOST_NUMBERS = 1 << 20


def read_ledger(path: str | Path) -> Ledger:
    """The ledger of a saved private model. No layer is built, and no code of the model runs.

    Args:
        path: A `.keras` file, or a `.weights.h5` file.

    Returns:
        The ledger at the time when the file was written.

    Raises:
        OSError: If there is no such file, or it cannot be read.
        ValueError: If the file is of another kind, or holds no ledger or an impossible one.
    """
    path = Path(path)
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                weights = io.BytesIO(archive.read(_WEIGHTS_IN_ARCHIVE))
        else:
            weights = io.BytesIO(path.read_bytes())
        with h5py.File(weights, "r") as file:
            rows, noise_multipliers = (_values(file, key) for key in LEDGER_KEYS[:2])
    except KeyError as error:
        raise ValueError(
            f"There is no privacy ledger in {str(path)!r}. A private model of this package that is "
            "saved as `.keras` or `.weights.h5` keeps one."
        ) from error
    # `zipfile` raises these for damaged, encrypted and oddly compressed files.
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        if not path.is_file():
            raise
        raise ValueError(
            f"Not a `.keras` or `.weights.h5` file: {str(path)!r} ({error})"
        ) from error
    return Ledger.from_arrays(rows, noise_multipliers)


def _values(file: h5py.File, key: str) -> Any:
    """Return a table of the ledger in a file of weights."""
    group = file
    for name in (_OWN_VARIABLES, key):
        # Soft links, external links and external storage could lead to any file of the machine.
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise KeyError(name)
        group = group[name]
    if not isinstance(group, h5py.Dataset) or group.external or group.is_virtual:
        raise KeyError(key)
    if group.size > _MOST_NUMBERS or group.dtype.kind not in "iuf":
        raise ValueError(
            f"The privacy ledger is damaged: {key!r} must be a small table of numbers. "
            f"Received: {group.size} values of type {group.dtype}"
        )
    return np.asarray(group)
