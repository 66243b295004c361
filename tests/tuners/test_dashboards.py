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

tensorflow_only = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="keras-tuner logs HParams on TensorFlow only"
)


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


@pytest.mark.parametrize("is_used", [False, True])
def test_callbacks_can_be_copied_for_each_trial(is_used):
    callbacks = [
        ka.callbacks.PrivacyCallback(delta=1e-3, target_epsilon=50.0, accountant="rdp"),
        ka.callbacks.ClippingMonitor(),
    ]
    if is_used:
        trained_model(callbacks)
    privacy, monitor = copy.deepcopy(callbacks)
    assert privacy is not callbacks[0]
    assert (privacy.delta, privacy.target_epsilon, privacy.accountant) == (1e-3, 50.0, "rdp")
    assert monitor.private_diagnostics is False
    first, second = (trained_model(given) for given in (callbacks, [privacy, monitor]))
    assert first["epsilon"] == second["epsilon"]
    assert {"clip_norm", "unclipped_fraction"} <= set(second)


def test_epsilon_and_threshold_are_among_what_a_trial_reports(tmp_path):
    tuner = keras_tuner.RandomSearch(
        hypermodel(), objective="val_loss", max_trials=2, directory=tmp_path, project_name="search"
    )
    tuner.search(
        X,
        Y,
        validation_data=(X, Y),
        callbacks=[
            ka.callbacks.PrivacyCallback(delta=1e-3, accountant="rdp"),
            ka.callbacks.ClippingMonitor(),
        ],
        verbose=0,
    )
    spent = []
    for trial in tuner.oracle.trials.values():
        assert trial.metrics.exists("clip_norm")
        spent.append(trial.metrics.get_best_value("epsilon"))
    # Each trial is counted from nothing.
    assert len(spent) == 2
    assert spent[0] == spent[1] > 0


@tensorflow_only
def test_tensorboard_has_hyperparameters_and_epsilon_of_every_trial(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    tuner = keras_tuner.RandomSearch(
        hypermodel(), objective="val_loss", max_trials=2, directory=tmp_path, project_name="search"
    )
    tuner.search(
        X,
        Y,
        validation_data=(X, Y),
        callbacks=[
            keras.callbacks.TensorBoard(tmp_path / "logs"),
            ka.callbacks.PrivacyCallback(delta=1e-3, accountant="rdp"),
        ],
        verbose=0,
    )
    trials = tuner.oracle.trials
    assert len(trials) == 2
    for trial_id, trial in trials.items():
        folder = tmp_path / "logs" / trial_id / "execution0"
        summary = (
            EventAccumulator(str(folder)).Reload().SummaryMetadata("_hparams_/session_start_info")
        )
        content = plugin_data_pb2.HParamsPluginData.FromString(summary.plugin_data.content)
        shown = {
            name: value.string_value or value.number_value
            for name, value in content.session_start_info.hparams.items()
        }
        assert shown == pytest.approx(trial.hyperparameters.values)
        assert {"batch_size", "clipping", "target_quantile"} <= set(shown)
        scalars = EventAccumulator(str(folder / "train"), size_guidance={"tensors": 0}).Reload()
        assert "epoch_epsilon" in scalars.Tags()["tensors"]
