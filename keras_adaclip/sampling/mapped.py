"""Memory-mapped arrays, read without filling memory.

Each row that is read from a mapped file leaves its pages in the memory of the process, with those
around it: some gigabytes after a few hundred batches of a large file. So rows of a mapped array are
read from its file instead. Where a source maps a file and reads rows by itself, the pages are given
back to the system from time to time; they are read again when they are needed.
"""

import contextlib
import functools
import mmap
import os
import types
from collections.abc import Iterator
from typing import Any

import numpy as np

# Rows of smaller arrays are read from memory.
_LARGE = 128 << 20
# Pages of mapped files that may stay in memory.
_MOST_BYTES = 128 << 20
# One call reads a row of at most this size.
_LARGEST_ROW = 1 << 30
_ROWS_TO_COMPARE = 16
_MOST_ATTRIBUTES = 100
_STATUS = "/proc/self/statm"


class FileRows:
    """The rows of a memory-mapped array, read from its file.

    Args:
        array: A large array in the order of C that maps a file; see `rows_in_file`.
        path: The file.
        offset: The place of the first byte of the array in the file.

    Attributes:
        shape: The shape of the array.
        dtype: The dtype of the array.
    """

    def __init__(self, array: np.ndarray, path: str, offset: int) -> None:
        self.shape, self.dtype = array.shape, array.dtype
        self._path, self._offset = path, offset
        self._size = array.nbytes // len(array)
        self._file = os.open(path, os.O_RDONLY)
        self._version = self._found_version()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, numbers: Any) -> np.ndarray:
        """Return the row with a number, or rows of shape `(len(numbers), ...)`."""
        if isinstance(numbers, slice):
            numbers = range(*numbers.indices(len(self)))
        if np.ndim(numbers) == 0:
            return self[[numbers]][0]
        found = np.asarray(numbers, np.int64)
        found = np.where(found < 0, found + len(self), found)
        if found.size and not 0 <= found.min() <= found.max() < len(self):
            raise IndexError(
                f"Row numbers must lie between {-len(self)} and {len(self) - 1}. "
                f"Received: row numbers from {np.min(numbers)} to {np.max(numbers)}"
            )
        rows = np.empty((len(found), *self.shape[1:]), self.dtype)
        memory = memoryview(rows.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        starts = range(0, rows.nbytes, self._size)
        for start, number in zip(starts, found.tolist(), strict=False):
            place = self._offset + number * self._size
            if os.preadv(self._file, [memory[start : start + self._size]], place) < self._size:
                raise OSError(f"The file has become shorter: {self._path}")
        return rows

    def _found_version(self) -> tuple[int, int]:
        """Return size and time of change of the file."""
        status = os.fstat(self._file)
        return status.st_size, status.st_mtime_ns

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != "_file"}
        return {**state, "_version": self._found_version()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._file = os.open(self._path, os.O_RDONLY)
        if self._found_version() != self._version:
            raise ValueError(
                "The file of a memory-mapped array has changed since its data set was pickled: "
                f"{self._path}"
            )


def rows_in_file(array: Any) -> Any:
    """Return the rows of a large array that maps a file, to be read from it; others unchanged.

    Args:
        array: An array of any kind.
    """
    root = _mapping_of(array)
    if root is None or array.nbytes < _LARGE or not hasattr(os, "preadv"):
        return array
    is_plain = array.flags.c_contiguous and not array.dtype.hasobject
    if not is_plain or not array.size or array.nbytes // len(array) > _LARGEST_ROW:
        return array
    offset = root.offset + array.ctypes.data - root.ctypes.data
    try:
        rows = FileRows(array, str(root.filename), offset)
        places = np.unique(np.linspace(0, len(array) - 1, _ROWS_TO_COMPARE).astype(np.int64))
        is_same = all(rows[place].tobytes() == array[place].tobytes() for place in places)
    except OSError:
        return array
    # Another file may have the name by now.
    return rows if is_same else array


class MappedPages:
    """The pages of mapped files that reading of a source leaves in memory.

    Args:
        *readers: The source and functions that read. Mapped arrays are found among their
            attributes and the variables of functions, also in lists, tuples and dicts there.
    """

    def __init__(self, *readers: Any) -> None:
        found = [_mapping_of(value) for reader in readers for value in _held_by(reader)]
        self._memory = {id(root.base): root.base for root in found if root is not None}
        self._limit = _bytes_of_files() + _MOST_BYTES

    def give_back(self) -> None:
        """Give the pages back to the system if there are many."""
        if self._memory and _bytes_of_files() > self._limit:
            for memory in self._memory.values():
                # Pages that are locked stay.
                with contextlib.suppress(OSError, ValueError):
                    memory.madvise(mmap.MADV_DONTNEED)


def _held_by(reader: Any) -> Iterator[Any]:
    """Yield an object, its attributes, and the variables that it uses if it is a function."""
    values = [reader, *getattr(reader, "__dict__", {}).values()]
    if isinstance(reader, functools.partial):
        yield from _held_by(reader.func)
        values += [*reader.args, *reader.keywords.values()]
    elif isinstance(reader, types.MethodType):
        yield from _held_by(reader.__self__)
        yield from _held_by(reader.__func__)
    elif isinstance(reader, types.FunctionType):
        values += [reader.__globals__.get(name) for name in reader.__code__.co_names]
        for cell in reader.__closure__ or ():
            with contextlib.suppress(ValueError):  # A variable that has no value.
                values.append(cell.cell_contents)
    for value in values:
        parts = list(value.values()) if isinstance(value, dict) else value
        if isinstance(parts, (list, tuple)) and len(parts) <= _MOST_ATTRIBUTES:
            yield from parts
        yield value


def _mapping_of(array: Any) -> Any:
    """Return the `np.memmap` that an array is a view of, if others see what is written to it."""
    if not isinstance(array, np.ndarray) or not hasattr(mmap, "MADV_DONTNEED"):
        return None
    root = None
    while isinstance(array, np.ndarray):
        root = array if isinstance(array, np.memmap) else root
        array = array.base
    # Changes to a private copy are in its pages alone.
    is_shared = root is not None and root.mode != "c" and root.filename is not None
    return root if is_shared and isinstance(array, mmap.mmap) else None


def _bytes_of_files() -> int:
    """Return the bytes of mapped files in the memory of this process; 0 if that is not known."""
    try:
        with open(_STATUS) as status:
            return int(status.read().split()[2]) * mmap.PAGESIZE
    except OSError:
        return 0
