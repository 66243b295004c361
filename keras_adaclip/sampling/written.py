"""Examples written to files once, so that they can be read by number."""

import json
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import keras
import numpy as np

from keras_adaclip.sampling.reader import PARTS, ExampleStack, Parts, forms_of, parts_of

_INDEX = "index.json"
_ROWS_AT_A_TIME = 64


class WrittenSource:
    """Examples in a folder that `write_source` made, for `PoissonDataset.from_source`.

    Each array of an example has a file of NumPy's format, of shape `(num_examples, ...)`.

    Args:
        path: The folder.

    Raises:
        FileNotFoundError: If the folder holds no written examples, or not all of them.
        ValueError: If a file is not complete.
    """

    def __init__(self, path: Any) -> None:
        self.path = Path(path)
        index = self.path / _INDEX
        if not index.is_file():
            raise FileNotFoundError(
                f"A folder of written examples has a file `{_INDEX}`, which is written last. If "
                f"writing was interrupted, write the examples again. Received: {str(path)!r}"
            )
        self._names = json.loads(index.read_text())
        self._open()

    def _open(self) -> None:
        """Map the files into memory, from which rows are read when they are used."""

        def mapped(name: str) -> Any:
            """Return the rows of one file."""
            return np.asarray(np.load(self.path / name, mmap_mode="r"))

        self._parts = {
            name: keras.tree.lists_to_tuples(keras.tree.map_structure(mapped, part))
            for name, part in self._names.items()
        }
        self._length = len(keras.tree.flatten(self._parts)[0])

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        rows = {
            name: keras.tree.map_structure(lambda array: array[index], part)
            for name, part in self._parts.items()
        }
        return tuple(rows.get(name) for name in PARTS)

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_names": self._names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._open()

    def __repr__(self) -> str:
        return f"WrittenSource(num_examples={len(self)})"


def write_source(examples: Iterable[Any], path: Any) -> WrittenSource:
    """Write examples to files, one after another, and return them as a source.

    For examples that have no numbers, such as those of a generator or a `tf.data.Dataset`:
    `PoissonDataset.from_source` can then draw from the files. `WrittenSource(path)` opens them
    again.

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
    if (folder / _INDEX).exists():
        raise FileExistsError(
            "The folder already holds written examples. Give another, or open them with "
            f"`keras_adaclip.sampling.WrittenSource(path)`. Received: {str(path)!r}"
        )
    with ExitStack() as stack:
        files: dict[str, _GrowingFile] = {}
        names: dict[str, Any] = {}
        forms: Parts = {}
        waiting = ExampleStack(forms, _ROWS_AT_A_TIME)
        length = 0

        def write(num_rows: int) -> None:
            """Write the first rows of the examples that wait."""
            for file, array in zip(files.values(), keras.tree.flatten(waiting.parts), strict=True):
                file.append(array[:num_rows])

        for example in examples:
            parts = parts_of(example, length)
            if not forms:
                forms = forms_of(parts)
                waiting = ExampleStack(forms, _ROWS_AT_A_TIME)
                flat = keras.tree.flatten(waiting.parts)
                files_of = [f"{number}.npy" for number in range(len(flat))]
                names = keras.tree.pack_sequence_as(waiting.parts, files_of)
                for name, array in zip(files_of, flat, strict=True):
                    _refuse_strings(array)
                    opened = stack.enter_context((folder / name).open("wb"))
                    files[name] = _GrowingFile(opened, array)
            waiting.put(length % _ROWS_AT_A_TIME, parts, length)
            length += 1
            if length % _ROWS_AT_A_TIME == 0:
                write(_ROWS_AT_A_TIME)
        if not forms:
            raise ValueError("There must be an example to write. Received: no example")
        write(length % _ROWS_AT_A_TIME)
        for file in files.values():
            file.finish()
    content = json.dumps(names)
    if keras.tree.lists_to_tuples(json.loads(content)) != names:
        raise TypeError("The keys of dicts must be strings for examples to be written.")
    (folder / _INDEX).write_text(content)
    return WrittenSource(folder)


def _refuse_strings(array: np.ndarray) -> None:
    """Raise a `TypeError` if an array does not hold numbers."""
    if array.dtype.kind not in "biuf":
        raise TypeError(
            "Examples to be written must be numbers of a type of NumPy's own. Turn strings into "
            "numbers first, for example with a `keras.layers.StringLookup`. "
            f"Received: an array of dtype {array.dtype}"
        )


class _GrowingFile:
    """A file of NumPy's format whose number of rows is written at the end.

    Args:
        file: The open file.
        rows: Some rows, for shape and dtype.
    """

    def __init__(self, file: BinaryIO, rows: np.ndarray) -> None:
        self._file, self._length = file, 0
        self._shape, self._description = rows.shape[1:], np.lib.format.dtype_to_descr(rows.dtype)
        self._write_header()

    def append(self, rows: np.ndarray) -> None:
        """Write rows behind those that are there."""
        self._file.write(np.ascontiguousarray(rows).tobytes())
        self._length += len(rows)

    def finish(self) -> None:
        """Write the number of rows."""
        self._file.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        """Write the header, in which NumPy leaves space for a number of rows that grows."""
        header = {
            "descr": self._description, "fortran_order": False,
            "shape": (self._length, *self._shape),
        }  # fmt: skip
        np.lib.format.write_array_header_1_0(self._file, header)
