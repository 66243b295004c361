"""The federated data sets that TensorFlow Federated publishes: found, downloaded, written.

A data set is a few files, such as `fed_emnist_train.h5`, from an archive. They are searched in a
folder and in what `keras.utils.get_file` unpacked there; if they are missing, the archive is
downloaded. An HDF5 file has `examples/<client id>/<feature>`, with one row for each example.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py
import keras
import numpy as np

# `data` is in the folder above.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from data.download import cache_folder, require_answer, time_limit

_PUBLISHED_AT = "https://storage.googleapis.com/tff-datasets-public"


@dataclass(frozen=True)
class Archive:
    """An archive that TensorFlow Federated publishes.

    Args:
        name: name of the archive.
        sha256: hash of the archive.
        published_at: address of the folder that holds it.
    """

    name: str
    sha256: str
    published_at: str = _PUBLISHED_AT

    @property
    def url(self) -> str:
        """Where to download it."""
        return f"{self.published_at}/{self.name}"


# The hashes are those that TensorFlow Federated's own loaders check.
CIFAR100 = Archive(
    "fed_cifar100.tar.bz2", "e8575e22c038ecef1ce6c7d492d7abee7da13b1e1ba9b70a7fc18531ba7590de"
)
EMNIST = Archive(
    "fed_emnist.tar.bz2", "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0"
)
SHAKESPEARE = Archive(
    "shakespeare.tar.bz2", "0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707"
)
STACKOVERFLOW = Archive(
    "stackoverflow.tar.bz2", "99eca2f8b8327a09e5fc123979df2d237acbc5e52322f6d86bf523ee47b961a2"
)
WORD_COUNTS = Archive(
    "stackoverflow.word_count.tar.bz2",
    "1dc00256d6e527c54b9756d968118378ae14e6692c0b3b6cad470cdd3f0c519c",
)
TAG_COUNTS = Archive(
    "stackoverflow.tag_count.tar.bz2",
    "6fe281cec490d9384a290d560072438e7e2b377bbb823876ce7bd6f82696772d",
)


def find_files(archives: Mapping[str, Archive], folder: Path | None = None) -> list[Path]:
    """The files of a data set.

    Args:
        archives: the archive of each file, by the name of the file.
        folder: where the files are, or are to be; None takes Keras's own.

    Returns:
        Their paths, in the order of `archives`.

    Raises:
        FileNotFoundError: if a file is neither there nor could be downloaded; the message says
            which file is missing and where it is published.
    """
    folder = cache_folder() if folder is None else folder
    return [_find(name, archive, folder) for name, archive in archives.items()]


def _find(name: str, archive: Archive, folder: Path) -> Path:
    found = _in_folder(name, folder)
    reason = f"{archive.name} does not contain it"
    if found is None:
        try:
            _download(archive, folder)
        # Keras raises a bare `Exception` where a download fails.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        found = _in_folder(name, folder)
    if found is None:
        raise FileNotFoundError(
            f"There is no file {name} in {folder}, and it could not be downloaded ({reason}). "
            f"TensorFlow Federated publishes it within {archive.url}: unpack that archive into "
            "a folder, and name the folder by `--data FOLDER`. `--smoke` runs without it, on "
            "made-up data."
        )
    return found


def _in_folder(name: str, folder: Path) -> Path | None:
    places = (folder, *sorted(folder.glob("*_extracted")))
    return next((place / name for place in places if (place / name).is_file()), None)


def _download(archive: Archive, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        # Keras would put it somewhere else.
        raise PermissionError(f"{folder} cannot be written to")
    require_answer(archive.url)
    with time_limit():
        keras.utils.get_file(
            archive.name,
            archive.url,
            file_hash=archive.sha256,
            hash_algorithm="sha256",
            extract=True,
            cache_dir=folder,
            cache_subdir="",
        )


def write_clients(path: Path, clients: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Writes a file of the published layout.

    Args:
        path: the file.
        clients: for each client its features, arrays of one length; texts as arrays of `object`.
    """
    with h5py.File(path, "w") as file:
        for client_id, features in clients.items():
            group = file.create_group(f"examples/{client_id}")
            for name, values in features.items():
                kind = h5py.string_dtype() if values.dtype == object else values.dtype
                group.create_dataset(name, data=values, dtype=kind)
