"""Schedules of noise and of thresholds: what runs is what the schedule says, and is accounted."""

import math

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.callbacks import PrivacyCallback
from tests.soundness import setups

DELTA = 1e-3


@pytest.mark.parametrize("mode", setups.MODES)
def test_each_epoch_has_the_noise_of_its_first_step(mode):
    """The schedule falls by a factor of four an epoch; equal noises of its two steps would double.

    This measures the noise in every mode of compilation.
    """
    schedule = ka.schedules.ExponentialDecay(8.0, 4.0, 2)
    model = setups.pure_noise_model(setups.dp_sgd(0.7, schedule), **setups.MODES[mode])
    recorder = setups.recorded_fit(model, *setups.pure_noise_data(15), 5, 3, steps_per_epoch=2)
    assert setups.steps_and_noise(model) == [(8.0, 2), (2.0, 2), (0.5, 2)]
    for update, noise_multiplier in zip(recorder.updates, (8.0, 2.0, 0.5), strict=True):
        setups.spread(update, noise_multiplier * 0.7 / 5 * math.sqrt(2))
    setups.assert_all_different(recorder.updates)


def test_a_later_fit_goes_on_with_the_schedule_and_a_loaded_model_too(tmp_path):
    schedule = ka.schedules.PiecewiseConstant([3.0, 2.0, 1.0, 0.5])
    model = setups.pure_noise_model(setups.dp_sgd(1.0, schedule))
    for num_epochs in (2, 1):
        setups.recorded_fit(model, *setups.pure_noise_data(15), 5, num_epochs, steps_per_epoch=3)
    assert setups.steps_and_noise(model) == [(3.0, 3), (2.0, 3), (1.0, 3)]
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    recorder = setups.recorded_fit(loaded, *setups.pure_noise_data(15), 5, 2, steps_per_epoch=3)
    assert setups.steps_and_noise(loaded) == [(3.0, 3), (2.0, 3), (1.0, 3), (0.5, 6)]
    setups.spread(recorder.updates, 0.5 / 5 * math.sqrt(3))


@pytest.mark.parametrize(
    ("sampling", "steps_per_epoch"), [("poisson", None), ("poisson", 3), ("shuffle", None)]
)
def test_a_calibrated_schedule_spends_the_budget_as_planned(sampling, steps_per_epoch):
    shape = ka.schedules.ExponentialDecay(1.0, 2.0, 6)
    plan = {"epochs": 3, "steps_per_epoch": steps_per_epoch, "sampling": sampling}
    schedule = ka.accounting.calibrate_noise_multiplier(
        2.0, DELTA, 60, 12, noise_schedule=shape, **plan
    )
    model = setups.line_model(setups.dp_sgd(1.0, schedule))
    model.fit(*setups.line_data([1.0] * 60), batch_size=12, verbose=0, **plan)
    assert [steps for _, steps in setups.steps_and_noise(model)] == [steps_per_epoch or 5] * 3
    spent = model.privacy_spent(DELTA).epsilon
    assert 2.0 * 0.995 < spent <= 2.0
    planned = ka.accounting.compute_epsilon(schedule, 60, 12, delta=DELTA, **plan)
    assert spent == pytest.approx(planned, rel=1e-6)


@pytest.mark.parametrize(
    ("sampling", "values"),
    [
        ("poisson", [20.0, 20.0, 10.0, 0.3]),
        ("shuffle", [20.0, 20.0, 10.0, 0.3]),
        ("poisson", [20.0, 2.0]),
    ],
)
def test_training_stops_before_the_step_whose_noise_is_too_little(sampling, values):
    """The noise falls, so that the first epoch's noise says nothing of what later ones cost."""
    model = setups.line_model(setups.dp_sgd(1.0, ka.schedules.PiecewiseConstant(values)))
    options = {"callbacks": [PrivacyCallback(DELTA, target_epsilon=1.5)], "sampling": sampling}
    options |= {"batch_size": 10, "epochs": 10, "verbose": 0}
    history = model.fit(*setups.line_data([1.0] * 40), **options).history
    spent = model.privacy_spent(DELTA).epsilon
    assert spent <= 1.5
    if len(values) > 2:
        assert setups.steps_and_noise(model) == [(20.0, 8), (10.0, 4)]
        assert history["epsilon"][-1] == spent
        return
    first, second = model.optimizer.ledger
    assert (first.steps, first.noise_multiplier) == (4, 20.0)
    assert second.steps % 4
    assert ka.accounting.ledger_epsilon([first, second.advance(1)], DELTA) > 1.5


