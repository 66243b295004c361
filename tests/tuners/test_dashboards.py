"""What a search shows: callbacks that are copied for each trial, and TensorBoard's HParams."""

import copy

import keras
import keras_tuner
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.tuners import ClippingHyperModel

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


def hypermodel():
    def build_model():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])

    return ClippingHyperModel(
        build_model,
        num_examples=32,
        epochs=1,
        noise_multiplier=1.0,
        batch_sizes=(8,),
        strategies=("quantile",),
        loss="binary_crossentropy",
    )


def trained_model(callbacks):
    space = hypermodel()
    hp = keras_tuner.HyperParameters()
    model = space.build(hp)
    return space.fit(hp, model, X, Y, callbacks=callbacks, verbose=0).history


def test_callbacks_can_be_copied_for_each_trial():
    fresh = [
        ka.callbacks.PrivacyCallback(delta=1e-3, target_epsilon=50.0, accountant="rdp"),
        ka.callbacks.ClippingMonitor(),
    ]
    used = copy.deepcopy(fresh)
    first = trained_model(used)
    for callbacks in (copy.deepcopy(fresh), copy.deepcopy(used)):
        privacy, monitor = callbacks
        assert (privacy.delta, privacy.target_epsilon, privacy.accountant) == (1e-3, 50.0, "rdp")
        assert monitor.private_diagnostics is False
    # What an earlier trial has left in them does not count again.
    second = trained_model(callbacks)
    assert first["epsilon"] == second["epsilon"]
    assert {"clip_norm", "unclipped_fraction"} <= set(second)


def test_a_search_shows_hyperparameters_and_epsilon_of_every_trial(tmp_path):
    tuner = keras_tuner.RandomSearch(
        hypermodel(), objective="val_loss", max_trials=2, directory=tmp_path, project_name="search"
    )
    callbacks = [
        ka.callbacks.PrivacyCallback(delta=1e-3, accountant="rdp"),
        ka.callbacks.ClippingMonitor(),
    ]
    # keras-tuner logs HParams on TensorFlow only.
    is_on_tensorflow = keras.backend.backend() == "tensorflow"
    if is_on_tensorflow:
        callbacks.append(keras.callbacks.TensorBoard(tmp_path / "logs"))
    tuner.search(X, Y, validation_data=(X, Y), callbacks=callbacks, verbose=0)
    trials = tuner.oracle.trials.values()
    spent = [trial.metrics.get_best_value("epsilon") for trial in trials]
    # Each trial is counted from nothing.
    assert len(spent) == 2
    assert spent[0] == spent[1] > 0
    assert all(trial.metrics.exists("clip_norm") for trial in trials)
    for trial in trials if is_on_tensorflow else ():
        folder = tmp_path / "logs" / trial.trial_id / "execution0"
        assert shown_by_tensorboard(folder) == pytest.approx(trial.hyperparameters.values)
        assert "epoch_epsilon" in scalars_in_tensorboard(folder / "train")


def shown_by_tensorboard(folder):
    """The hyperparameters in a folder's event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    events = EventAccumulator(str(folder)).Reload()
    summary = events.SummaryMetadata("_hparams_/session_start_info")
    content = plugin_data_pb2.HParamsPluginData.FromString(summary.plugin_data.content)
    return {
        name: value.string_value or value.number_value
        for name, value in content.session_start_info.hparams.items()
    }


def scalars_in_tensorboard(folder):
    """The names of what was logged by epoch."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload().Tags()["tensors"]
