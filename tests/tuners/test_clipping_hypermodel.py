"""`ClippingHyperModel` under keras-tuner's tuners: what each trial spends, what is refused."""

import warnings

import keras
import keras_tuner
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.accounting import ledger_epsilon, read_ledger
from keras_adaclip.tuners import ClippingHyperModel, clipping_choices
from keras_adaclip.tuners.choices import STRATEGIES

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


def search(name, space, folder, *, objective="val_loss", callbacks=(), units=None, **arguments):
    """The trials of a search with one of keras-tuner's tuners, and what each model has spent."""
    tuner = getattr(keras_tuner, name)(
        space, objective=objective, directory=folder, project_name="search", seed=0, **arguments
    )
    ledgers = []
    validation = {"validation_data": (X, Y)} if isinstance(objective, str) else {}
    with warnings.catch_warnings(record=True) as warned:
        warnings.filterwarnings("always", ".*not counted")
        options = {**validation, **(units or {})}
        tuner.search(X, Y, verbose=0, callbacks=[*callbacks, Ledgers(ledgers)], **options)
    # Once a search, not at every trial.
    assert ["tuners.PrivateSearch" in str(each.message) for each in warned] == [True]
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


# Of 32 rows, 26 stay: one person has eight, the others have one or two.
UNITS = {"unit_ids": np.maximum(np.arange(32) // 2, 3), "max_rows_per_unit": 2}


@pytest.mark.parametrize("name", ["RandomSearch", "Hyperband"])
def test_every_trial_spends_the_target_for_a_person(tmp_path, name):
    space = hypermodel(target_epsilon=TARGET, num_examples=26, max_rows_per_unit=2)
    lengths = {"Hyperband": {"max_epochs": 2, "factor": 2}}
    options = lengths.get(name, {"max_trials": 2})
    tuner, trials, ledgers = search(name, space, tmp_path, units=UNITS, **options)
    assert len(ledgers) == len(trials) >= 2
    for trial, ledger in zip(trials, ledgers, strict=True):
        assert {(row.rows_per_unit, row.num_examples) for row in ledger} == {(2, 26)}
        assert ledger.is_covered_by(space.privacy_plan(trial.hyperparameters))
    assert 0.99 * TARGET < max(ledger_epsilon(each, DELTA, "rdp") for each in ledgers) <= TARGET
    (best,) = tuner.get_best_models(1)
    spent = best.privacy_spent(DELTA, "rdp")
    assert (spent.unit, spent.rows_per_unit) == ("person", 2)
    assert spent.epsilon <= TARGET


def test_models_of_an_own_hypermodel_say_that_the_search_is_not_counted(tmp_path):
    def build(hp):
        model = ka.privatize(build_model())
        rate = hp.Float("learning_rate", 0.01, 0.1)
        inner = keras.optimizers.SGD(rate)
        model.compile(ka.optimizers.DPOptimizer(inner, noise_multiplier=1.0), "mse")
        return model

    tuner, _, _ = search("RandomSearch", build, tmp_path, max_trials=2)
    (best,) = tuner.get_best_models(1)
    assert "not counted" in best.privacy_report(DELTA, group_sizes=()).tuning


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

HP = keras_tuner.HyperParameters
FATAL = keras_tuner.errors.FatalValueError


def run(space, **kwargs):
    model = space.build(hp := HP())
    return space.fit(hp, model, X, Y, verbose=0, **kwargs)


def recompiled():
    """A space whose model gets another optimizer after `build`."""
    space = hypermodel()
    build = space.build

    def other(hp):
        model = build(hp)
        model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=0.1), loss="mse")
        return model

    space.build = other
    return space


def sharing_weights():
    shared = build_model()
    space = hypermodel(build_model=lambda: shared)
    # Arguments may be given their defaults.
    assert len(run(space, batch_size=None, steps_per_epoch=None, sampling="poisson").epoch) == 2
    return space


