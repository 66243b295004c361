"""Texts as they were written: files of yours, Shakespeare's plays, and the film reviews of IMDB."""

from pathlib import Path

import keras
import numpy as np

from .download import cached_or_downloaded
from .labelled_data import LabelledData

_SHAKESPEARE = "https://storage.googleapis.com/download.tensorflow.org/data/shakespeare.txt"
_REVIEWS = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"


def load_texts(path: Path | None = None) -> dict[str, str]:
    """Texts by name: a file, or each `.txt` file of a folder; by default plays of Shakespeare.

    Args:
        path: a text file or a folder; None takes `shakespeare.txt`, 1.1 million characters, from
            Keras's cache or the network.

    Raises:
        FileNotFoundError: if there is no such file, or none in the folder.
    """
    if path is None:
        path = Path(
            cached_or_downloaded(
                "Shakespeare",
                "shakespeare.txt",
                _SHAKESPEARE,
                lambda: keras.utils.get_file("shakespeare.txt", _SHAKESPEARE),
            )
        )
    files = sorted(path.glob("*.txt")) if path.is_dir() else [path]
    if not files:
        raise FileNotFoundError(f"There are no .txt files in {path}.")
    return {file.stem: file.read_text(encoding="utf-8") for file in files}


def load_reviews(folder: Path | None = None) -> LabelledData:
    """IMDB: 25,000 + 25,000 film reviews as strings, class 1 if friendly (Maas et al. 2011).

    They come in an order that is random and always the same.

    Args:
        folder: folder in which `aclImdb` is unpacked, with `train/pos`, `train/neg`, `test/pos`
            and `test/neg`; None takes Keras's cache or the network.

    Raises:
        FileNotFoundError: if a folder holds no reviews.
    """
    if folder is None:
        folder = cached_or_downloaded(
            "IMDB",
            "imdb_reviews_archive",
            _REVIEWS,
            lambda: keras.utils.get_file("imdb_reviews", _REVIEWS, extract=True),
        )
    parts: list[np.ndarray] = []
    for part in ("train", "test"):
        texts, labels = [], []
        for label, name in enumerate(("neg", "pos")):
            place = Path(folder) / "aclImdb" / part / name
            files = sorted(place.glob("*.txt"))
            if not files:
                raise FileNotFoundError(f"There are no reviews (.txt files) in {place}.")
            texts += [file.read_text(encoding="utf-8") for file in files]
            labels += [label] * len(files)
        order = np.random.default_rng(0).permutation(len(texts))
        parts += [np.array(texts, object)[order], np.array(labels, np.int32)[order]]
    source = f"IMDB, {len(parts[1]):,} + {len(parts[3]):,} reviews as they were written"
    return LabelledData(*parts, source)
