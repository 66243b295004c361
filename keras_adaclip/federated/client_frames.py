"""Clients from frames with a column of clients, and from a file for each client."""

from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_adaclip.federated.client_sources import ArraySource, Examples, FunctionSource, mapped
from keras_adaclip.sampling import as_arrays

_READERS = {".csv": "read_csv", ".parquet": "read_parquet"}


def of_frame(frame: Any, client: str, label: Any, features: Any) -> ArraySource:
    """Return clients whose examples are rows of a frame; see `ClientData.from_dataframe`."""
    if not hasattr(frame, "columns"):
        raise TypeError(
            "Argument `frame` must be a frame of pandas or polars, or a table of Arrow. "
            f"Received: frame of type {type(frame).__name__}"
        )
    (client_ids,), labels = _columns(frame, [client]), _columns(frame, label)
    if features is None:
        others = {client, *(keras.tree.flatten(label) if label is not None else ())}
        features = [name for name in _names(frame) if name not in others]
        if not features:
            raise ValueError("The frame has no column beside those of clients and labels.")
    return ArraySource(_matrices(frame, features), labels, client_ids)


def of_folder(folder: Any, label: Any, features: Any) -> FunctionSource:
    """Return clients of which each has a file; see `ClientData.from_folder`."""
    files: dict[str, Path] = {}
    for path in sorted(Path(folder).iterdir()):
        if path.suffix.lower() in _READERS:
            if path.stem in files:
                raise ValueError(
                    "Each client must have one file, and the folder has two of client "
                    f"{path.stem!r}. Remove one: {files[path.stem]} or {path}"
                )
            files[path.stem] = path
    if not files:
        raise ValueError(f"There is no .csv or .parquet file in {folder}.")
    return FunctionSource(files, _FileReader(files, label, features))


class _FileReader:
    """Reads the file of a client: the same columns of every file, as numbers of the same types.

    Args:
        files: The file of each client.
        label: As for `ClientData.from_folder`.
        features: As for `ClientData.from_folder`; None takes the other columns of the first file.
    """

    def __init__(self, files: dict[str, Path], label: Any, features: Any) -> None:
        self._files, self._label = files, label
        first = next((frame for frame in map(_frame_in, files.values()) if len(frame)), None)
        if first is None:
            raise ValueError("No file holds an example, so there is nothing to train on.")
        if features is None:
            labels = [] if label is None else keras.tree.flatten(label)
            features = [name for name in _names(first) if name not in labels]
        self._features = features
        self._types = mapped(lambda array: array.dtype, self._arrays_in(first))

    def __call__(self, client_id: str) -> Examples:
        return mapped(_cast, self._arrays_in(_frame_in(self._files[client_id])), self._types)

    def _arrays_in(self, frame: Any) -> Examples:
        """Return inputs and targets; those of several columns as Keras's type of floats."""
        x = keras.tree.map_structure(
            lambda part: part.astype(keras.config.floatx()) if part.ndim > 1 else part,
            as_arrays(_matrices(frame, self._features)),
        )
        return x, as_arrays(_columns(frame, self._label))


def _cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a column as the first file has it, where it may hold whole numbers or others."""
    if dtype.kind not in "iuf":
        return array
    cast = array.astype(dtype)
    if dtype.kind in "iu" and not np.array_equal(cast, array):
        raise ValueError(
            "a column has whole numbers in the first file, and others here. Write all files with "
            "one type of numbers"
        )
    return cast


def _frame_in(path: Path) -> Any:
    """Return the frame in a file."""
    try:
        import pandas
    except ImportError as error:
        raise ImportError(
            "`ClientData.from_folder` reads files with pandas: pip install keras-adaclip[frames]"
        ) from error
    return getattr(pandas, _READERS[path.suffix.lower()])(path)


def _names(frame: Any) -> list[str]:
    """Return the names of the columns of a frame or table."""
    return list(getattr(frame, "column_names", None) or frame.columns)


def _columns(frame: Any, names: Any) -> Any:
    """Return a structure with the column of each name in the place of the name."""
    known = _names(frame)

    def column(name: str) -> Any:
        """Return one column."""
        if name not in known:
            raise ValueError(
                f"The frame has no column {name!r}. It has: {', '.join(map(repr, known))}"
            )
        return frame[name]

    return None if names is None else keras.tree.map_structure(column, names)


def _matrices(frame: Any, names: Any) -> Any:
    """Return a column, a matrix of the columns in a list, or a dict of these."""
    if isinstance(names, dict):
        return {key: _matrices(frame, each) for key, each in names.items()}
    columns = _columns(frame, names)
    if isinstance(names, str):
        return columns
    return frame.select(names) if hasattr(frame, "select") else frame[list(names)]
