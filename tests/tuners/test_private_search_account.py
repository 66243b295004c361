"""The cost of a private search: known before the first run, kept by every run, calibrated."""

import copy
import dataclasses
import functools

import keras
import keras_tuner
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.accounting import Ledger, RandomSelection, RunBounds
from keras_adaclip.callbacks import PrivacyCallback
from tests.tuners.hypermodels import (
    Regression,
    Scored,
    data,
    draw_numbers,
    files_below,
    planned,
    private_model,
    run,
    sampled,
    search_of,
)

DELTA = 1e-3


def built_by_function(hp):
    return private_model(hp.Float("learning_rate", 0.1, 0.2))


class Corners(Scored):
    """Spends more at one corner of the space, which few trials reach."""

    def build(self, hp):
        hp.Choice("level", [1, 2, 3])
        hp.Float("learning_rate", 1e-3, 1.0)
        kind = hp.Choice("kind", ["short", "long"])
        with hp.conditional_scope("kind", ["long"]):
            steps = hp.Int("steps", 10, 50, step=20)
            if kind == "long":
                assert steps is not None
        return private_model()

    def privacy_plan(self, hp):
        steps = hp.get("steps") if "steps" in hp else 8
        return planned(0.5 if hp.get("level") == 3 and steps == 50 else 2.0, steps)


def test_the_base_covers_every_corner_of_the_space(tmp_path):
    search = search_of(Corners(), tmp_path)
    levels, steps = (2.0, 2.0, 0.5), (8, 10, 30, 50)
    every = {planned(2.0, count) for count in steps} | {planned(levels[-1], 50)}
    expected = RunBounds(tuple(every)).selection_epsilon(RandomSelection(10), DELTA)
    assert search.privacy_spent(DELTA).epsilon == expected
    assert expected >= RandomSelection(10).epsilon(planned(0.5, 50), DELTA)


class ReadsARate(Regression):
    def __init__(self, read):
        super().__init__()
        self.read = read

    def privacy_plan(self, hp):
        return planned(1.0 + self.read(hp))


class ReadsTooMany(Regression):
    def build(self, hp):
        hp.Int("steps", 1, 10**9)
        return super().build(hp)

    def privacy_plan(self, hp):
        return planned(steps=hp.get("steps"))


class SpendsMore(Regression):
    """Takes an epoch more than it plans."""

    def __init__(self, noise_multiplier=2.0, epochs=3):
        super().__init__(noise_multiplier, epochs)


class SpendsMoreAndFails(SpendsMore):
    def fit(self, hp, model, x, y, callbacks, **arguments):
        super().fit(hp, model, x, y, **arguments)
        raise ValueError("something else")


class HasAnotherRow(Regression):
    """Takes the steps that it plans, half of them in larger batches."""

    def fit(self, hp, model, x, y, **arguments):
        model.fit(x, y, batch_size=16, steps_per_epoch=4, **arguments)
        return model.fit(x, y, batch_size=8, **arguments)


class ReplacesTheOptimizer(Regression):
    """Takes the steps that it plans, with less noise."""

    def fit(self, hp, model, *data, **arguments):
        model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=1.9), "mse")
        return super().fit(hp, model, *data, **arguments)


class SampledWithSeed(Regression):
    def fit(self, hp, model, x, y, **arguments):
        return model.fit(sampled(x, y, seed=7), epochs=self.epochs, **arguments)


class Growing(Scored):
    def fit(self, hp, *arguments, **others):
        hp.Float("late", 0.0, 1.0)
        return super().fit(hp, *arguments, **others)


class Continued(Regression):
    """A model that goes on from run to run."""

    model = None

    def build(self, hp):
        self.model = self.model or super().build(hp)
        return self.model


