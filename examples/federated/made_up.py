"""Small files with made-up data in the published layouts, for `--smoke`."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tff_files import write_clients

_WORDS = ("how", "do", "i", "sort", "a", "list", "in", "python", "?", "thanks", ".", "here")
_TAGS = (*(f"tag-{number}" for number in range(20)), "c#")
_LINES = (b"To be, or not to be: that is the question.", b"Who's there?", b"Enter GHOST\n")


def emnist(folder: Path, num_clients: int = 12) -> None:
    """`fed_emnist_train.h5` and `fed_emnist_test.h5`: 28x28 pixels, the background 1, 62 classes.

    Args:
        folder: where they are put.
        num_clients: writers, the same in both files.
    """
    rng = np.random.default_rng(0)
    shapes = rng.random((62, 28, 28), np.float32)
    for split in ("train", "test"):
        clients = {}
        for number in range(num_clients):
            labels = rng.integers(0, 62, rng.integers(3, 8)).astype(np.int32)
            clients[f"f{number:04}"] = {"pixels": shapes[labels], "label": labels}
        write_clients(folder / f"fed_emnist_{split}.h5", clients)


def cifar100(folder: Path, num_clients: int = 12) -> None:
    """`fed_cifar100_train.h5` and `fed_cifar100_test.h5`: 32x32 pixels in colour, 100 classes.

    Args:
        folder: where they are put.
        num_clients: clients, others in each file.
    """
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        clients = {}
        for number in range(num_clients):
            labels = rng.integers(0, 100, 4)
            clients[f"{split}_{number}"] = {
                "image": rng.integers(0, 256, (4, 32, 32, 3)).astype(np.uint8),
                "label": labels,
                "coarse_label": labels // 5,
            }
        write_clients(folder / f"fed_cifar100_{split}.h5", clients)


def shakespeare(folder: Path, num_clients: int = 12) -> None:
    """`shakespeare_train.h5` and `shakespeare_test.h5`: the lines of characters of plays.

    Args:
        folder: where they are put.
        num_clients: characters, the same in both files.
    """
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        clients = {
            f"THE_PLAY_CHARACTER_{number}": {
                "snippets": _texts(_LINES[which] for which in rng.integers(0, 3, 2))
            }
            for number in range(num_clients)
        }
        write_clients(folder / f"shakespeare_{split}.h5", clients)


def stackoverflow(folder: Path, num_clients: int = 12) -> None:
    """`stackoverflow_train.h5`, `stackoverflow_test.h5` and the counts of words and of tags.

    Args:
        folder: where they are put.
        num_clients: users, the same in both files.
    """
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        clients = {}
        for number in range(num_clients):
            size = rng.integers(2, 6)
            sentences = [rng.choice(_WORDS, rng.integers(1, 30)) for _ in range(size)]
            clients[f"{number:08}"] = {
                "tokens": _texts(" ".join(words).encode() for words in sentences),
                "title": _texts(b"sort a list ?" for _ in range(size)),
                "tags": _texts(
                    "|".join(rng.choice(_TAGS, 2, replace=False)).encode() for _ in range(size)
                ),
            }
        write_clients(folder / f"stackoverflow_{split}.h5", clients)
    # One line a word, the most frequent first; "here" and "c#" stay unknown.
    lines = [f"{word} {100 - place}" for place, word in enumerate(_WORDS[:-1])]
    (folder / "stackoverflow.word_count").write_text("\n".join(lines), encoding="utf-8")
    counts = {tag: 10 + place for place, tag in enumerate(_TAGS[:-1])}
    (folder / "stackoverflow.tag_count").write_text(json.dumps(counts), encoding="utf-8")


def _texts(texts: Iterable[bytes]) -> np.ndarray:
    return np.array(list(texts), object)
