"""Readers of the formats that the data sets are published in.

Two of them are made of pickles, which can run code when they are read. `unpickled_arrays` builds
arrays, lists, dicts, numbers and texts, and refuses all else.
"""

import gzip
import pickle
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_IDX_UNSIGNED_BYTE = 8
# By the names that both NumPy 1 and NumPy 2 write.
_ARRAY_PARTS = {
    "_reconstruct": np.zeros(0).__reduce__()[0],
    "scalar": np.float64(0.0).__reduce__()[0],
    "ndarray": np.ndarray,
    "dtype": np.dtype,
}
_ARRAY_MODULES = {"numpy", "numpy.core.multiarray", "numpy._core.multiarray"}


def read_idx(path: Path) -> np.ndarray:
    """An array of unsigned bytes from an IDX file, the format of the MNIST family.

    Args:
        path: the file, gzipped if its name ends in `.gz`.

    Raises:
        ValueError: where the file is not such an array, or is truncated.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} is truncated, or no gzip file: {error}") from error
    if len(content) < 4 or content[2] != _IDX_UNSIGNED_BYTE:
        raise ValueError(f"{path} is not an IDX file of unsigned bytes.")
    rank = content[3]
    if len(content) < 4 + 4 * rank:
        raise ValueError(f"{path} ends within its header.")
    shape = tuple(np.frombuffer(content, ">u4", rank, offset=4).tolist())
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * rank)
    if values.size != np.prod(shape):
        raise ValueError(f"{path} holds {values.size} bytes where its header says {shape}.")
    return values.reshape(shape)


def read_idx_folder(folders: Iterable[Path]) -> list[np.ndarray] | None:
    """The four files of the MNIST family, from the first folder that has all of them.

    Args:
        folders: where to look, for files with or without `.gz`.

    Returns:
        Training images and labels, test images and labels; None where no folder has them.
    """
    for folder in folders:
        for suffix in (".gz", ""):
            paths = [folder / f"{name}{suffix}" for name in IDX_FILES]
            if all(path.is_file() for path in paths):
                return [read_idx(path) for path in paths]
    return None


def read_npz(path: Path, names: Iterable[str]) -> list[np.ndarray]:
    """Arrays of an `.npz` file, those of Python objects too, without running any code.

    Args:
        path: the file.
        names: of the arrays.

    Raises:
        ValueError: where the file is no such archive, an array is missing, or it holds more than
            numbers, texts, lists and arrays of them.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            found = []
            for name in names:
                with archive.open(f"{name}.npy") as file:
                    found.append(_read_npy(file))
            return found
    except (zipfile.BadZipFile, zlib.error, LookupError, EOFError, ValueError) as error:
        raise ValueError(f"{path} is not as it was published: {error}") from error


def _read_npy(file: IO[bytes]) -> np.ndarray:
    """As NumPy's own reader, but for objects."""
    version = np.lib.format.read_magic(file)
    of_version = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in of_version:
        raise ValueError(f"version {version} of the npy format is not known here")
    shape, is_fortran, dtype = of_version[version](file)
    if dtype.hasobject:
        return np.asarray(unpickled_arrays(file), dtype=object).reshape(shape)
    values = np.frombuffer(file.read(), dtype, count=int(np.prod(shape)))
    return values.reshape(shape, order="F" if is_fortran else "C")


def unpickled_arrays(file: IO[bytes]) -> Any:
    """What a pickle holds: arrays, lists, dicts, numbers and texts, those of Python 2 as bytes.

    Args:
        file: an open file, read from where it stands.

    Raises:
        ValueError: where there is anything else in it, or no pickle.
    """
    try:
        return _ArrayUnpickler(file, encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"no pickle of arrays and lists alone ({error})") from error


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """What an array is made of, and nothing else."""
        if module in _ARRAY_MODULES and name in _ARRAY_PARTS:
            return _ARRAY_PARTS[name]
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")