def test_a_number_that_a_callback_sets_takes_effect_at_the_next_epoch():
    model = setups.pure_noise_model(setups.dp_sgd(1.0, 4.0))

    def lower(epoch, logs):
        model.optimizer.noise_multiplier = 1.0

    callback = keras.callbacks.LambdaCallback(on_epoch_begin=lower)
    options = {"callbacks": [callback], "sampling": "shuffle"}
    recorder = setups.recorded_fit(model, *setups.pure_noise_data(15), 5, 2, **options)
    assert setups.steps_and_noise(model) == [(4.0, 1), (1.0, 1)]
    for update, noise_multiplier in zip(recorder.updates, (4.0, 1.0), strict=True):
        setups.spread(update, noise_multiplier / 5)


# Thresholds


@pytest.mark.parametrize("mode", setups.MODES)
def test_a_scheduled_threshold_clips_step_by_step(mode, monkeypatch):
    """Every example is clipped, so that a step adds clip norm times drawn over expected."""
    schedule = ka.schedules.LinearDecay(0.8, 4)
    per_epoch = setups.MODES[mode].get("steps_per_execution", 1)
    norms = [schedule.value_at(step) for step in range(7)]
    setups.fix_draws(monkeypatch, [range(4)])
    model = setups.line_model(setups.dp_sgd(schedule, 0.0), **setups.MODES[mode])
    recorder = setups.recorded_fit(
        model, *setups.line_data([1e6] * 8), 4, 6 // per_epoch, per_epoch
    )
    added = np.reshape(norms[:6], (-1, per_epoch)).sum(axis=1)
    np.testing.assert_allclose(recorder.updates[:, 0], added, rtol=1e-5)
    np.testing.assert_allclose(recorder.clip_norms, norms[::per_epoch], rtol=1e-6)


@pytest.mark.parametrize("mode", setups.COMPILED)
def test_fit_tells_a_schedule_how_many_steps_an_epoch_has(mode):
    model = setups.line_model(
        setups.dp_sgd(ka.schedules.PowerDecay(1.0, 0.5)), **setups.COMPILED[mode]
    )
    recorder = setups.recorded_fit(model, *setups.line_data([1.0] * 8), 2, 3, steps_per_epoch=None)
    # The norm of the next step, which is the first one of the next epoch.
    np.testing.assert_allclose(recorder.clip_norms, [1, 2**-0.5, 3**-0.5, 0.5], rtol=1e-6)
    # Twelve steps were taken; with two an epoch the seventh epoch begins.
    setups.recorded_fit(model, *setups.line_data([1.0] * 8), 4, 1, steps_per_epoch=2)
    assert model.optimizer.clip_norm == pytest.approx(8**-0.5)


@pytest.mark.parametrize("is_noise", [False, True])
def test_a_schedule_of_epochs_without_their_length_is_refused_with_nothing_changed(is_noise):
    schedule = ka.schedules.PowerDecay(1.0)
    model = setups.line_model(setups.dp_sgd(1.0, schedule) if is_noise else setups.dp_sgd(schedule))
    before = setups.flat_weights(model)
    with pytest.raises(ValueError, match="`steps_per_epoch`"):
        model.train_on_batch(*setups.line_data([1.0] * 8))
    np.testing.assert_array_equal(setups.flat_weights(model), before)
    assert model.optimizer.ledger.steps == 0
