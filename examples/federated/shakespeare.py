"""The next letter of Shakespeare's plays (SHAKESPEARE of Andrew et al. 2021), private by character.

    python examples/federated/shakespeare.py

trains the paper's two LSTM layers for its 1,200 rounds, on `shakespeare.tar.bz2` of TensorFlow
Federated; `--smoke` takes seconds and needs no data. A client is a character of a play with all
that it says. Every 50 rounds the script prints accuracy on lines that the characters say later in
the plays, the clipping norm and epsilon.
"""

import argparse
import string
from functools import partial
from typing import Any

import keras
import numpy as np

import keras_adaclip as ka
import made_up
from common import Task, data_files, parse_options, train
from text import PADDING, TokenAccuracy, Vocabulary, next_character_examples
from tff_files import SHAKESPEARE

TASK = Task(
    rounds=1200,
    noise_multiplier=0.1,
    client_learning_rate=1.0,
    server_learning_rate=0.32,
    client_batch_size=4,
    large_cohort=510,
    large_noise_multiplier=0.51,
)
LENGTH = 80

# ---- clients ----------------------------------------------------------------------------------
# `snippets` holds what a character says, one speech a row. It becomes pieces of 81 letters, begin
# and end of a speech included: 80 to read, and for each of them the one that follows.

FILES = {"shakespeare_train.h5": SHAKESPEARE, "shakespeare_test.h5": SHAKESPEARE}
LETTERS = string.ascii_letters + string.digits + " \n\r!\"#$%&'()*,-./:;?@[]_"
VOCABULARY = Vocabulary(tuple(LETTERS.encode()))


def pieces(snippets: np.ndarray, _: None, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets of one client."""
    return next_character_examples(snippets, VOCABULARY, length)


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    """The characters, to train on and to evaluate on."""
    train_path, test_path = data_files(options, FILES, made_up.shakespeare)
    preprocess = partial(pieces, length=12 if options.smoke else LENGTH)
    return tuple(
        ka.federated.ClientData.from_hdf5(path, "snippets").map(preprocess)
        for path in (train_path, test_path)
    )


# ---- model ------------------------------------------------------------------------------------
# Padding comes after the text, where it cannot change what was read before, so the layers need no
# mask; loss and metric leave out its targets.


def build_model(units: int = 256) -> keras.Model:
    """Embeddings of 8 numbers, two LSTM layers, a dense one: 820k parameters."""
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(VOCABULARY.num_ids, 8),
            keras.layers.LSTM(units, return_sequences=True, kernel_initializer="he_normal"),
            keras.layers.LSTM(units, return_sequences=True, kernel_initializer="he_normal"),
            keras.layers.Dense(VOCABULARY.num_ids, kernel_initializer="glorot_normal"),
        ],
        name="shakespeare",
    )


# ---- training ---------------------------------------------------------------------------------


def main() -> None:
    """Loads, trains and reports."""
    options = parse_options(__doc__, TASK)
    train(
        TASK,
        options,
        build_model(units=8) if options.smoke else build_model(),
        load(options),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=PADDING),
        metrics=[TokenAccuracy(ignored=(PADDING,))],
    )


if __name__ == "__main__":
    main()
