"""Memory-mapped arrays, whose pages a process does not keep.

Each row that is read from a mapped file leaves its pages in the memory of the process, with those
around it: some gigabytes after a few hundred batches of a large file. So rows of a mapped array are
read from its file instead. Where a source maps a file and reads rows by itself, the pages are given
back to the system from time to time; they are read again when they are needed.
"""

import inspect
import mmap
import os
import threading
from typing import Any

import keras
import numpy as np

# Smaller arrays stay as they are, and so many bytes of pages may stay.
_LARGE = 128 << 20
_ROWS_TO_COMPARE = 16
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

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, numbers: Any) -> np.ndarray:
        """Return the row with a number, or rows of shape `(len(numbers), ...)`."""
        if np.ndim(numbers) == 0:
            return self[[numbers]][0]
        rows = np.empty((len(numbers), *self.shape[1:]), self.dtype)
        memory = memoryview(rows.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        for start, number in zip(range(0, rows.nbytes, self._size), numbers, strict=False):
            place = self._offset + int(number) * self._size
            if os.preadv(self._file, [memory[start : start + self._size]], place) < self._size:
                raise OSError(f"The file has become shorter: {self._path}")
        return rows

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_file"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._file = os.open(self._path, os.O_RDONLY)


def rows_in_file(array: Any) -> Any:
    """Return the rows of a large array that maps a file, to be read from it; others unchanged.

    Args:
        array: An array of any kind.
    """
    root = _mapping_of(array)
    if root is None or array.nbytes < _LARGE or not hasattr(os, "preadv"):
        return array
    if not array.flags.c_contiguous or array.dtype.hasobject or not array.shape[0]:
        return array
    offset = root.offset + array.ctypes.data - root.ctypes.data
    try:
        rows = FileRows(array, str(root.filename), offset)
        places = np.linspace(0, len(array) - 1, _ROWS_TO_COMPARE).astype(np.int64)
        is_same = rows[places].tobytes() == np.asarray(array[places]).tobytes()
    except OSError:
        return array
    # The name may be that of another file by now.
    return rows if is_same else array


class MappedPages:
    """The pages of mapped files that reading of a source leaves in memory.

    Args:
        *readers: The source and functions that read; arrays among their attributes or variables
            are found.
    """

    def __init__(self, *readers: Any) -> None:
        found = [_mapping_of(value) for reader in readers for value in _held_by(reader)]
        self._memory = {id(root.base): root.base for root in found if root is not None}
        self._lock = threading.Lock()
        self._limit = _bytes_of_files() + _LARGE

    def give_back(self) -> None:
        """Give the pages back to the system if there are many."""
        if self._memory and _bytes_of_files() > self._limit:
            with self._lock:
                for memory in self._memory.values():
                    memory.madvise(mmap.MADV_DONTNEED)


def _held_by(reader: Any) -> list[Any]:
    """Return an object, its attributes, and the variables that it uses if it is a function."""
    values = [reader]
    if inspect.isfunction(reader):
        variables = inspect.getclosurevars(reader)
        values += [*variables.nonlocals.values(), *variables.globals.values()]
    elif hasattr(reader, "__dict__"):
        values += vars(reader).values()
    return keras.tree.flatten(values)


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