class WarmStarted(Regression):
    """Keeps weights of a run, and takes them over in the next one.

    Args:
        kept: When weights are kept: after the run, after its first epoch, or before the run.
        taken: When they are taken over: in `build`, before training, or after the first epoch; or
            those of one layer alone, frozen.
    """

    def __init__(self, kept, taken):
        super().__init__()
        self.when_kept, self.taken, self.weights = kept, taken, None

    def build(self, hp):
        model = super().build(hp)
        if self.taken == "one, frozen":
            first = keras.layers.Dense(3, trainable=False, name="first")
            optimizer = ka.optimizers.DPOptimizer("sgd", noise_multiplier=self.noise_multiplier)
            model = ka.PrivateSequential([keras.Input((3,)), first, *model.layers])
            first.trainable = self.weights is None
            model.compile(optimizer, loss="mean_squared_error")
            if self.weights is not None:
                first.set_weights([self.weights[0], np.ones(3)])
        if self.taken == "build":
            self.take(model)
        if self.when_kept == "before":
            self.keep(model)
        return model

    def keep(self, model):
        # Within a run, the weights of the first one are kept.
        if self.taken != "epoch" or self.weights is None:
            self.weights = model.get_weights()

    def take(self, model):
        if self.weights is not None:
            model.set_weights(self.weights)

    def fit(self, hp, model, *data, callbacks, **arguments):
        if self.taken == "fit":
            self.take(model)
        own = keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: (
                self.take(model) if epoch and self.taken == "epoch" else None
            ),
            on_epoch_end=lambda epoch, logs: (
                self.keep(model) if not epoch and self.when_kept == "epoch" else None
            ),
        )
        history = super().fit(hp, model, *data, callbacks=[own, *callbacks], **arguments)
        if self.when_kept == "run":
            self.keep(model)
        return history


# What the second build, of the first run, makes known, or the third one, and what is said.
REFUSED = [
    *(
        (make, 2, "A run has spent more than the bound")
        for make in (SpendsMore, SpendsMoreAndFails, HasAnotherRow, ReplacesTheOptimizer)
    ),
    (Growing, 2, "asked for 'late'"),
    (SampledWithSeed, 2, "draw the same noise or the same batches"),
    (Continued, 3, "continues an earlier run"),
    *(
        (functools.partial(WarmStarted, kept, taken), 3, "of an earlier run has left it")
        for kept, taken in (
            *(("run", "build"), ("epoch", "fit")),
            *(("epoch", "epoch"), ("run", "one, frozen")),
        )
    ),
]


@pytest.mark.parametrize(("make", "num_built", "message"), REFUSED)
def test_a_run_that_breaks_the_theorem_ends_the_search(
    tmp_path, monkeypatch, make, num_built, message
):
    draw_numbers(monkeypatch, 4)
    # Two runs on one model together stay within the bound on one.
    options = {"base": planned(steps=40)} if make is Continued else {}
    hypermodel, models = make(), []
    search, build = search_of(hypermodel, tmp_path, **options), hypermodel.build
    hypermodel.build = lambda hp: models.append(build(hp)) or models[-1]
    with pytest.raises(RuntimeError, match=message):
        run(search)
    # The first model is built before anything is drawn.
    assert len(models) == num_built
    for use in (
        search.best_model,
        search.get_best_hyperparameters,
        search.results_summary,
        lambda: search.privacy_spent(DELTA),
        lambda: run(search_of(make(), tmp_path, **options)),
    ):
        with pytest.raises(RuntimeError, match="Nothing is released"):
            use()
    assert files_below(tmp_path / "p") == ["private_search.json"]


@pytest.mark.parametrize("taken", ["build", "fit"])
def test_runs_may_begin_with_the_same_weights(tmp_path, monkeypatch, taken):
    """Pretrained weights in all runs, and biases of zero."""
    draw_numbers(monkeypatch, 3)
    hypermodel = WarmStarted("never", taken)
    hypermodel.weights = [np.full((3, 1), 0.3), np.zeros(1)]
    assert run(search_of(hypermodel, tmp_path)).best_model() is not None


