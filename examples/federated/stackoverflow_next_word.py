"""The next word on Stack Overflow (SO-NWP of Andrew et al. 2021), private by user.

    python examples/federated/stackoverflow_next_word.py

trains the paper's LSTM for its 1,500 rounds, on `stackoverflow.tar.bz2` and
`stackoverflow.word_count.tar.bz2` of TensorFlow Federated; `--smoke` takes seconds and needs no
data. Every 50 rounds it prints accuracy on 10,000 sentences that users wrote later, the clipping
norm and epsilon.
"""

import argparse
from functools import partial
from typing import Any

import keras
import numpy as np

import keras_adaclip as ka
import made_up
from common import Task, data_files, parse_options, train
from text import PADDING, TokenAccuracy, Vocabulary, next_word_examples, word_vocabulary
from tff_files import STACKOVERFLOW, WORD_COUNTS

TASK = Task(
    rounds=1500,
    noise_multiplier=0.01,
    client_learning_rate=0.18,
    server_learning_rate=1.78,
    client_batch_size=16,
    client_examples_limit=1000,
    num_test_examples=10_000,
    large_cohort=13_958,
    large_noise_multiplier=1.396,
)
NUM_WORDS = 10_000
LENGTH = 20

# ---- clients ----------------------------------------------------------------------------------
# 342,477 users, each with all sentences of its questions and answers in `tokens`, words parted by
# spaces. Only the names of the users are held in memory: a user's sentences are read and become ids
# when a round draws it. The vocabulary is that of the published counts.

FILES = {
    "stackoverflow_train.h5": STACKOVERFLOW,
    "stackoverflow_test.h5": STACKOVERFLOW,
    "stackoverflow.word_count": WORD_COUNTS,
}


def sentences(tokens: np.ndarray, _: None, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of one client."""
    return next_word_examples(tokens, vocabulary, LENGTH)


def load(options: argparse.Namespace) -> tuple[tuple[Any, Any], Vocabulary]:
    """The users, to train on and to evaluate on, and the vocabulary."""
    train_path, test_path, counts = data_files(options, FILES, made_up.stackoverflow)
    vocabulary = word_vocabulary(counts, NUM_WORDS)
    preprocess = partial(sentences, vocabulary=vocabulary)
    clients = tuple(
        ka.federated.ClientData.from_hdf5(path, "tokens").map(preprocess)
        for path in (train_path, test_path)
    )
    return clients, vocabulary


# ---- model ------------------------------------------------------------------------------------
# Padding comes after the text, where it cannot change what was read before, so the layers need no
# mask; loss and metric leave out its targets.


def build_model(num_ids: int, embedding: int = 96, units: int = 670) -> keras.Model:
    """Embedding, LSTM, projection to the size of the embedding, logits: 4.1M parameters."""
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(num_ids, embedding),
            keras.layers.LSTM(units, return_sequences=True, kernel_initializer="he_normal"),
            keras.layers.Dense(embedding, kernel_initializer="glorot_normal"),
            keras.layers.Dense(num_ids, kernel_initializer="glorot_normal"),
        ],
        name="stackoverflow_next_word",
    )


# ---- training ---------------------------------------------------------------------------------
# Accuracy counts words of the vocabulary alone: naming the end of a sentence, or "some other word",
# is no prediction of a word.


def main() -> None:
    """Loads, trains and reports."""
    options = parse_options(__doc__, TASK)
    clients, vocabulary = load(options)
    narrow = {"embedding": 4, "units": 8} if options.smoke else {}
    train(
        TASK,
        options,
        build_model(vocabulary.num_ids, **narrow),
        clients,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PADDING),
        metrics=[TokenAccuracy(ignored=(PADDING, vocabulary.unknown, vocabulary.end))],
    )


if __name__ == "__main__":
    main()
