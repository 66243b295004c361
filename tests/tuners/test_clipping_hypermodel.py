"""`ClippingHyperModel` under keras-tuner's tuners: what each trial spends, what is refused."""

import keras
import keras_tuner
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.accounting import ledger_epsilon, read_ledger
from keras_adaclip.tuners import ClippingHyperModel

DELTA = 1e-3
TARGET = 3.0
X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


def build_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])


def hypermodel(**arguments):
    settings = {
        "build_model": build_model,
        "num_examples": 32,
        "epochs": 2,
        "delta": DELTA,
        "noise_multiplier": None if "target_epsilon" in arguments else 1.0,
        "batch_sizes": (8, 16),
        "learning_rates": (0.1, 0.3),
        "strategies": ("fixed",),
        "loss": "binary_crossentropy",
        "accountant": "rdp",
    }
    return ClippingHyperModel(**{**settings, **arguments})


class Ledgers(keras.callbacks.Callback):
    """Keeps what each model had spent when its training ended; copies share the list."""

    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def __deepcopy__(self, memo):
        return Ledgers(self.kept)

    def on_train_end(self, logs=None):
        self.kept.append(self.model.privacy_ledger)


class Epoch(keras.callbacks.Callback):
    """An objective that finds the first epoch of every run the best one."""

    def on_epoch_end(self, epoch, logs=None):
        logs["val_epoch"] = float(epoch)


FIRST_EPOCH = keras_tuner.Objective("val_epoch", "min")


def search(name, space, folder, *, objective="val_loss", callbacks=(), **arguments):
    """The trials of a search with one of keras-tuner's tuners, and what each model has spent."""
    tuner = getattr(keras_tuner, name)(
        space, objective=objective, directory=folder, project_name="search", seed=0, **arguments
    )
    ledgers = []
    validation = {"validation_data": (X, Y)} if isinstance(objective, str) else {}
    tuner.search(X, Y, verbose=0, callbacks=[*callbacks, Ledgers(ledgers)], **validation)
    trials = list(tuner.oracle.trials.values())
    assert [trial.message for trial in trials if trial.status != "COMPLETED"] == []
    return tuner, trials, ledgers


def test_every_trial_spends_the_target_at_its_batch_size(tmp_path):
    space = hypermodel(target_epsilon=TARGET)
    monitors = [
        ka.callbacks.PrivacyCallback(DELTA, accountant="rdp"),
        ka.callbacks.ClippingMonitor(),
    ]
    tuner, trials, ledgers = search(
        "RandomSearch", space, tmp_path, max_trials=4, callbacks=monitors
    )
    assert len(trials) == 4
    for trial, ledger in zip(trials, ledgers, strict=True):
        epsilon = ledger_epsilon(ledger, DELTA, "rdp")
        assert 0.99 * TARGET < epsilon <= TARGET
        assert {row.expected_batch_size for row in ledger} == {trial.hyperparameters["batch_size"]}
        assert list(space.privacy_plan(trial.hyperparameters)) == list(ledger)
        assert ledger.promised_delta == DELTA
        # Each trial has copies of the callbacks, which begin anew.
        assert trial.metrics.get_history("epsilon")[0].mean() <= epsilon
        assert trial.metrics.exists("clip_norm")
    assert {ledger.steps for ledger in ledgers} == {4, 8}
    (best,) = tuner.get_best_models(1)
    assert best.privacy_spent(DELTA, "rdp").epsilon <= TARGET
    assert "4 have begun" in best.privacy_report(DELTA, group_sizes=()).tuning


def test_hyperband_goes_on_where_the_trial_before_ended(tmp_path):
    # The checkpoint is of the first epoch of two.
    space = hypermodel(target_epsilon=TARGET, batch_sizes=(8,), epochs=3)
    tuner, trials, ledgers = search(
        "Hyperband",
        space,
        tmp_path,
        objective=FIRST_EPOCH,
        callbacks=[Epoch()],
        max_epochs=3,
        factor=2,
    )
    plan = space.privacy_plan(trials[0].hyperparameters)
    assert 0.99 * TARGET < ledger_epsilon(plan, DELTA, "rdp") <= TARGET
    lengths = []
    for trial, ledger in zip(trials, ledgers, strict=True):
        begin, end = (trial.hyperparameters.get(f"tuner/{n}") for n in ("initial_epoch", "epochs"))
        lengths.append((begin, end))
        assert ledger.steps == 4 * end
        assert ledger.is_covered_by(plan)
        file = tmp_path / "search" / f"trial_{trial.trial_id}" / "checkpoint.weights.h5"
        saved = read_ledger(file)
        assert ledger.is_covered_by(saved)
        assert saved.is_covered_by(plan)
    assert set(lengths) == {(0, 2), (2, 3), (0, 3)}
    best_trials = tuner.oracle.get_best_trials(len(trials))
    for trial, model in zip(best_trials, tuner.get_best_models(len(trials)), strict=True):
        assert model.privacy_ledger.is_covered_by(plan)
        assert model.privacy_ledger.steps == 4 * trial.hyperparameters.get("tuner/epochs")