class LowersTheNoise(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.noise_multiplier = 0.05


class TrainsAfterwards(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        self.model.optimizer.end_run()
        self.model.train_on_batch(X, Y)


def of_persons():
    return hypermodel(max_rows_per_unit=3)


def without_shape():
    return hypermodel(build_model=lambda: keras.Sequential([keras.layers.Dense(1)]))


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (hypermodel, {"batch_size": 8}, "`batch_size` must be left out"),
        (hypermodel, {"steps_per_epoch": 9}, "`steps_per_epoch` must be left out"),
        (hypermodel, {"sampling": "shuffle"}, "`sampling` must be left out"),
        (hypermodel, UNITS, r"Received: .* max_rows_per_unit=2, .*\(max_rows_per_unit=None\)"),
        (of_persons, UNITS, r"Received: .* max_rows_per_unit=2, .*\(max_rows_per_unit=3\)"),
        (of_persons, {}, r"Received: unit_ids of type NoneType, max_rows_per_unit=None"),
        (of_persons, {"max_rows_per_unit": 3}, r"Received: unit_ids of type NoneType"),
        (hypermodel, {"epochs": 3}, "at most 2, for which the noise was calibrated"),
        (hypermodel, {"validation_split": 0.25}, "Received: .* of 24.*; planned: .* of 32"),
        (hypermodel, {"callbacks": [LowersTheNoise()]}, "would spend more than planned"),
        (hypermodel, {"callbacks": [TrainsAfterwards()]}, "would spend more than planned"),
        (recompiled, {}, r"Received: .* z = 0\.1; planned: .* z = 1"),
        (sharing_weights, {}, "would spend more than planned"),
        (without_shape, {}, "knows its input shape"),
        (lambda: hypermodel(target_epsilon=1e9), {}, "target_epsilon"),
    ],
)
def test_what_would_spend_more_than_planned_ends_the_search(make, arguments, words):
    space = make()
    with pytest.raises(FATAL, match=words):
        run(space, **arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"noise_multiplier": None}, ValueError, "Exactly one of"),
        ({"target_epsilon": 1.0, "delta": None}, TypeError, "`delta`"),
        ({"max_rows_per_unit": 0}, ValueError, "`max_rows_per_unit`"),
        ({"batch_sizes": (8, 64)}, ValueError, "`batch_sizes` must lie between 1 and 32"),
        ({"optimizer": keras.optimizers.SGD(clipnorm=1.0)}, ValueError, "`clipnorm`"),
        ({"build_model": "model"}, TypeError, "'model' is not a callable object"),
    ],
)
def test_arguments_are_checked(arguments, error, words):
    with pytest.raises(error, match=words):
        hypermodel(**arguments).build(HP())


# `clipping_choices`: the hyperparameters of a strategy, and the strategy that they make


def hyperparameters(**values):
    hp = keras_tuner.HyperParameters()
    hp.values.update(values)
    return hp


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_can_be_chosen(strategy):
    hp = hyperparameters(clipping=strategy)
    assert isinstance(
        clipping_choices(hp, STRATEGIES, total_steps=100), ka.clipping.ClippingStrategy
    )
    assert "decay_rate" in hp.values or strategy != "exponential"
    assert "target_quantile" in hp.values or strategy != "quantile"


def test_the_values_reach_the_strategy():
    hp = hyperparameters(
        clipping="quantile", clip_norm=0.7, target_quantile=0.3, clip_norm_learning_rate=0.4
    )
    config = clipping_choices(hp, statistics_noise_stddev=5.0).get_config()
    names = ("initial_clip_norm", "target_quantile", "learning_rate", "count_noise_stddev")
    assert [config[name] for name in names] == [0.7, 0.3, 0.4, 5.0]
    hp = hyperparameters(clipping="power", clip_norm=0.7, decay_power=0.45)
    schedule = clipping_choices(hp).schedule
    assert (schedule.initial_value, schedule.power) == (0.7, 0.45)


def test_ranges_take_the_place_of_the_usual_ones():
    hp = hyperparameters(clipping="quantile")
    ranges = {"clip_norm": (0.2, 0.4), "clip_norm_learning_rate": (0.25, 0.25)}
    clipping = clipping_choices(hp, ranges=ranges)
    space = {part.name: part for part in hp.space}
    norm = space["clip_norm"]
    assert (norm.min_value, norm.max_value, norm.sampling) == (0.2, 0.4, "log")
    assert space["target_quantile"].sampling == "linear"
    assert clipping.learning_rate == 0.25
    assert isinstance(space["clip_norm_learning_rate"], keras_tuner.engine.hyperparameters.Fixed)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"strategies": ["fixed", "median"]}, ValueError, "`strategies` must be one of"),
        ({"strategies": ["linear"]}, TypeError, "`total_steps` must be an integer"),
        ({"ranges": {"norm": (1.0, 2.0)}}, ValueError, "`ranges` must be one of 'clip_norm', "),
        ({"ranges": {"clip_norm": (0.0, 1.0)}}, ValueError, "must be positive"),
    ],
)
def test_arguments_of_choices_are_checked(arguments, error, words):
    with pytest.raises(error, match=words):
        clipping_choices(hyperparameters(), **arguments)
