"""With `private=True`, what runs besides a trial's epoch is refused, or counted where it ran."""

import os
import stat

import keras
import keras_tuner
import pytest

import keras_adaclip as ka
from keras_adaclip.tuners.project_files import write_whole
from tests.soundness.setups import line_data
from tests.tuners.test_greedy_clip_tuner import BATCH_SIZE, NUM_EXAMPLES, STEPS
from tests.tuners.test_greedy_privacy import private_build, search, tuner_in
from tests.tuners.test_greedy_privacy import tuner_of as public_tuner_in

OTHER_EPOCHS = 3


class Trains(keras_tuner.HyperModel):
    """Trains besides the epoch of the trial, as `other(model, x, y)` does."""

    def __init__(self, before=None, after=None, build=private_build):
        super().__init__()
        self.before, self.after, self.build_model = before, after, build

    def build(self, hp):
        return self.build_model(hp)

    def fit(self, hp, model, x, y, **kwargs):
        if self.before is not None:
            self.before(model, x, y)
        history = model.fit(x, y, **kwargs)
        if self.after is not None:
            self.after(model, x, y)
        return history


def fit(model, x, y):
    model.fit(x, y, batch_size=BATCH_SIZE, epochs=OTHER_EPOCHS, verbose=0)


def fit_around(model, x, y):
    """As a training loop of its own, which does not call the model's `fit`."""
    type(model).fit(model, x, y, batch_size=BATCH_SIZE, epochs=OTHER_EPOCHS, verbose=0)


def fit_around_with_less_noise(model, x, y):
    model.optimizer.noise_multiplier = 0.5
    fit_around(model, x, y)


def fit_and_die(model, x, y):
    fit_around(model, x, y)
    raise KeyboardInterrupt


def failed(tuner, error=RuntimeError, **options):
    with pytest.raises(error) as raised:
        search(tuner, **options)
    return str(raised.value)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_another_fit_is_refused_before_its_first_step(tmp_path, moment):
    tuner = tuner_in(tmp_path, Trains(**{moment: fit}))
    assert "`fit` without the callbacks" in failed(tuner)
    announced = {"before": 0, "after": STEPS}[moment]
    assert tuner.privacy_ledger.steps == announced


def test_a_callback_that_trains_is_refused_before_its_first_step(tmp_path):
    class TrainsOnBatch(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            self.model.train_on_batch(*line_data([1.0] * BATCH_SIZE))

    tuner = tuner_in(tmp_path)
    assert "a call of `train_on_batch`" in failed(tuner, callbacks=[TrainsOnBatch()])
    assert tuner.privacy_ledger.steps == 0


@pytest.mark.parametrize(
    ("moments", "error", "message", "rows"),
    [
        ({"before": fit_around}, RuntimeError, "6 steps that were not", {2.0: 3 * STEPS}),
        ({"after": fit_around}, RuntimeError, "6 steps that were not", {2.0: 4 * STEPS}),
        ({"before": fit_and_die}, KeyboardInterrupt, "", {2.0: 3 * STEPS}),
        ({"after": fit_and_die}, KeyboardInterrupt, "", {2.0: 4 * STEPS}),
        (
            {"after": fit_around_with_less_noise},
            RuntimeError,
            "6 steps that were not",
            {2.0: STEPS, 0.5: 3 * STEPS},
        ),
    ],
)
def test_what_ran_unannounced_is_counted(tmp_path, moments, error, message, rows):
    tuner = tuner_in(tmp_path, Trains(**moments))
    assert message in failed(tuner, error)
    assert {row.noise_multiplier: row.steps for row in tuner.privacy_ledger} == rows


def test_what_ran_unannounced_in_a_later_epoch_is_counted(tmp_path):
    """The steps of the trial that it goes on from were paid for by that one."""
    seen = []

    def third(model, x, y):
        seen.append(model.privacy_ledger.steps)
        if len(seen) == 3:
            fit_around(model, x, y)

    tuner = tuner_in(tmp_path, Trains(after=third))
    assert "6 steps that were not" in failed(tuner)
    assert seen == [STEPS, STEPS, 2 * STEPS]
    assert tuner.privacy_ledger.steps == 3 * STEPS + OTHER_EPOCHS * STEPS


def test_a_fit_without_the_epoch_of_the_trial_is_refused(tmp_path):
    class Idle(Trains):
        def fit(self, hp, model, x, y, **kwargs):
            return {"val_loss": 0.0}

    tuner = tuner_in(tmp_path, Idle())
    assert "0 epochs that were announced" in failed(tuner)


def test_scores_of_private_training_data_do_not_choose(tmp_path):
    with pytest.raises(ValueError, match="must begin with 'val_'"):
        tuner_in(tmp_path, objective="loss")
    tuner = tuner_in(tmp_path)
    with pytest.raises(ValueError, match="`validation_split` would take"):
        search(tuner, validation_split=0.25, validation_data=None)
    assert not tuner.oracle.trials

    class Splits(Trains):
        def fit(self, hp, model, x, y, validation_data, **kwargs):
            return model.fit(x, y, **kwargs, validation_split=0.25)

    tuner = tuner_in(tmp_path, Splits())
    assert "`validation_split` would take" in failed(tuner)
    assert tuner.privacy_ledger.steps == 0
    # Public data may be scored by.
    public_tuner_in(tmp_path / "public", objective="loss")


def poisson_data(seed):
    x, y = line_data([10.0] * NUM_EXAMPLES)
    return ka.sampling.PoissonDataset(x, y, expected_batch_size=BATCH_SIZE, seed=seed)


def test_seeded_draws_of_private_data_are_refused(tmp_path):
    """All trials would draw the same batches, and their amplification would not compose."""
    validation = {"validation_data": line_data([1.0] * 4), "verbose": 0}
    for args, kwargs in (((poisson_data(7),), {}), ((), {"x": poisson_data(7)})):
        tuner = tuner_in(tmp_path)
        with pytest.raises(ValueError, match="must draw its examples from the operating system"):
            tuner.search(*args, **kwargs, **validation)
        assert not tuner.oracle.trials

    class Draws(Trains):
        def fit(self, hp, model, x, y, batch_size, **kwargs):
            return model.fit(poisson_data(7), **kwargs)

    def seeded_later(hp):
        model = private_build(hp)
        model.optimizer.build = _with_seed(model.optimizer)
        return model

    for folder, hypermodel in (("made", Draws()), ("later", seeded_later)):
        tuner = tuner_in(tmp_path / folder, hypermodel)
        assert "must come from the operating system" in failed(tuner)
        assert tuner.privacy_ledger.steps == 0
    tuner = tuner_in(tmp_path / "unseeded", epochs=1)
    tuner.search(poisson_data(None), **validation)
    assert tuner.privacy_ledger.steps == 2 * STEPS


def _with_seed(optimizer):
    build = optimizer.build

    def seeded(variables):
        optimizer.seed = 7
        build(variables)

    return seeded


def test_an_account_outlives_the_machine(tmp_path, monkeypatch):
    """The file, and the names of the file and of its folder."""
    synced = []
    fsync = os.fsync

    def noted(descriptor):
        synced.append(os.fstat(descriptor))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    folder = tmp_path / "trial_0"
    folder.mkdir()
    write_whole(folder / "spent.json", "[]")
    assert synced == []
    write_whole(folder / "spent.json", "[]", is_lasting=True)
    assert stat.S_ISREG(synced[0].st_mode)
    assert [one.st_ino for one in synced[1:]] == [os.stat(f).st_ino for f in (folder, tmp_path)]
