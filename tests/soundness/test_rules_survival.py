"""Rule 9: however a run is stopped, epsilon counts every step that led to its weights.

KERAS_ADACLIP_INTERRUPTIONS=50 tries as many random interruptions, instead of a few.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import dp_accounting
import keras
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

import keras_adaclip as ka
from tests.soundness import setups

DELTA = 1e-5
NUM_EXAMPLES, STEPS_PER_EPOCH, EPOCHS = 50, 3, 3
ROOT = Path(__file__).parents[2]
NUM_INTERRUPTIONS = int(os.environ.get("KERAS_ADACLIP_INTERRUPTIONS", "8"))


def quantile():
    return ka.clipping.QuantileClipping(count_noise_stddev=5.0)


class Notes(keras.callbacks.Callback):
    """Writes the weights to `FOLDER/weights-STEP.npy` after each step; may kill its process."""

    def __init__(self, folder, dying_step=None):
        super().__init__()
        self.folder, self.dying_step, self.step = folder, dying_step, -1

    def on_train_begin(self, logs=None):
        self.on_train_batch_end(0)

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        np.save(f"{self.folder}/weights-{self.step:03d}.npy", setups.flat_weights(self.model))
        if self.step == self.dying_step:
            os.kill(os.getpid(), signal.SIGKILL)


def train_with_backups(folder, notes, kind):
    """Trains on pure noise, seeded, from the backup in the folder if there is one."""
    x, y = setups.pure_noise_data()
    data, of_arrays = (x, y), {"batch_size": 4}
    if kind == "source":
        pairs = list(zip(x, y, strict=True))
        options = {"expected_batch_size": 4, "max_batch_size": 6, "workers": 1, "seed": 5}
        data, of_arrays = (ka.sampling.PoissonDataset.from_source(pairs, **options),), {}
    model = setups.pure_noise_model(setups.dp_sgd(quantile(), seed=5))
    backup = keras.callbacks.BackupAndRestore(
        f"{folder}/backup", save_freq=2, delete_checkpoint=False
    )
    run = {"epochs": EPOCHS, "steps_per_epoch": STEPS_PER_EPOCH, "verbose": 0, **of_arrays}
    model.fit(*data, callbacks=[backup, notes], **run)
    return model


TRAIN_AND_DIE = """
import sys
from tests.soundness.test_rules_survival import Notes, train_with_backups
train_with_backups(sys.argv[1], Notes(sys.argv[1], dying_step=7), sys.argv[2])
"""


@pytest.mark.parametrize("kind", ["arrays", "source"])
def test_a_killed_process_goes_on_with_its_ledger_and_other_noise(kind, tmp_path):
    """SIGKILL in the middle of the third epoch of a fit with a seed."""
    chosen = {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": keras.backend.backend()}
    options = {"capture_output": True, "text": True, "timeout": 300, "check": False}
    command = [sys.executable, "-c", TRAIN_AND_DIE, str(tmp_path), kind]
    killed = subprocess.run(command, env={**os.environ, **chosen}, **options)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-2000:]
    resumed_folder = tmp_path / "resumed"
    resumed_folder.mkdir()
    model = train_with_backups(tmp_path, Notes(resumed_folder), kind)
    before, after = (
        [np.load(path) for path in sorted(folder.glob("weights-*.npy"))]
        for folder in (tmp_path, resumed_folder)
    )
    kept = next(step for step, weights in enumerate(before) if np.array_equal(weights, after[0]))
    assert 0 < kept < 7 == len(before) - 1
    # Every epoch that was not complete is trained anew: never fewer steps than without the kill.
    whole = STEPS_PER_EPOCH * EPOCHS
    assert model.privacy_ledger.steps == kept + len(after) - 1 >= whole
    uninterrupted = ka.accounting.compute_epsilon(1.0, 12, 4, steps=whole, delta=DELTA)
    assert model.privacy_spent(DELTA).epsilon >= uninterrupted * (1 - 1e-9)
    # No step has the noise of a step that was lost, though the seed is the same.
    setups.assert_all_different([*np.diff(before, axis=0), *np.diff(after, axis=0)])


class Interruption(BaseException):
    """Caught by no handler, like the end of a process."""


class Interrupts(keras.callbacks.Callback):
    def __init__(self, moment):
        super().__init__()
        self.remaining = moment

    def tick(self, *arguments, **keywords):
        self.remaining -= 1
        if self.remaining < 0:
            raise Interruption

    on_train_begin = on_epoch_begin = on_epoch_end = tick
    on_train_batch_begin = on_train_batch_end = tick


def new_model(setting):
    optimizer = setups.dp_sgd(setting["clipping"], setting["noise_multiplier"], learning_rate=0.1)
    eager = keras.backend.backend() == "tensorflow"  # tracing each model would take seconds
    return setups.line_model(optimizer, run_eagerly=eager)


def resumed_by_backup(folder, setting, interruption):
    backup = keras.callbacks.BackupAndRestore(
        folder / "backup", save_freq=setting["save_freq"], delete_checkpoint=False
    )
    # The order decides whether a step is lost that a callback has seen.
    callbacks = [backup, *interruption] if setting["backs_up_first"] else [*interruption, backup]
    return new_model(setting), {"callbacks": callbacks}


def resumed_by_checkpoint(folder, setting, interruption):
    """By hand: the last checkpoint, and the epochs that are left."""
    weights_only = setting["save_freq"] == "epoch"
    ending = "weights.h5" if weights_only else "keras"
    done = sorted(folder.glob(f"*.{ending}"))
    model = setups.load(done[-1]) if done and not weights_only else new_model(setting)
    if done and weights_only:
        model.optimizer.build(model.trainable_variables)
        model.load_weights(done[-1])
    path = folder / f"{{epoch:02d}}.{ending}"
    saver = keras.callbacks.ModelCheckpoint(path, save_weights_only=weights_only)
    epochs_done = int(done[-1].name.partition(".")[0]) if done else 0
    return model, {"callbacks": [*interruption, saver], "initial_epoch": epochs_done}


@pytest.mark.parametrize("number", range(NUM_INTERRUPTIONS))
def test_an_interrupted_run_never_ends_with_a_lower_epsilon(number, tmp_path):
    """Up to three interruptions at random moments; `number` seeds the choice."""
    generator = np.random.default_rng(number)
    setting = {
        "clipping": quantile() if generator.random() < 0.5 else 1.0,
        # The ledger holds float32, nearer to it than the margin of the noise.
        "noise_multiplier": float(np.float32(generator.uniform(0.8, 2.0))),
        "backs_up_first": bool(generator.random() < 0.5),
        "save_freq": ("epoch", 2)[number // 2 % 2],
    }
    batch_size = int(generator.integers(12, 26))
    resumed = (resumed_by_backup, resumed_by_checkpoint)[number % 2]
    num_moments = 1 + EPOCHS * (2 + 2 * STEPS_PER_EPOCH)
    moments = generator.integers(num_moments, size=generator.integers(1, 4))
    run = {"batch_size": batch_size, "steps_per_epoch": STEPS_PER_EPOCH, "epochs": EPOCHS}
    for moment in [*moments, None]:
        interruption = [] if moment is None else [Interrupts(moment)]
        model, options = resumed(tmp_path, setting, interruption)
        with contextlib.suppress(Interruption):
            model.fit(*setups.line_data([1.0] * NUM_EXAMPLES), verbose=0, **run, **options)
    least = STEPS_PER_EPOCH * EPOCHS
    uninterrupted = ka.accounting.compute_epsilon(
        setting["noise_multiplier"], NUM_EXAMPLES, batch_size, steps=least, delta=DELTA
    )
    assert model.privacy_ledger.steps >= least
    assert model.privacy_spent(DELTA).epsilon >= uninterrupted * (1 - 1e-9)
    assert int(model.optimizer.iterations) <= model.privacy_ledger.steps


def test_all_that_changed_between_fits_is_composed():
    """Batch size, data set size, noise, clipping and sampling: against `dp_accounting` itself."""
    model = setups.line_model(setups.dp_sgd(quantile(), 1.0))

    def fit(num_examples, **options):
        x, y = setups.line_data([1.0] * num_examples)
        model.fit(x, y, verbose=0, **options)

    fit(40, batch_size=10, steps_per_epoch=2)
    fit(40, batch_size=20, steps_per_epoch=3)
    fit(80, batch_size=20, steps_per_epoch=4)
    model.optimizer.noise_multiplier = 1.5
    fit(80, batch_size=20, steps_per_epoch=5)
    model.compile(optimizer=setups.dp_sgd(0.5, 2.0), loss=model.loss, jit_compile=model.jit_compile)
    fit(80, batch_size=20, steps_per_epoch=6)
    fit(80, batch_size=20, epochs=2, sampling="shuffle")
    model.train_on_batch(*setups.line_data([1.0] * 20))

    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    poisson = [(10 / 40, 1.0, 2), (20 / 40, 1.0, 3), (20 / 80, 1.0, 4), (20 / 80, 1.5, 5)]
    for probability, noise_multiplier, count in [*poisson, (20 / 80, 2.0, 6), (1.0, 2.0, 2 + 1)]:
        event = dp_accounting.GaussianDpEvent(noise_multiplier)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(probability, event), count)
    # The steps have more noise than the ledger says, never less, so it may round that down.
    expected = accountant.get_epsilon(DELTA)
    assert expected * (1 - 1e-6) <= model.privacy_spent(DELTA).epsilon <= expected * (1 + 1e-3)
