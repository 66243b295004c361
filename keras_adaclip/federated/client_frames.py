"""Clients from frames with a column of clients."""

from typing import Any

import keras

from keras_adaclip.federated.client_sources import ArraySource


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
