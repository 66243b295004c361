"""What the file of a saved private model says of its privacy, read without building the model."""

import collections
import dataclasses
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from keras_adaclip.accounting.ledger import Ledger, padded_bytes

# The names of the arrays of a private model besides its variables.
LEDGER_KEY = "privacy_ledger"
DIGESTS_KEY = "privacy_weights_digests"
FACTS_KEY = "privacy_facts"
DIGEST_SIZE = 32
# Not digests of arrays: the marks of a weight that something else has changed, of one that was
# trained without a digest, and of one that no private run has trained.
CHANGED, UNWATCHED, UNKNOWN = (bytes([mark]) * DIGEST_SIZE for mark in (0, 254, 255))
_WEIGHTS_IN_ARCHIVE = "model.weights.h5"
_OWN_VARIABLES = "vars"
# The part of a model that holds its ledger.
_PART = "ledger_in_files"
_OPTIMIZER = "optimizer"
# Bytes of a ledger of 300,000 rows.
_MOST_NUMBERS = 1 << 26
# Keras does not compress the weights. Beyond this, a small file would fill the memory.
_MOST_EXPANSION = 100
_TEXTS = ("unit", "clipping", "seeds", "tuning", "model_name")
# Files of version 0.3 have none of these.
_LATER_TEXTS = ("preprocessing", "public_changes")


@dataclasses.dataclass(frozen=True)
class SavedPrivacy:
    """The privacy of a model in a file.

    Args:
        ledger: The ledger at the time when the file was written.
        facts: What the model said of itself then, as `facts_to_array` takes it.
        weights: Digest of the weights, and whether they are those that private training left, in
            words.
    """

    ledger: Ledger
    facts: Mapping[str, Any]
    weights: str


def read_ledger(path: str | Path) -> Ledger:
    """Return the ledger of a saved private model. No layer is built, and no code of the model runs.

    Args:
        path: A `.keras` file, or a `.weights.h5` file.

    Returns:
        The ledger at the time when the file was written.

    Raises:
        OSError: If there is no such file, or it cannot be read.
        ValueError: If the file is of another kind, or holds no ledger or an impossible one.
    """
    return read_saved_privacy(path).ledger


def read_saved_privacy(path: str | Path) -> SavedPrivacy:
    """Return the privacy of a saved model. No layer is built, and no code of the model runs.

    Args:
        path: A `.keras` file, or a `.weights.h5` file.

    Raises:
        OSError: If there is no such file, or it cannot be read.
        ValueError: If the file is of another kind, or holds no ledger or an impossible one.
    """
    path = Path(path)
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                content = io.BytesIO(_weights_in_archive(archive))
        else:
            content = io.BytesIO(path.read_bytes())
        with h5py.File(content, "r") as file:
            group = _member(_member(file, _PART), _OWN_VARIABLES)
            ledger = Ledger.from_array(_values(group, LEDGER_KEY))
            facts = facts_from_array(_values(group, FACTS_KEY))
            weights = _weights_in_words(file, _values(group, DIGESTS_KEY))
            return SavedPrivacy(ledger, facts, weights)
    except KeyError as error:
        raise ValueError(
            f"There is no privacy ledger in {str(path)!r}, or only a part of one. A private model "
            "of this package that is saved as `.keras` or `.weights.h5` keeps one; `to_keras` "
            "writes the report of a plain model beside it, as `.privacy.html` and `.privacy.json`. "
            "Files of versions 0.1 and 0.2 are not read."
        ) from error
    # `zipfile` raises these for damaged, encrypted and oddly compressed files.
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        if not path.is_file():
            raise
        raise ValueError(
            f"Not a `.keras` or `.weights.h5` file: {str(path)!r} ({error})"
        ) from error


def facts_to_array(facts: Mapping[str, Any], multiple: int = 1) -> npt.NDArray[np.uint8]:
    """Return facts of a model as the bytes of a JSON text, for saving.

    Args:
        facts: Arguments of `PrivacyReport.from_ledger` by name: texts, or texts by name.
        multiple: As of `Ledger.to_array`.
    """
    return padded_bytes(json.dumps(facts), multiple)


