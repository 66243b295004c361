"""Handwritten characters of 3,400 writers (EMNIST-CR of Andrew et al. 2021), private by writer.

    python examples/federated/emnist_character.py

trains the paper's convolutional network for its 1,500 rounds, on `fed_emnist.tar.bz2` of
TensorFlow Federated; `--smoke` takes seconds and needs no data. Every 50 rounds it prints accuracy
on the writers' held-out characters, the clipping norm and epsilon.
"""

import argparse
from typing import Any

import keras
import numpy as np

import keras_adaclip as ka
import made_up
from common import Task, data_files, parse_options, train
from tff_files import EMNIST

TASK = Task(
    rounds=1500,
    noise_multiplier=0.1,
    client_learning_rate=0.032,
    server_learning_rate=1.0,
    client_batch_size=20,
    large_cohort=513,
    large_noise_multiplier=0.513,
)
NUM_CLASSES = 62  # digits, capital letters, small letters

# ---- clients ----------------------------------------------------------------------------------
# The file holds a group for each writer: `pixels`, from 0 (ink) to 1 (paper), and `label`. Clients
# are read when a round draws them, and `preprocess` sees one of them at a time. Writers of the test
# file are those of the training file, with other characters.

FILES = {"fed_emnist_train.h5": EMNIST, "fed_emnist_test.h5": EMNIST}


def with_channel(pixels: np.ndarray, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Pixels of shape `(num_examples, 28, 28, 1)`."""
    return pixels[..., None], label


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    """The writers, to train on and to evaluate on."""
    train_path, test_path = data_files(options, FILES, made_up.emnist)
    return tuple(
        ka.federated.ClientData.from_hdf5(path, "pixels", "label").map(with_channel)
        for path in (train_path, test_path)
    )


# ---- model ------------------------------------------------------------------------------------
# Each client draws its own dropout masks, again in every round.


def build_model(filters: int = 32, units: int = 128) -> keras.Model:
    """Two convolutions, max pooling, dropout and two dense layers: 1.2M parameters."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(filters, 3, activation="relu"),
            keras.layers.Conv2D(2 * filters, 3, activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Dropout(0.25),
            keras.layers.Flatten(),
            keras.layers.Dense(units, activation="relu"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(NUM_CLASSES),
        ],
        name="emnist_character",
    )


# ---- training ---------------------------------------------------------------------------------


def main() -> None:
    """Loads, trains and reports."""
    options = parse_options(__doc__, TASK)
    train(
        TASK,
        options,
        build_model(filters=4, units=16) if options.smoke else build_model(),
        load(options),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


if __name__ == "__main__":
    main()
