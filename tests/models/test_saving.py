"""Saved, loaded, resumed or compiled again: the ledger is kept, and never lowered."""

import keras
import numpy as np
import pytest

import keras_adaclip as ka
from tests.models import helpers

X, Y = helpers.features(), helpers.labels()
DELTA = 1e-3


def epsilon(model):
    return model.privacy_spent(DELTA).epsilon


def expected_epsilon(steps, noise_multiplier=1.0):
    return ka.accounting.compute_epsilon(noise_multiplier, 24, 6, steps=steps, delta=DELTA)


def quantile_model(noise_multiplier=1.0):
    return helpers.compiled(
        noise_multiplier=noise_multiplier,
        clipping=ka.clipping.QuantileClipping(count_noise_stddev=5.0),
    )


def trained(model=None, steps=3, **options):
    model = quantile_model() if model is None else model
    helpers.quiet_fit(model, X, Y, batch_size=6, steps_per_epoch=steps, **options)
    return model


def test_keras_file(tmp_path):
    model = trained()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, ka.PrivateModel)
    assert epsilon(loaded) == epsilon(model) == pytest.approx(expected_epsilon(3), rel=1e-6)
    assert loaded.optimizer.clip_norm == model.optimizer.clip_norm != 0.1
    assert int(loaded.optimizer.iterations) == 3
    for weight, other in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(weight, other)
    trained(loaded, 2)
    assert epsilon(loaded) == pytest.approx(expected_epsilon(5), rel=1e-6)


@keras.saving.register_keras_serializable(package="tests")
def by_name(variable):
    return variable.name


STRATEGIES = {
    "scheduled": lambda: ka.clipping.ScheduledClipping(ka.schedules.PowerDecay(0.5)),
    "automatic": lambda: ka.clipping.AutomaticClipping(0.4, groups="per_layer"),
    "mean": lambda: ka.clipping.MeanNormClipping(mean_noise_stddev=5.0, groups=by_name),
    "adaclip": lambda: ka.clipping.AdaClip(min_variance=1e-6, max_variance=1e-2),
    "quantile by layer": lambda: ka.clipping.QuantileClipping(
        count_noise_stddev=5.0, groups="per_layer", noise_allocation="optimal"
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("way", ["keras file", "weights file"])
def test_every_strategy_comes_back_as_it_was(name, way, tmp_path):
    """State, config and read-outs; training goes on from there."""
    model = trained(helpers.compiled(clipping=STRATEGIES[name]()))
    if way == "keras file":
        model.save(tmp_path / "model.keras")
        loaded = keras.models.load_model(tmp_path / "model.keras")
    else:
        model.save_weights(tmp_path / "run.weights.h5")
        loaded = helpers.compiled(clipping=STRATEGIES[name]())
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(tmp_path / "run.weights.h5")
    optimizer, other = model.optimizer, loaded.optimizer
    assert other.clipping.get_config() == optimizer.clipping.get_config()
    np.testing.assert_array_equal(other.clip_norm, optimizer.clip_norm)
    assert np.shape(other.clip_norm) == (
        (2,) if name in ("automatic", "quantile by layer", "mean") else ()
    )
    states = [
        {key: keras.ops.convert_to_numpy(value) for key, value in o.current_clipping.state.items()}
        for o in (optimizer, other)
    ]
    assert list(states[0]) == list(states[1])
    for key, value in states[0].items():
        np.testing.assert_array_equal(states[1][key], value)
    assert epsilon(loaded) == epsilon(model)
    trained(loaded, 2)
    assert epsilon(loaded) == pytest.approx(expected_epsilon(5), rel=1e-6)


def test_a_threshold_that_never_moves_is_the_compiled_one(tmp_path):
    model = trained(helpers.compiled(clipping=1.0))
    model.save_weights(tmp_path / "run.weights.h5")
    other = helpers.compiled(clipping=0.1)
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "run.weights.h5")
    trained(other, 1)
    assert other.optimizer.clip_norm == pytest.approx(0.1)
    assert epsilon(other) == pytest.approx(expected_epsilon(4), rel=1e-6)


def test_sequential_keras_file(tmp_path):
    layers = [keras.Input((helpers.NUM_FEATURES,)), *helpers.dense_layers()]
    model = trained(helpers.compiled(ka.PrivateSequential(layers)))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded) is ka.PrivateSequential
    assert epsilon(loaded) == epsilon(model)


def test_weights_file_into_a_fresh_model(tmp_path):
    model = trained()
    model.save_weights(tmp_path / "run.weights.h5")
    other = quantile_model()
    other.optimizer.build(other.trainable_variables)
    other.load_weights(tmp_path / "run.weights.h5")
    assert epsilon(other) == epsilon(model)
    assert other.optimizer.clip_norm == model.optimizer.clip_norm


def test_loaded_without_compiling(tmp_path):
    model = trained()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras", compile=False)
    assert epsilon(loaded) == epsilon(model)
    helpers.compiled(loaded, noise_multiplier=2.0)
    assert epsilon(loaded) == epsilon(model)
    trained(loaded, 2)
    spent = loaded.privacy_spent(DELTA)
    assert spent.steps == 5
    assert expected_epsilon(3) < spent.epsilon < expected_epsilon(5)


def test_compiling_again_carries_the_ledger_over():
    model = trained()
    before = epsilon(model)
    model.get_layer("hidden").trainable = False
    helpers.compiled(model, noise_multiplier=2.0)
    assert epsilon(model) == before
    trained(model, 1)
    middle = epsilon(model)
    assert middle > before
    model.get_layer("hidden").trainable = True
    with pytest.raises(ValueError, match="frozen or unfrozen"):
        trained(model, 1)
    helpers.compiled(model, noise_multiplier=1.0)
    trained(model, 2)
    assert model.privacy_spent(DELTA).steps == 6
    assert epsilon(model) > max(middle, expected_epsilon(5))