@pytest.mark.parametrize("is_public", [False, True])
def test_noise_is_calibrated_to_the_whole_search(is_public, tmp_path, monkeypatch):
    options = {"target_epsilon": 2.0, "delta": DELTA, "validation_is_public": is_public}
    search = search_of(Regression(), tmp_path, **options)
    noise_multiplier, spent = search.hypermodel.noise_multiplier, search.privacy_spent(DELTA)
    assert 0.99 * 2.0 <= spent.epsilon <= 2.0
    assert spent.epsilon == RandomSelection(10).epsilon(planned(noise_multiplier), DELTA)
    of_validation = ("does not cover the validation data", "validation data are taken to be public")
    assert of_validation[is_public] in str(spent)
    draw_numbers(monkeypatch, 1)
    ledger = run(search).best_model().privacy_ledger
    assert {row.noise_multiplier for row in ledger} == {noise_multiplier}


IDS = np.arange(32) // 2
UNITS = {"unit_ids": IDS, "max_rows_per_unit": 2}


class OfPersons(Regression):
    def privacy_plan(self, hp):
        (row,) = super().privacy_plan(hp)
        return Ledger((dataclasses.replace(row, rows_per_unit=2),))


@pytest.mark.parametrize("is_sampled", [False, True])
def test_a_search_is_accounted_by_person(is_sampled, tmp_path, monkeypatch):
    draw_numbers(monkeypatch, 3)
    search = search_of(OfPersons(), tmp_path, target_epsilon=3.0, delta=DELTA)
    if is_sampled:
        search.hypermodel.fit = lambda hp, model, x, **options: model.fit(x, epochs=2, **options)
        search.search(sampled(*data(), **UNITS), validation_data=data(1))
    else:
        run(search, **UNITS)
    spent, (row,) = search.privacy_spent(DELTA), search.best_model().privacy_ledger
    assert (spent.unit, spent.rows_per_unit, row.rows_per_unit) == ("person", 2, 2)
    assert 0.99 * 3.0 <= spent.epsilon <= 3.0
    # The same noise costs less where each person has one row.
    noise_multiplier = search.hypermodel.noise_multiplier
    assert spent.epsilon > 1.5 * RandomSelection(10).epsilon(planned(noise_multiplier), DELTA)