def test_the_best_epoch_carries_the_whole_run_and_every_execution_costs(tmp_path):
    tuner, _, ledgers = search(
        "RandomSearch",
        hypermodel(batch_sizes=(8,)),
        tmp_path,
        objective=FIRST_EPOCH,
        callbacks=[Epoch()],
        max_trials=1,
        executions_per_trial=2,
    )
    assert [ledger.steps for ledger in ledgers] == [8, 8]
    (best,) = tuner.get_best_models(1)
    # Its weights are those of four steps; which epoch was taken depends on eight.
    assert int(best.optimizer.iterations) == 4
    assert best.privacy_ledger.steps == 8


def test_with_noise_multiplier_changes_nothing_else():
    optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
    space = hypermodel(optimizer=optimizer, ranges={"clip_norm": (1.0, 2.0)})
    other = space.with_noise_multiplier(1.5)
    hps = [keras_tuner.HyperParameters() for _ in range(2)]
    models = [each.build(hp) for each, hp in zip((space, other), hps, strict=True)]
    assert hps[0].get_config() == hps[1].get_config()
    assert [model.optimizer.noise_multiplier for model in models] == [1.0, 1.5]
    for model in models:
        assert model.optimizer.inner_optimizer.momentum == 0.9
        assert float(model.optimizer.learning_rate) == pytest.approx(0.1)
        assert model.optimizer.inner_optimizer is not optimizer


# What would break the promise


def run(space, *args, **kwargs):
    hp = keras_tuner.HyperParameters()
    model = space.build(hp)
    return space.fit(hp, model, *(args or (X, Y)), verbose=0, **kwargs)


FATAL = keras_tuner.errors.FatalValueError


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 8}, "`batch_size` must be left out"),
        ({"steps_per_epoch": 9}, "`steps_per_epoch` must be left out"),
        ({"sampling": "shuffle"}, "`sampling` must be left out"),
        ({"epochs": 3}, "at most 2, for which the noise was calibrated"),
        ({"validation_split": 0.25}, "Received: .* of 24.*; planned: .* of 32"),
    ],
)
def test_arguments_of_search_that_contradict_the_plan_end_it(arguments, words):
    with pytest.raises(FATAL, match=words):
        run(hypermodel(), **arguments)


def test_another_optimizer_ends_the_search_before_a_step():
    hp, space = keras_tuner.HyperParameters(), hypermodel()
    model = space.build(hp)
    model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=0.1), loss="mse")
    with pytest.raises(FATAL, match=r"Received: .* z = 0\.1; planned: .* z = 1"):
        space.fit(hp, model, X, Y, verbose=0)


def test_arguments_of_search_may_be_given_their_defaults():
    history = run(hypermodel(), batch_size=None, steps_per_epoch=None, sampling="poisson")
    assert len(history.epoch) == 2


def test_trials_that_share_weights_end_the_search():
    shared = build_model()
    space = hypermodel(build_model=lambda: shared)
    run(space)
    with pytest.raises(FATAL, match="would spend more than planned"):
        run(space)


class LowersTheNoise(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.noise_multiplier = 0.05


class TrainsAfterwards(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        self.model.optimizer.end_run()
        self.model.train_on_batch(X, Y)


@pytest.mark.parametrize("callback", [LowersTheNoise, TrainsAfterwards])
def test_a_callback_that_spends_more_ends_the_search(callback):
    with pytest.raises(FATAL, match="would spend more than planned"):
        run(hypermodel(), callbacks=[callback()])


def test_models_that_cannot_serve_are_refused():
    def without_shape():
        return keras.Sequential([keras.layers.Dense(1)])

    hp = keras_tuner.HyperParameters()
    with pytest.raises(FATAL, match="knows its input shape"):
        hypermodel(build_model=without_shape).build(hp)
    with pytest.raises(FATAL, match="target_epsilon"):
        hypermodel(target_epsilon=1e9).build(hp)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"noise_multiplier": None}, ValueError, "Exactly one of"),
        ({"target_epsilon": 1.0, "delta": None}, TypeError, "`delta`"),
        ({"batch_sizes": (8, 64)}, ValueError, "`batch_sizes` must lie between 1 and 32"),
        ({"optimizer": keras.optimizers.SGD(clipnorm=1.0)}, ValueError, "`clipnorm`"),
        ({"build_model": "model"}, TypeError, "'model' is not a callable object"),
    ],
)
def test_arguments_are_checked(arguments, error, words):
    with pytest.raises(error, match=words):
        hypermodel(**arguments).build(keras_tuner.HyperParameters())
