"""Schedules of noise and of thresholds: what runs is what the schedule says, and is accounted."""

import math

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.callbacks import PrivacyCallback
from tests.soundness.setups import (
    COMPILED,
    MODES,
    dp_sgd,
    fix_draws,
    flat_weights,
    line_data,
    line_model,
    pure_noise_data,
    pure_noise_model,
    recorded_fit,
    spread,
)

DELTA = 1e-3


def rows(model):
    return [(row.noise_multiplier, row.steps) for row in model.optimizer.ledger]


@pytest.mark.parametrize("mode", MODES)
def test_each_epoch_has_the_noise_of_its_first_step(mode):
    """Two steps an epoch; the schedule falls by a factor of four an epoch."""
    schedule = ka.schedules.ExponentialDecay(8.0, 4.0, 2)
    model = pure_noise_model(dp_sgd(0.7, schedule), **MODES[mode])
    recorder = recorded_fit(model, *pure_noise_data(15), 5, 3, steps_per_epoch=2)
    assert rows(model) == [(8.0, 2), (2.0, 2), (0.5, 2)]
    for update, noise_multiplier in zip(recorder.updates, (8.0, 2.0, 0.5), strict=True):
        spread(update, noise_multiplier * 0.7 / 5 * math.sqrt(2))


def test_a_later_fit_goes_on_with_the_schedule_and_a_loaded_model_too(tmp_path):
    schedule = ka.schedules.PiecewiseConstant([3.0, 2.0, 1.0, 0.5])
    model = pure_noise_model(dp_sgd(1.0, schedule))
    x, y = pure_noise_data(15)
    recorded_fit(model, x, y, 5, 2, steps_per_epoch=3)
    assert rows(model) == [(3.0, 3), (2.0, 3)]
    recorded_fit(model, x, y, 5, 1, steps_per_epoch=3)
    assert rows(model) == [(3.0, 3), (2.0, 3), (1.0, 3)]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.noise_multiplier.get_config() == schedule.get_config()
    recorder = recorded_fit(loaded, x, y, 5, 2, steps_per_epoch=3)
    assert rows(loaded) == [(3.0, 3), (2.0, 3), (1.0, 3), (0.5, 6)]
    spread(recorder.updates, 0.5 / 5 * math.sqrt(3))


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_epsilon_is_that_of_the_composition(sampling):
    schedule = ka.schedules.LinearDecay(6.0, 10)
    model = pure_noise_model(dp_sgd(1.0, schedule))
    x, y = pure_noise_data(15)
    model.fit(x, y, batch_size=5, epochs=4, sampling=sampling, verbose=0)
    expected = ka.accounting.compute_epsilon(
        schedule, 15, 5, epochs=4, delta=DELTA, sampling=sampling
    )
    least, most = (
        ka.accounting.compute_epsilon(z, 15, 5, epochs=4, delta=DELTA, sampling=sampling)
        for z in (6.0, schedule.value_at(9))
    )
    assert model.privacy_spent(DELTA).epsilon == pytest.approx(expected, rel=1e-6)
    assert least < expected < most


def test_a_calibrated_schedule_spends_the_budget():
    shape = ka.schedules.ExponentialDecay(1.0, 2.0, 6)
    schedule = ka.accounting.calibrate_noise_multiplier(
        2.0, DELTA, 60, 12, epochs=3, noise_schedule=shape
    )
    model = line_model(dp_sgd(1.0, schedule))
    model.fit(*line_data([1.0] * 60), batch_size=12, epochs=3, verbose=0)
    assert len(rows(model)) == 3
    assert 2.0 * 0.995 < model.privacy_spent(DELTA).epsilon <= 2.0


def test_a_schedule_calibrated_for_shorter_epochs_spends_the_budget():
    shape = ka.schedules.ExponentialDecay(1.0, 2.0, 6)
    schedule = ka.accounting.calibrate_noise_multiplier(
        2.0, DELTA, 60, 6, epochs=4, steps_per_epoch=3, noise_schedule=shape
    )
    model = line_model(dp_sgd(1.0, schedule))
    x, y = line_data([1.0] * 60)
    model.fit(x, y, batch_size=6, epochs=4, steps_per_epoch=3, verbose=0)
    assert [steps for _, steps in rows(model)] == [3, 3, 3, 3]
    spent = model.privacy_spent(DELTA).epsilon
    assert 2.0 * 0.995 < spent <= 2.0
    planned = ka.accounting.compute_epsilon(
        schedule, 60, 6, epochs=4, steps_per_epoch=3, delta=DELTA
    )
    assert spent == pytest.approx(planned, rel=1e-6)