class PlansItsNoise(Regression):
    """Its optimizer plans the noise of each run."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def build(self, hp):
        model = super().build(hp)
        model.compile(self.make(target_epsilon=2.0, delta=DELTA), "mean_squared_error")
        return model


@pytest.mark.parametrize("units", [{}, UNITS])
@pytest.mark.parametrize(
    "make", [ka.optimizers.AutoDPOptimizer, functools.partial(ka.optimizers.DPOptimizer, "sgd")]
)
def test_the_ledger_of_one_run_on_other_data_covers_runs_that_plan_their_noise(
    make, units, tmp_path, monkeypatch
):
    draw_numbers(monkeypatch, 2)
    hypermodel, hp = PlansItsNoise(make), keras_tuner.HyperParameters()
    model = hypermodel.build(hp)
    hypermodel.fit(hp, model, *data(5), verbose=0, **units)
    search = run(search_of(hypermodel, tmp_path, base=model.privacy_ledger), **units)
    spent, unit = search.privacy_spent(DELTA), "person" if units else "example"
    assert search.best_model().privacy_spent(DELTA).unit == spent.unit == unit
    # PLD, for which the run was planned, is tighter.
    assert spent.epsilon > spent.epsilon_of_one_run >= model.privacy_spent(DELTA).epsilon > 1.9


class BestAtFirst(Regression):
    """Its first epoch is the best one."""

    def fit(self, hp, model, x, y, callbacks, **arguments):
        class Worse(keras.callbacks.Callback):
            kept = None

            def on_epoch_end(self, epoch, logs=None):
                logs["val_loss"] = float(epoch)
                if epoch == 0:
                    BestAtFirst.weights = self.model.get_weights()

        return super().fit(hp, model, x, y, callbacks=[Worse(), *callbacks], **arguments)


def test_the_best_epoch_is_released_and_every_epoch_counted(tmp_path, monkeypatch):
    draw_numbers(monkeypatch, 1)
    model = run(search_of(BestAtFirst(), tmp_path)).best_model()
    for found, expected in zip(model.get_weights(), BestAtFirst.weights, strict=True):
        assert (found == expected).all()
    assert model.privacy_ledger.steps == planned().steps


@pytest.mark.parametrize(
    ("hypermodel", "arguments", "error", "message"),
    [
        *(
            (ReadsARate(read), {}, ValueError, "'learning_rate', a number without a step")
            for read in (
                lambda hp: hp.get("learning_rate"),
                lambda hp: sum(hp.values.values()),
                lambda hp: copy.deepcopy(hp).get("learning_rate"),
            )
        ),
        (ReadsTooMany(), {}, ValueError, "more than 10,000 combinations"),
        (built_by_function, {}, TypeError, "The cost of a run must be known before"),
        (Regression(), {"objective": "loss"}, ValueError, "begins with 'val_'"),
        (Regression(), {"base": 1.0}, TypeError, "must hold `Ledger`s"),
        (Regression(), {"target_epsilon": 1.0}, ValueError, "needs `delta`"),
        (
            Regression(),
            {"target_epsilon": 1.0, "delta": DELTA, "base": planned()},
            ValueError,
            "instead of `base`",
        ),
    ],
)
def test_searches_whose_cost_cannot_be_known_are_refused(
    tmp_path, hypermodel, arguments, error, message
):
    with pytest.raises(error, match=message):
        search_of(hypermodel, tmp_path, **arguments)


class Seeded(Regression):
    def build(self, hp):
        model = super().build(hp)
        optimizer = ka.optimizers.DPOptimizer("sgd", noise_multiplier=2.0, seed=1)
        model.compile(optimizer, "mean_squared_error")
        return model


def plain_model(hp):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mean_squared_error")
    return model


def with_callback(callback):
    return {"validation_data": data(1), "callbacks": [callback]}


def of_units(**units):
    return {"validation_data": data(1), **units}


def drawn(**options):
    return {"x": sampled(*data(), **options), "y": None, "validation_data": data(1)}


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        ({}, "unit_ids not given, max_rows_per_unit=None"),
        ({"max_rows_per_unit": 2}, "unit_ids not given, max_rows_per_unit=2"),
        ({**UNITS, "max_rows_per_unit": 3}, "unit_ids given, max_rows_per_unit=3"),
        ({**UNITS, "max_rows_per_unit": 1}, "unit_ids given, max_rows_per_unit=1"),
    ],
)
def test_plans_for_persons_need_their_ids_before_anything_is_drawn(tmp_path, arguments, received):
    search = search_of(OfPersons(), tmp_path)
    with pytest.raises(ValueError, match=f"plans for persons with up to 2 rows, {received}"):
        run(search, **arguments)
    assert not (tmp_path / "p" / "private_search.json").exists()


@pytest.mark.parametrize(
    ("hypermodel", "arguments", "message"),
    [
        (Scored(), {}, "`validation_data` must be given"),
        (Scored(), {"validation_data": data(1), "validation_split": 0.2}, "`validation_split`"),
        (Scored(), {"validation_data": data(1), "verbose": 1}, "`verbose` must be 0"),
        (Scored(), with_callback(keras.callbacks.CSVLogger("x")), "would print or write"),
        (Scored(), with_callback(PrivacyCallback(DELTA, report_path="a.json")), "print or write"),
        (Scored(), with_callback(keras.callbacks.EarlyStopping(verbose=1)), "print or write"),
        (Scored(), drawn(seed=7), r"needs `seed=None`.* Received: seed=7"),
        # The first run would choose it.
        (Scored(), drawn(max_batch_size="auto"), "max_batch_size='auto'"),
        (Scored(), of_units(**UNITS), "Received: plans for single rows, unit_ids given"),
        (Scored(), drawn(**UNITS), "plans for single rows, unit_ids given, max_rows_per_unit=2"),
        (Seeded(), {"validation_data": data(1)}, "several runs draw the same noise"),
        (plain_model, {"validation_data": data(1)}, "must return a compiled private model"),
    ],
)
def test_arguments_of_search_and_models_are_refused_before_anything_is_drawn(
    tmp_path, hypermodel, arguments, message
):
    x, y = data()
    search = search_of(hypermodel, tmp_path, base=planned())
    with pytest.raises((ValueError, TypeError), match=message):
        search.search(**{"x": x, "y": y, **arguments})
    assert not (tmp_path / "p" / "private_search.json").exists()
