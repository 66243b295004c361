"""Saving the variables of an optimizer, and reading them back: all of them or none."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_adaclip import backend
from keras_adaclip.backend import keras_private

NO_LEGACY_FILE = (
    "A private model cannot be saved as an HDF5 file of the whole model (`.h5`), which would hold "
    "the key of the noise and not the privacy ledger. Save it as `.keras`, or its weights as "
    "`.weights.h5`."
)


def refuse_legacy_file() -> None:
    """Raises where Keras asks for a config that goes into an HDF5 file of a whole model.

    Raises:
        ValueError: with what to do instead.
    """
    if keras_private.is_legacy_file():
        raise ValueError(NO_LEGACY_FILE)


def save_arrays(
    store: Any, variables: Sequence[keras.Variable], secret: Sequence[keras.Variable]
) -> None:
    """Stores each variable under its number, and zeros in place of the secret ones.

    Args:
        store: what Keras hands to `save_own_variables`.
        variables: the variables.
        secret: those of them whose values must not leave the process.
    """
    hidden = {id(variable) for variable in secret}
    for number, variable in enumerate(variables):
        value = backend.array_of(variable)
        store[str(number)] = np.zeros_like(value) if id(variable) in hidden else value


def saved_arrays(store: Any, variables: Sequence[keras.Variable], name: str) -> dict[int, Any]:
    """The saved array of each variable, by the variable's `id`.

    Args:
        store: what Keras hands to `load_own_variables`.
        variables: the variables in the order in which they were saved.
        name: name of the optimizer.

    Raises:
        ValueError: where number or shapes differ. (Keras itself warns and goes on.)
    """
    if len(store.keys()) != len(variables):
        raise ValueError(
            f"The saved state of {name!r} holds {len(store.keys())} variables, this optimizer has "
            f"{len(variables)}. Threshold and privacy ledger cannot be restored from it: build "
            "the model and compile it as it was when it was saved."
        )
    values = {}
    for number, variable in enumerate(variables):
        value = np.asarray(store[str(number)])
        if tuple(variable.shape) != value.shape:
            raise ValueError(
                f"The saved state of {name!r} does not fit: variable {variable.path!r} has shape "
                f"{tuple(variable.shape)}, the saved one {value.shape}. Build the model and "
                "compile it as it was when it was saved."
            )
        values[id(variable)] = value
    return values
