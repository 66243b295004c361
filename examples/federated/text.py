"""Texts of clients as numbers: words and characters as ids, tags as multi-hot vectors.

    0          padding, which neither loss nor metric counts
    1 .. V     the words or characters of the vocabulary
    V + 1      any other
    V + 2      begin, V + 3 end

as in the published code of Reddi et al. 2020. Each function sees one client.
"""

import itertools
import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import ops

PADDING = 0


@dataclass(frozen=True)
class Vocabulary:
    """Ids for the entries of a vocabulary, for all others, for begin and end.

    Args:
        entries: the entries, without a repetition.

    Example:

    >>> vocabulary = Vocabulary(("the", "cat"))
    >>> vocabulary.ids(["the", "dog"]), vocabulary.begin, vocabulary.end, vocabulary.num_ids
    ([1, 3], 4, 5, 6)
    """

    entries: tuple[Hashable, ...]

    def __post_init__(self) -> None:
        numbers = {entry: number for number, entry in enumerate(self.entries, 1)}
        if len(numbers) != len(self.entries):
            raise ValueError("Argument `entries` must name no entry twice.")
        object.__setattr__(self, "_numbers", numbers)

    @property
    def unknown(self) -> int:
        """The id of words outside the vocabulary."""
        return len(self.entries) + 1

    @property
    def begin(self) -> int:
        """The id that stands before a text."""
        return len(self.entries) + 2

    @property
    def end(self) -> int:
        """The id that stands after a text."""
        return len(self.entries) + 3

    @property
    def num_ids(self) -> int:
        """The number of ids, padding included."""
        return len(self.entries) + 4

    def ids(self, parts: Iterable[Hashable]) -> list[int]:
        """The id of each part."""
        return [self._numbers.get(part, self.unknown) for part in parts]


def word_vocabulary(path: Path, size: int) -> Vocabulary:
    """The most frequent words of `stackoverflow.word_count`, which has one `word count` a line."""
    with path.open(encoding="utf-8") as file:
        return Vocabulary(tuple(line.split()[0].encode() for line in itertools.islice(file, size)))


def tag_vocabulary(path: Path, size: int) -> Vocabulary:
    """The most frequent tags of `stackoverflow.tag_count`, which maps tags to counts in JSON."""
    counts = json.loads(path.read_text(encoding="utf-8"))
    most_frequent = sorted(counts, key=counts.__getitem__, reverse=True)
    return Vocabulary(tuple(tag.encode() for tag in most_frequent[:size]))


def next_word_examples(
    sentences: Sequence[bytes], vocabulary: Vocabulary, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sentences for predicting each word from those before it.

    A sentence of `length` words or more is cut and gets no end; a shorter one is padded.

    Args:
        sentences: words, parted by spaces.
        vocabulary: of words.
        length: words in a sequence.

    Returns:
        Inputs and targets, int32 of shape `(num_sentences, length)`; a target is the next input.
    """
    ids = np.full((len(sentences), length + 1), PADDING, np.int32)
    for row, sentence in zip(ids, sentences, strict=True):
        words = vocabulary.ids(sentence.split(b" ")[:length])
        text = [vocabulary.begin, *words, vocabulary.end][: length + 1]
        row[: len(text)] = text
    return ids[:, :-1], ids[:, 1:]


def next_character_examples(
    snippets: Sequence[bytes], vocabulary: Vocabulary, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cut snippets into pieces, for predicting each character from those before it.

    Args:
        snippets: texts.
        vocabulary: of characters, as integers from 0 to 255.
        length: characters in a sequence.

    Returns:
        Inputs and targets, int32 of shape `(num_pieces, length)`. Each piece holds `length + 1`
        characters of one snippet, the last piece of a snippet is padded.
    """
    pieces: list[np.ndarray] = [np.zeros((0, length + 1), np.int32)]
    for snippet in snippets:
        text = [vocabulary.begin, *vocabulary.ids(snippet), vocabulary.end]
        text += [PADDING] * (-len(text) % (length + 1))
        pieces.append(np.array(text, np.int32).reshape(-1, length + 1))
    ids = np.concatenate(pieces)
    return ids[:, :-1], ids[:, 1:]


def word_ids(texts: Sequence[bytes], vocabulary: Vocabulary, length: int) -> np.ndarray:
    """The words of each text as ids, for a bag of words: neither begin nor end.

    Args:
        texts: words, parted by white space.
        vocabulary: of words.
        length: words that count; those after them are left out.

    Returns:
        int32 of shape `(num_texts, length)`, padded.
    """
    ids = np.full((len(texts), length), PADDING, np.int32)
    for row, text in zip(ids, texts, strict=True):
        words = vocabulary.ids(text.split()[:length])
        row[: len(words)] = words
    return ids


def multi_hot_tags(tags: Sequence[bytes], vocabulary: Vocabulary) -> np.ndarray:
    """Return 1 for each tag of an example; tags outside the vocabulary are left out.

    Args:
        tags: the tags of each example, parted by `|`.
        vocabulary: of tags.

    Returns:
        uint8 of shape `(num_examples, num_tags)`.
    """
    hot = np.zeros((len(tags), vocabulary.unknown), np.uint8)
    for row, of_example in zip(hot, tags, strict=True):
        row[np.array(vocabulary.ids(of_example.split(b"|"))) - 1] = 1
    return hot[:, :-1]


@keras.saving.register_keras_serializable(package="examples")
class TokenAccuracy(keras.metrics.Mean):
    """The share of correctly predicted tokens, without those of some targets.

    Args:
        ignored: ids of targets that do not count.
        name: name of the metric.
    """

    def __init__(self, ignored: Sequence[int] = (PADDING,), name: str = "accuracy") -> None:
        super().__init__(name=name)
        self.ignored = tuple(ignored)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Counts ids of shape `(batch_size, length)` against logits `(..., num_ids)`."""
        y_true = ops.cast(y_true, "int32")
        is_right = ops.equal(ops.cast(ops.argmax(y_pred, axis=-1), "int32"), y_true)
        weights = ops.ones_like(is_right, dtype="float32")
        for ignored in self.ignored:
            weights = weights * ops.cast(ops.not_equal(y_true, ignored), "float32")
        if sample_weight is not None:
            given = ops.cast(sample_weight, "float32")
            weights = weights * (ops.expand_dims(given, -1) if len(given.shape) == 1 else given)
        super().update_state(ops.cast(is_right, "float32"), sample_weight=weights)

    def get_config(self) -> dict[str, Any]:
        """Every argument under its own name."""
        return {"ignored": list(self.ignored), "name": self.name}