def facts_from_array(values: npt.NDArray[Any]) -> dict[str, Any]:
    """Return the facts in an array of `facts_to_array`.

    Args:
        values: The array.

    Raises:
        ValueError: If it holds no facts.
    """
    try:
        facts = json.loads(values.astype(np.uint8).tobytes())
        versions = {_printable(name): _printable(each) for name, each in facts["versions"].items()}
        texts = {name: _printable(facts[name]) for name in _TEXTS}
        texts |= {name: _printable(facts.get(name, "")) for name in _LATER_TEXTS}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"The privacy ledger is damaged: {FACTS_KEY!r} must be the facts of a model. "
            f"Received: {error!r}"
        ) from error
    return {**texts, "versions": versions}


def weights_in_words(digest: str | None, are_unchanged: bool | None) -> str:
    """Return the digest of all weights in words, with whether private training left them.

    Args:
        digest: SHA-256 of the digests of all weights; None if it is not known.
        are_unchanged: Whether the weights are those that private training left; None if unknown.
    """
    digest = "SHA-256 not known" if digest is None else f"SHA-256 {digest}"
    if are_unchanged is None:
        return f"{digest}; not known whether they are those that private training left"
    if are_unchanged:
        return f"{digest}; those that private training left"
    return (
        f"{digest}; NOT those that private training left: something else has changed them, and "
        "epsilon says nothing of that"
    )


def _weights_in_archive(archive: zipfile.ZipFile) -> bytes:
    """Return the file of weights in a `.keras` file."""
    info = archive.getinfo(_WEIGHTS_IN_ARCHIVE)
    if info.file_size > _MOST_EXPANSION * info.compress_size:
        raise ValueError(
            f"{_WEIGHTS_IN_ARCHIVE!r} must not be compressed to less than 1 / {_MOST_EXPANSION} of "
            f"its size. Received: {info.file_size} bytes in {info.compress_size}"
        )
    return archive.read(info)


def _member(group: Any, name: str) -> Any:
    """Return a group or an array inside a group of a file."""
    # Soft links, external links and external storage could lead to any file of the machine.
    is_group = isinstance(group, h5py.Group)
    if not is_group or not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise KeyError(name)
    return group[name]


def _values(group: Any, key: str) -> Any:
    """Return a table of the ledger in a group of a file of weights."""
    table = _member(group, key)
    if not isinstance(table, h5py.Dataset) or table.external or table.is_virtual:
        raise KeyError(key)
    # A chunk may be larger than its table, and compressed.
    is_small = table.size <= _MOST_NUMBERS and table.chunks is None
    if not is_small or table.dtype.kind not in "iuf":
        raise ValueError(
            f"The privacy ledger is damaged: {key!r} must be a table of at most "
            f"{_MOST_NUMBERS:,} numbers, not in chunks. Received: {table.size:,} values of type "
            f"{table.dtype}, chunks={table.chunks}"
        )
    return np.asarray(table)


def _printable(text: object) -> str:
    """Return a text of a file without what could control a terminal."""
    return "".join(each if each.isprintable() else "?" for each in str(text))


def _weights_in_words(file: h5py.File, digests: Any) -> str:
    """Return the digest of the weights in a file, compared with those that training left."""
    left = [np.asarray(digest, np.uint8).tobytes() for digest in digests]
    found: collections.Counter[bytes] = collections.Counter()

    def add(name: str, dataset: Any) -> None:
        """Add the digest of an array that stands in this file as it is, as Keras writes it."""
        if not isinstance(dataset, h5py.Dataset) or dataset.external:
            return
        if _OPTIMIZER in name.split("/"):  # It may hold former values of weights.
            return
        # It has other bytes in the file than in the model.
        if "dtype" in dataset.attrs or dataset.chunks is not None:
            found[UNKNOWN] += 1
        # Other types may refer to one large value many times.
        elif dataset.dtype.kind in "biufc" and dataset.id.get_storage_size() == dataset.nbytes:
            found[hashlib.sha256(np.asarray(dataset).tobytes()).digest()] += 1

    file.visititems(add)  # It follows no links.
    if CHANGED in left:
        return weights_in_words(None, False)
    if not left or {UNWATCHED, UNKNOWN} & set(left):
        return weights_in_words(None, None)
    if not found >= collections.Counter(left):
        return weights_in_words(None, None if UNKNOWN in found else False)
    return weights_in_words(hashlib.sha256(b"".join(left)).hexdigest(), True)
