"""Trains on pure noise with backups, writes the weights of each step, and kills its own process.

python -m tests.soundness.killed_training FOLDER DYING_STEP SAVE_FREQ
"""

import os
import signal
import sys
from pathlib import Path

import keras
import numpy as np

import keras_adaclip as ka
from tests.soundness.setups import dp_sgd, flat_weights, pure_noise_data, pure_noise_model

SEED, BATCH_SIZE, STEPS_PER_EPOCH, EPOCHS = 5, 4, 3, 3


class Notes(keras.callbacks.Callback):
    """Writes the weights to `FOLDER/weights-STEP.npy` after each step."""

    def __init__(self, folder, dying_step=None):
        super().__init__()
        self.folder, self.dying_step, self.step = Path(folder), dying_step, 0

    def on_train_begin(self, logs=None):
        self.note()

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        self.note()
        if self.step == self.dying_step:
            os.kill(os.getpid(), signal.SIGKILL)

    def note(self):
        np.save(self.folder / f"weights-{self.step:03d}.npy", flat_weights(self.model))


def model():
    return pure_noise_model(dp_sgd(ka.clipping.QuantileClipping(count_noise_stddev=5.0), seed=SEED))


def train(trained, folder, notes, save_freq):
    """Trains to the end of the last epoch, from the backup in the folder if there is one."""
    backup = keras.callbacks.BackupAndRestore(
        Path(folder) / "backup", save_freq=save_freq, delete_checkpoint=False
    )
    trained.fit(
        *pure_noise_data(),
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        steps_per_epoch=STEPS_PER_EPOCH,
        verbose=0,
        callbacks=[backup, notes],
    )


if __name__ == "__main__":
    folder, dying_step, save_freq = sys.argv[1:]
    notes = Notes(folder, int(dying_step))
    train(model(), folder, notes, int(save_freq) if save_freq.isdigit() else save_freq)
