"""Tags of posts on Stack Overflow (SO-LR of Andrew et al. 2021), private by user.

    python examples/federated/stackoverflow_tags.py

trains the paper's logistic regression from 10,000 words to 500 tags for its 1,500 rounds, on
`stackoverflow.tar.bz2`, `stackoverflow.word_count.tar.bz2` and `stackoverflow.tag_count.tar.bz2` of
TensorFlow Federated; `--smoke` takes seconds and needs no data. Every 50 rounds it prints recall@5
on 10,000 sentences that users wrote later, the clipping norm and epsilon.
"""

import argparse
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

import keras_adaclip as ka
import made_up
from common import Task, data_files, parse_options, train
from text import PADDING, Vocabulary, multi_hot_tags, tag_vocabulary, word_ids, word_vocabulary
from tff_files import STACKOVERFLOW, TAG_COUNTS, WORD_COUNTS

TASK = Task(
    rounds=1500,
    noise_multiplier=0.01,
    client_learning_rate=320.0,
    server_learning_rate=1.78,
    client_batch_size=100,
    client_examples_limit=1000,
    num_test_examples=10_000,
    large_cohort=13_958,
    large_noise_multiplier=1.396,
    metric="recall_at_5",
)
NUM_WORDS, NUM_TAGS = 10_000, 500
# Sentence and title together; the few that are longer are cut, which the paper does not do.
LENGTH = 100

# ---- clients ----------------------------------------------------------------------------------
# 342,477 users. The words of a sentence and of the title above it are the input, the tags of the
# question the target. A user with 1,000 sentences would fill 40 MB with bags of 10,000 words, so
# the words travel as ids, and the model takes them for a bag.

FILES = {
    "stackoverflow_train.h5": STACKOVERFLOW,
    "stackoverflow_test.h5": STACKOVERFLOW,
    "stackoverflow.word_count": WORD_COUNTS,
    "stackoverflow.tag_count": TAG_COUNTS,
}


def words_and_tags(
    texts: dict[str, np.ndarray], tags: np.ndarray, words: Vocabulary, known_tags: Vocabulary
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of one client."""
    pairs = zip(texts["tokens"], texts["title"], strict=True)
    joined = [sentence + b" " + title for sentence, title in pairs]
    return word_ids(joined, words, LENGTH), multi_hot_tags(tags, known_tags)


def load(options: argparse.Namespace) -> tuple[tuple[Any, Any], Vocabulary, Vocabulary]:
    """The users, to train on and to evaluate on, and the vocabularies of words and tags."""
    train_path, test_path, word_counts, tag_counts = data_files(
        options, FILES, made_up.stackoverflow
    )
    words, tags = word_vocabulary(word_counts, NUM_WORDS), tag_vocabulary(tag_counts, NUM_TAGS)
    features = {"tokens": "tokens", "title": "title"}
    preprocess = partial(words_and_tags, words=words, known_tags=tags)
    clients = tuple(
        ka.federated.ClientData.from_hdf5(path, features, "tags").map(preprocess)
        for path in (train_path, test_path)
    )
    return clients, words, tags


# ---- model ------------------------------------------------------------------------------------


@keras.saving.register_keras_serializable(package="examples")
class DenseOnBagOfWords(keras.layers.Layer):
    """`Dense(units, "sigmoid")` on the mean of one-hot words, without materializing them.

    Words that the vocabulary lacks count in the mean, and have no weights.

    Args:
        num_words: words of the vocabulary, which have the ids from 1.
        units: outputs.
    """

    def __init__(self, num_words: int, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_words, self.units = num_words, units

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Makes kernel and bias."""
        self.kernel = self.add_weight(shape=(self.num_words, self.units), name="kernel")
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, ids: Any) -> Any:
        """Takes ids of shape `(batch_size, length)`, returns `(batch_size, units)`."""
        is_known = ops.logical_and(ids > PADDING, ids <= self.num_words)
        rows = ops.take(self.kernel, ops.where(is_known, ids - 1, 0), axis=0)
        total = ops.sum(rows * ops.cast(is_known, rows.dtype)[..., None], axis=1)
        counts = ops.sum(ops.cast(ids != PADDING, rows.dtype), axis=1, keepdims=True)
        return ops.sigmoid(total / ops.maximum(counts, 1.0) + self.bias)

    def get_config(self) -> dict[str, Any]:
        """Every argument under its own name."""
        return {**super().get_config(), "num_words": self.num_words, "units": self.units}


def build_model(num_words: int = NUM_WORDS, num_tags: int = NUM_TAGS) -> keras.Model:
    """A logistic regression for each tag: 5M parameters."""
    inputs = keras.Input((LENGTH,), dtype="int32")
    outputs = DenseOnBagOfWords(num_words, num_tags)(inputs)
    return keras.Model(inputs, outputs, name="stackoverflow_tags")


# ---- training ---------------------------------------------------------------------------------
# The loss is summed over a batch, as in the published code: the rate of 320 is one for sums.


def main() -> None:
    """Loads, trains and reports."""
    options = parse_options(__doc__, TASK)
    clients, words, tags = load(options)
    train(
        TASK,
        options,
        build_model(len(words.entries), len(tags.entries)),
        clients,
        loss=keras.losses.BinaryCrossentropy(reduction="sum"),
        metrics=[keras.metrics.Recall(top_k=5, name="recall_at_5")],
    )


if __name__ == "__main__":
    main()
