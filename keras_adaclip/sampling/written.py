"""Examples written to a file once, so that they can be read by number."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np

from keras_adaclip.sampling.reader import PARTS, ExampleStack, Parts, forms_of, parts_of

_FILE = "examples.h5"
_NAMES = "names"
_ROWS_AT_A_TIME = 64
_BYTES_OF_A_CHUNK = 1 << 16


class WrittenSource:
    """Examples in a folder that `write_source` made, for `PoissonDataset.from_source`.

    Each array of an example is a data set of one HDF5 file, of shape `(num_examples, ...)`.

    Args:
        path: The folder.

    Raises:
        FileNotFoundError: If the folder holds no written examples, or not all of them.
        OSError: If the file is not complete.
    """

    def __init__(self, path: Any) -> None:
        self.path = Path(path)
        if not (self.path / _FILE).is_file():
            raise FileNotFoundError(
                f"A folder of written examples has a file `{_FILE}`, which is there once all are "
                "written. If writing was interrupted, write the examples again. "
                f"Received: {str(path)!r}"
            )
        # Without a cache of chunks, a row is read without its neighbors.
        file = h5py.File(self.path / _FILE, "r", rdcc_nbytes=0)
        names = keras.tree.lists_to_tuples(json.loads(file.attrs[_NAMES]))
        self._parts = keras.tree.map_structure(file.__getitem__, names)

    def __len__(self) -> int:
        return len(keras.tree.flatten(self._parts)[0])

    def __getitem__(self, index: int) -> Any:
        rows = keras.tree.map_structure(lambda array: array[index], self._parts)
        return tuple(rows.get(name) for name in PARTS)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path,)

    def __repr__(self) -> str:
        return f"WrittenSource(num_examples={len(self)})"


def write_source(examples: Iterable[Any], path: Any) -> WrittenSource:
    """Write examples to a file, one after another, and return them as a source.

    For examples that have no numbers, such as those of a generator or a `tf.data.Dataset`:
    `PoissonDataset.from_source` can then draw from the file. `WrittenSource(path)` opens it again.

    Args:
        examples: Examples as for `PoissonDataset.from_source`, not batches.
        path: A folder, which is made if it is missing. The arrays are not compressed.

    Raises:
        FileExistsError: If the folder already holds written examples.
        TypeError: If an example holds strings, or a dict with keys other than strings.
        ValueError: If there is no example, or one has another form than the first.

    Example:

    >>> import tempfile
    >>> source = write_source(((i / 2, i % 2) for i in range(100)), tempfile.mkdtemp())
    >>> len(source), source[3]
    (100, (np.float32(1.5), np.int64(1), None))
    """
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / _FILE).exists():
        raise FileExistsError(
            "The folder already holds written examples. Give another, or open them with "
            f"`keras_adaclip.sampling.WrittenSource(path)`. Received: {str(path)!r}"
        )
    # The file has its name once it is complete.
    unfinished = folder / f"{_FILE}.unfinished"
    with h5py.File(unfinished, "w") as file:
        forms: Parts = {}
        length = 0
        for example in examples:
            parts = parts_of(example, length)
            if not forms:
                forms = forms_of(parts)
                waiting = ExampleStack(forms, _ROWS_AT_A_TIME)
                datasets = _make_datasets(file, waiting.parts)
            waiting.put(length % _ROWS_AT_A_TIME, parts, length)
            length += 1
            if length % _ROWS_AT_A_TIME == 0:
                _append(datasets, waiting.parts, length)
        if not forms:
            raise ValueError("There must be an example to write. Received: no example")
        _append(datasets, waiting.parts, length)
    os.replace(unfinished, folder / _FILE)
    return WrittenSource(folder)


def _make_datasets(file: h5py.File, parts: Parts) -> list[h5py.Dataset]:
    """Make an empty data set for each array, and note which part of an example it is."""
    arrays = keras.tree.flatten(parts)
    names = keras.tree.pack_sequence_as(parts, [str(number) for number in range(len(arrays))])
    file.attrs[_NAMES] = json.dumps(names)
    if keras.tree.lists_to_tuples(json.loads(file.attrs[_NAMES])) != names:
        raise TypeError("The keys of dicts must be strings for examples to be written.")
    return [_make_dataset(file, str(number), array) for number, array in enumerate(arrays)]


def _make_dataset(file: h5py.File, name: str, array: np.ndarray) -> h5py.Dataset:
    """Make an empty data set for rows like those of an array of numbers."""
    if array.dtype.kind not in "biuf":
        raise TypeError(
            "Examples to be written must be numbers of a type of NumPy's own. Turn strings into "
            "numbers first, for example with a `keras.layers.StringLookup`. "
            f"Received: an array of dtype {array.dtype}"
        )
    shape = array.shape[1:]
    rows = max(1, _BYTES_OF_A_CHUNK // max(1, array[0].nbytes))
    return file.create_dataset(
        name, (0, *shape), array.dtype, maxshape=(None, *shape), chunks=(rows, *shape)
    )


def _append(datasets: list[h5py.Dataset], parts: Parts, length: int) -> None:
    """Write the first rows of a stack, as many as bring the data sets to a length."""
    for dataset, rows in zip(datasets, keras.tree.flatten(parts), strict=True):
        written = len(dataset)
        dataset.resize(length, axis=0)
        dataset[written:] = rows[: length - written]