@pytest.mark.parametrize("sampling", ["poisson", "shuffle"])
def test_training_stops_before_the_epoch_whose_noise_is_too_little(sampling):
    """The noise falls, so that the first epoch's noise says nothing of what later ones cost."""
    schedule = ka.schedules.PiecewiseConstant([20.0, 20.0, 10.0, 0.3])
    model = line_model(dp_sgd(1.0, schedule))
    callback = PrivacyCallback(DELTA, target_epsilon=1.5)
    history = model.fit(
        *line_data([1.0] * 40),
        batch_size=10,
        epochs=10,
        sampling=sampling,
        callbacks=[callback],
        verbose=0,
    ).history
    assert rows(model) == [(20.0, 8), (10.0, 4)]
    assert history["epsilon"][-1] == model.privacy_spent(DELTA).epsilon <= 1.5


def test_training_stops_within_an_epoch_whose_noise_is_less():
    schedule = ka.schedules.PiecewiseConstant([20.0, 2.0])
    model = line_model(dp_sgd(1.0, schedule))
    callback = PrivacyCallback(DELTA, target_epsilon=1.5)
    x, y = line_data([1.0] * 40)
    model.fit(x, y, batch_size=10, epochs=10, callbacks=[callback], verbose=0)
    (first, second) = model.optimizer.ledger
    assert (first.steps, first.noise_multiplier) == (4, 20.0)
    assert second.steps % 4
    assert model.privacy_spent(DELTA).epsilon <= 1.5
    one_more = ka.accounting.ledger_epsilon([first, second.advance(1)], DELTA)
    assert one_more > 1.5


def test_a_number_that_a_callback_sets_takes_effect_at_the_next_epoch():
    model = pure_noise_model(dp_sgd(1.0, 4.0))

    def lower(epoch, logs):
        model.optimizer.noise_multiplier = 1.0

    callback = keras.callbacks.LambdaCallback(on_epoch_begin=lower)
    recorder = recorded_fit(model, *pure_noise_data(15), 5, 2, callbacks=[callback])
    assert rows(model) == [(4.0, 1), (1.0, 1)]
    for update, noise_multiplier in zip(recorder.updates, (4.0, 1.0), strict=True):
        spread(update, noise_multiplier / 5)


# Thresholds


@pytest.mark.parametrize("mode", MODES)
def test_a_scheduled_threshold_clips_and_noises_step_by_step(mode, monkeypatch):
    """Every example is clipped, so that a step adds clip norm times drawn over expected."""
    schedule = ka.schedules.LinearDecay(0.8, 4)
    per_epoch = MODES[mode].get("steps_per_execution", 1)
    norms = np.array([schedule.value_at(step) for step in range(6)])
    for noise_multiplier in (0.0, 5.0):
        fix_draws(monkeypatch, [range(4)])
        if noise_multiplier == 0.0:
            model = line_model(dp_sgd(schedule, 0.0), **MODES[mode])
            data = line_data([1e6] * 8)
        else:
            model = pure_noise_model(dp_sgd(schedule, noise_multiplier), **MODES[mode])
            data = pure_noise_data(8)
        recorder = recorded_fit(model, *data, 4, 6 // per_epoch, per_epoch)
        squares = norms.reshape(-1, per_epoch)
        if noise_multiplier == 0.0:
            np.testing.assert_allclose(recorder.updates[:, 0], squares.sum(axis=1), rtol=1e-5)
        else:
            for update, square in zip(recorder.updates, squares, strict=True):
                spread(update, noise_multiplier / 4 * math.sqrt(np.sum(square**2)))
        np.testing.assert_allclose(
            recorder.clip_norms, [schedule.value_at(s) for s in range(0, 7, per_epoch)], rtol=1e-6
        )


@pytest.mark.parametrize("mode", COMPILED)
def test_fit_tells_a_schedule_how_many_steps_an_epoch_has(mode):
    model = line_model(dp_sgd(ka.schedules.PowerDecay(1.0, 0.5)), **COMPILED[mode])
    recorder = recorded_fit(model, *line_data([1.0] * 8), 2, 3, steps_per_epoch=None)
    # The norm of the next step, which is the first one of the next epoch.
    np.testing.assert_allclose(recorder.clip_norms, [1, 2**-0.5, 3**-0.5, 0.5], rtol=1e-6)
    # Twelve steps were taken; with two an epoch the seventh epoch begins.
    recorder = recorded_fit(model, *line_data([1.0] * 8), 4, 1, steps_per_epoch=2)
    assert model.optimizer.clip_norm == pytest.approx(8**-0.5)


def test_a_schedule_of_epochs_without_their_length_is_refused_with_nothing_changed():
    x, y = line_data([1.0] * 8)
    for clipping, noise_multiplier in (
        (ka.schedules.PowerDecay(1.0), 1.0),
        (1.0, ka.schedules.PowerDecay(1.0)),
    ):
        model = line_model(dp_sgd(clipping, noise_multiplier))
        before = flat_weights(model)
        with pytest.raises(ValueError, match="`steps_per_epoch`"):
            model.train_on_batch(x, y)
        np.testing.assert_array_equal(flat_weights(model), before)
        assert model.optimizer.ledger.steps == 0