def test_rewinding_does_not_lower_epsilon(tmp_path):
    model = trained()
    model.save_weights(tmp_path / "early.weights.h5")
    trained(model)
    spent = epsilon(model)
    model.load_weights(tmp_path / "early.weights.h5")
    assert epsilon(model) == spent == pytest.approx(expected_epsilon(6), rel=1e-6)
    trained(model)
    assert epsilon(model) == pytest.approx(expected_epsilon(9), rel=1e-6)


def test_another_runs_checkpoint_adds_up(tmp_path):
    other = trained(steps=2)
    other.save_weights(tmp_path / "other.weights.h5")
    model = trained(steps=3)
    model.load_weights(tmp_path / "other.weights.h5")
    assert model.privacy_spent(DELTA).steps == 5


@pytest.mark.parametrize("save_weights_only", [True, False])
def test_model_checkpoint(tmp_path, save_weights_only):
    path = str(tmp_path / ("best.weights.h5" if save_weights_only else "best.keras"))
    checkpoint = keras.callbacks.ModelCheckpoint(path, save_weights_only=save_weights_only)
    model = trained(callbacks=[checkpoint])
    if save_weights_only:
        loaded = quantile_model()
        loaded.optimizer.build(loaded.trainable_variables)
        loaded.load_weights(path)
    else:
        loaded = keras.models.load_model(path)
    assert epsilon(loaded) == epsilon(model)


class Interrupts(keras.callbacks.Callback):
    """Presses Ctrl-C when an epoch begins."""

    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            raise KeyboardInterrupt


def resumable(folder):
    return keras.callbacks.BackupAndRestore(str(folder), delete_checkpoint=False)


def test_a_resumed_run_ends_where_the_uninterrupted_one_does(tmp_path):
    whole = quantile_model()
    helpers.quiet_fit(whole, X, Y, batch_size=6, epochs=3)
    first = quantile_model()
    with pytest.raises(KeyboardInterrupt):
        helpers.quiet_fit(
            first, X, Y, batch_size=6, epochs=3, callbacks=[resumable(tmp_path), Interrupts(1)]
        )
    assert first.privacy_spent(DELTA).steps == 4
    second = quantile_model()
    history = helpers.quiet_fit(
        second,
        X,
        Y,
        batch_size=6,
        epochs=3,
        callbacks=[resumable(tmp_path), ka.callbacks.PrivacyCallback(DELTA)],
    )
    assert second.privacy_ledger == whole.privacy_ledger
    assert history["epsilon"] == pytest.approx([expected_epsilon(8), expected_epsilon(12)])
    assert int(second.optimizer.iterations) == 12


def test_the_budget_of_a_resumed_run_holds_what_was_spent(tmp_path):
    first = quantile_model()
    with pytest.raises(KeyboardInterrupt):
        helpers.quiet_fit(
            first, X, Y, batch_size=6, epochs=9, callbacks=[resumable(tmp_path), Interrupts(2)]
        )
    target = expected_epsilon(11)
    second = quantile_model()
    stop = ka.callbacks.PrivacyCallback(DELTA, target_epsilon=target * (1 + 1e-9))
    helpers.quiet_fit(second, X, Y, batch_size=6, epochs=9, callbacks=[stop, resumable(tmp_path)])
    assert second.privacy_spent(DELTA).steps == 11
    third = quantile_model()
    spent_up = ka.callbacks.PrivacyCallback(DELTA, target_epsilon=expected_epsilon(8) * (1 + 1e-9))
    restored = keras.callbacks.BackupAndRestore(str(tmp_path), delete_checkpoint=False)
    with pytest.raises(ValueError, match="past the target"):
        helpers.quiet_fit(third, X, Y, batch_size=6, epochs=9, callbacks=[spent_up, restored])


def test_a_run_resumed_with_other_settings_accounts_for_them(tmp_path):
    first = quantile_model()
    with pytest.raises(KeyboardInterrupt):
        helpers.quiet_fit(
            first, X, Y, batch_size=6, epochs=3, callbacks=[resumable(tmp_path), Interrupts(1)]
        )
    second = quantile_model(noise_multiplier=0.8)
    helpers.quiet_fit(second, X, Y, batch_size=12, epochs=2, callbacks=[resumable(tmp_path)])
    rows = {
        (row.expected_batch_size, round(row.noise_multiplier, 6)): row.steps
        for row in second.privacy_ledger
        if row.steps
    }
    assert rows == {(6, 1.0): 4, (12, 0.8): 2}


def test_a_seeded_resumed_run_draws_other_rows(tmp_path, monkeypatch):
    seeds = []
    draw = ka.sampling.PoissonDataset.draw

    def recording(dataset):
        rows = draw(dataset)
        seeds.append((dataset.seed, tuple(rows)))
        return rows

    def model():
        return helpers.compiled(seed=11)

    first = model()
    with pytest.raises(KeyboardInterrupt):
        helpers.quiet_fit(
            first, X, Y, batch_size=6, epochs=3, callbacks=[resumable(tmp_path), Interrupts(1)]
        )
    monkeypatch.setattr(ka.sampling.PoissonDataset, "draw", recording)
    helpers.quiet_fit(model(), X, Y, batch_size=6, epochs=3, callbacks=[resumable(tmp_path)])
    assert seeds[-1][0] == 11 + (4 << 32)
