"""IMDB: 50,000 film reviews, half of them friendly (Maas et al. 2011)."""

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_adaclip.datasets.files import read_npz
from keras_adaclip.datasets.sources import (
    first_available,
    keras_source,
    local_source,
    tfds_source,
)
from keras_adaclip.datasets.text_data import TextData

_FILES = "`imdb.npz`, as Keras publishes it, or the unpacked `aclImdb/`"
_PUBLISHED_AT = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
_PAD, _START, _OTHER, _FIRST_WORD = 0, 1, 2, 3
_RANKS = "ids are ranks of the words by their frequency in the reviews themselves"
_HASHES = "ids are hashes of the words"
_WORD = re.compile(r"[a-z0-9']+")
# Sequences of ids and labels, for training and for test, and what the ids are.
_Parts = tuple[list[Any], str]


def load_imdb(num_tokens: int = 10_000, length: int = 256) -> TextData:
    """IMDB: 25,000 training and 25,000 test reviews as token ids, class 1 where friendly.

    Looked for in this order:

    1. in the folder that the environment variable `KERAS_ADACLIP_DATA` names: `imdb.npz`, as Keras
       publishes it, or the unpacked `aclImdb/` of
       <https://ai.stanford.edu/~amaas/data/sentiment/>;
    2. `keras.datasets.imdb`, which downloads it once;
    3. TensorFlow Datasets, `imdb_reviews` (`pip install keras-adaclip[datasets]`).

    **What the ids give away.** Keras numbers the words by how often they occur in the reviews. A
    vocabulary that is made of private texts is not covered by a model's epsilon; here it was
    published long before. From the texts (`aclImdb/`, TensorFlow Datasets) ids are hashes of the
    words, which no review has a part in. `source` says which ids these are.

    Args:
        num_tokens: number of ids, at least 4. Rarer words are all 2 with Keras's ids; with hashes
            several words share an id.
        length: ids in a sequence. Of a longer review the last ones are kept, a shorter one is
            filled up with 0 at its end.

    Raises:
        FileNotFoundError: where none has it; the message says what each answered.
        ValueError: where an argument is out of range, or a local file is broken.
    """
    if num_tokens <= _FIRST_WORD:
        raise ValueError(
            f"Argument `num_tokens` must be at least 4. Received: num_tokens={num_tokens}"
        )
    if length < 1:
        raise ValueError(f"Argument `length` must be at least 1. Received: length={length}")
    (parts, ids), origin = first_available(
        "IMDB",
        (
            local_source(lambda folder: _read(folder, num_tokens), _FILES),
            keras_source(lambda: _of_keras(num_tokens)),
            tfds_source(
                "imdb_reviews",
                lambda rows: _from_rows(rows, num_tokens),
                published_at=_PUBLISHED_AT,
            ),
        ),
        _FILES,
    )
    x_train, y_train, x_test, y_test = parts
    return TextData(
        _filled(x_train, length),
        np.asarray(y_train, np.int32),
        _filled(x_test, length),
        np.asarray(y_test, np.int32),
        num_tokens,
        f"IMDB, {len(x_train):,} + {len(x_test):,} reviews ({origin}; {ids})",
    )


def hashed_words(text: str, num_tokens: int) -> list[int]:
    """The ids of a text's words, none of them learned from any text.

    Args:
        text: a text in English.
        num_tokens: number of ids; those below 3 are no words.
    """
    words = _WORD.findall(text.replace("<br />", " ").lower())
    num_words = num_tokens - _FIRST_WORD
    return [_START, *(_FIRST_WORD + zlib.crc32(word.encode()) % num_words for word in words)]


def _of_keras(num_tokens: int) -> _Parts:
    train, test = keras.datasets.imdb.load_data(
        num_words=num_tokens, start_char=_START, oov_char=_OTHER, index_from=_FIRST_WORD
    )
    return [*train, *test], _RANKS


def _read(folder: Path, num_tokens: int) -> _Parts | None:
    if (folder / "imdb.npz").is_file():
        names = ("x_train", "y_train", "x_test", "y_test")
        x_train, y_train, x_test, y_test = read_npz(folder / "imdb.npz", names)
        train, test = ([_from_ranks(ranks, num_tokens) for ranks in x] for x in (x_train, x_test))
        return [train, y_train, test, y_test], _RANKS
    if (folder / "aclImdb").is_dir():
        parts: list[Any] = []
        for split in ("train", "test"):
            parts += _read_texts(folder / "aclImdb" / split, num_tokens)
        return parts, _HASHES
    return None


def _from_ranks(ranks: Sequence[int], num_tokens: int) -> list[int]:
    """As `keras.datasets.imdb` does by default: rank 1 is the commonest word."""
    ids = (_FIRST_WORD + rank for rank in ranks)
    return [_START, *(number if number < num_tokens else _OTHER for number in ids)]


def _read_texts(folder: Path, num_tokens: int) -> tuple[list[list[int]], list[int]]:
    sequences, labels = [], []
    for label, name in enumerate(("neg", "pos")):
        paths = sorted((folder / name).glob("*.txt"))
        if not paths:
            raise ValueError(f"{folder / name} holds no reviews (*.txt).")
        for path in paths:
            sequences.append(hashed_words(path.read_text(encoding="utf-8"), num_tokens))
            labels.append(label)
    return sequences, labels


def _from_rows(rows: Mapping[str, Iterable[Mapping[str, Any]]], num_tokens: int) -> _Parts:
    parts: list[Any] = []
    for split in rows.values():
        texts, labels = zip(*((row["text"], row["label"]) for row in split), strict=True)
        parts += [[hashed_words(text.decode(), num_tokens) for text in texts], labels]
    return parts, _HASHES


def _filled(sequences: Iterable[Sequence[int]], length: int) -> np.ndarray:
    """Sequences of one length, by the last ids of each and 0 after them."""
    kept = [ids[-length:] for ids in sequences]
    filled = np.full((len(kept), length), _PAD, np.int32)
    for row, ids in zip(filled, kept, strict=True):
        row[: len(ids)] = ids
    return filled
