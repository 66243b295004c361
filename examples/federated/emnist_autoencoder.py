"""Handwriting of 3,400 writers, compressed (EMNIST-AE of Andrew et al. 2021), private by writer.

    python examples/federated/emnist_autoencoder.py

trains the paper's autoencoder for its 3,000 rounds, on `fed_emnist.tar.bz2` of TensorFlow
Federated; `--smoke` takes seconds and needs no data. Every 50 rounds it prints the mean squared
error on the writers' held-out characters (lower is better), the clipping norm and epsilon.
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
    rounds=3000,
    noise_multiplier=0.03,
    client_learning_rate=3.2,
    server_learning_rate=1.78,
    client_batch_size=20,
    large_cohort=2197,
    large_noise_multiplier=0.659,
    metric="mean_squared_error",
)

# ---- clients ----------------------------------------------------------------------------------
# Each character is its own target; labels are not read. In the file paper is 1, here ink is.

FILES = {"fed_emnist_train.h5": EMNIST, "fed_emnist_test.h5": EMNIST}


def as_own_target(pixels: np.ndarray, _: None) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels of shape `(num_examples, 784)`, ink 1, as inputs and as targets."""
    ink = 1.0 - pixels.reshape(-1, 784)
    return ink, ink


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    """The writers, to train on and to evaluate on."""
    train_path, test_path = data_files(options, FILES, made_up.emnist)
    return tuple(
        ka.federated.ClientData.from_hdf5(path, "pixels").map(as_own_target)
        for path in (train_path, test_path)
    )


# ---- model ------------------------------------------------------------------------------------
# A bottleneck of 30 numbers, linear; all other layers are sigmoids.


def build_model(widths: tuple[int, ...] = (1000, 500, 250), bottleneck: int = 30) -> keras.Model:
    """784 -> 1000 -> 500 -> 250 -> 30 and back: 2.8M parameters."""

    def dense(units: int, activation: str = "sigmoid") -> keras.layers.Layer:
        return keras.layers.Dense(units, activation, kernel_initializer="glorot_normal")

    return keras.Sequential(
        [
            keras.Input((784,)),
            *[dense(units) for units in widths],
            dense(bottleneck, "linear"),
            *[dense(units) for units in reversed(widths)],
            dense(784),
        ],
        name="emnist_autoencoder",
    )


# ---- training ---------------------------------------------------------------------------------
# The loss is the mean over a batch, as in TensorFlow Federated's own version of this task; the code
# of Reddi et al. sums. Table 1 has norms from 0.22 to 0.95. On scikit-learn's digits, with the same
# rate, they lie from 0.2 to 0.4 with means and about 1 with sums.


def main() -> None:
    """Loads, trains and reports."""
    options = parse_options(__doc__, TASK)
    train(
        TASK,
        options,
        build_model((24, 16, 12), 6) if options.smoke else build_model(),
        load(options),
        loss="mean_squared_error",
        metrics=["mean_squared_error"],
    )


if __name__ == "__main__":
    main()
