"""Runs of a private search must be independent, and must not be counted from outside."""

import contextlib
import io
import math
import warnings

import keras
import keras_tuner
import numpy as np
import pytest

import keras_adaclip as ka
from keras_adaclip.accounting import read_ledger
from tests.tuners.hypermodels import BATCH_SIZE, Regression, Scored, data, planned, private_model
from tests.tuners.test_private_search import draw_number, run, search_of


def sampled(x, y, seed):
    return ka.sampling.PoissonDataset(x, y, expected_batch_size=BATCH_SIZE, seed=seed)


class SampledInFit(Regression):
    """Makes its own data set, with or without a seed."""

    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def fit(self, hp, model, x, y, **arguments):
        return model.fit(sampled(x, y, self.seed), epochs=self.epochs, **arguments)


class Fits(Regression):
    def fit(self, hp, model, x, **arguments):
        return model.fit(x, epochs=self.epochs, **arguments)


class CompiledTwice(Regression):
    """Trains under a seed first, and hides that optimizer behind another one."""

    def fit(self, hp, model, x, y, **arguments):
        for seed in (3, None):
            optimizer = ka.optimizers.DPOptimizer(
                keras.optimizers.SGD(0.1), noise_multiplier=2.0, seed=seed
            )
            model.compile(optimizer, "mean_squared_error")
            history = model.fit(x, y, batch_size=BATCH_SIZE, epochs=1, **arguments)
        return history


@pytest.mark.parametrize("hypermodel", [SampledInFit(7), CompiledTwice()])
def test_runs_that_draw_the_same_end_the_search(tmp_path, hypermodel):
    search = search_of(hypermodel, tmp_path, num_trials=2)
    with pytest.raises(RuntimeError, match="draw the same noise or the same batches"):
        run(search)
    with pytest.raises(RuntimeError, match="draw the same noise or the same batches"):
        search.best_model()


def test_data_with_a_seed_are_refused_before_anything_is_drawn(tmp_path):
    search = search_of(Fits(), tmp_path)
    with pytest.raises(ValueError, match=r"Received: PoissonDataset\(seed=7\)"):
        search.search(sampled(*data(), 7), validation_data=data(1))
    assert not (tmp_path / "p" / "private_search.json").exists()


def test_data_without_a_seed_are_taken(tmp_path):
    search = run(search_of(SampledInFit(None), tmp_path / "made", num_trials=1))
    assert search.best_model() is not None
    search = search_of(Fits(), tmp_path / "given", num_trials=1)
    search.search(sampled(*data(), None), validation_data=data(1))
    assert search.best_model() is not None


class Continued(Regression):
    """A model that goes on from run to run."""

    model = None

    def build(self, hp):
        self.model = self.model or super().build(hp)
        return self.model


def test_runs_that_go_on_from_each_other_end_the_search(tmp_path, monkeypatch):
    """Though all of them together stay within the bound on one."""
    draw_number(monkeypatch, 3)
    search = search_of(Continued(), tmp_path, base=planned(steps=40))
    with pytest.raises(RuntimeError, match="goes on from an earlier run"):
        run(search)
    assert search.hypermodel.model.optimizer.iterations == planned().steps


class Pretrained(Regression):
    """Begins each run from a model that was trained, and counted, before the search."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def build(self, hp):
        model = super().build(hp)
        model.optimizer.build(model.trainable_variables)
        model.load_weights(self.path)
        return model


def test_runs_may_begin_from_what_was_spent_before(tmp_path, monkeypatch):
    draw_number(monkeypatch, 3)
    model = private_model()
    model.fit(*data(), batch_size=BATCH_SIZE, epochs=1, verbose=0)
    model.save_weights(tmp_path / "before.weights.h5")
    hypermodel = Pretrained(tmp_path / "before.weights.h5")
    search = run(search_of(hypermodel, tmp_path, base=planned(steps=12)))
    released = read_ledger(tmp_path / "p" / "best" / "checkpoint.weights.h5")
    assert released.steps == 12
    assert search.best_model() is not None


class FailsAtFirst(Scored):
    def __init__(self, failure):
        given = iter([failure, 0.5, failure, 0.25, failure])
        super().__init__(lambda level: next(given))


@pytest.mark.parametrize("direction", ["min", "max"])
@pytest.mark.parametrize("failure", [math.nan, math.inf, -math.inf, 1e39])
def test_failing_runs_lose_without_a_word(tmp_path, monkeypatch, direction, failure):
    draw_number(monkeypatch, 5)
    objective = keras_tuner.Objective("val_score", direction)
    search = search_of(FailsAtFirst(failure), tmp_path, objective=objective)
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stderr(printed):
        warnings.simplefilter("always")
        run(search)
    assert [str(each.message) for each in caught] == []
    assert printed.getvalue() == ""
    assert search.best_score == (0.25 if direction == "min" else 0.5)


class Warns(Scored):
    def fit(self, *arguments, **others):
        warnings.warn("once a run", stacklevel=2)
        return super().fit(*arguments, **others)


def test_warnings_of_runs_cannot_be_counted(tmp_path, monkeypatch):
    draw_number(monkeypatch, 3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(search_of(Warns(), tmp_path))
        assert caught == []
        run(search_of(Warns(), tmp_path / "seen", private_diagnostics=True))
    assert sum(str(each.message) == "once a run" for each in caught) == 3


def test_a_diagnosed_search_has_no_warning_of_nan(tmp_path, monkeypatch):
    draw_number(monkeypatch, 5)
    search = search_of(FailsAtFirst(math.nan), tmp_path, private_diagnostics=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(search)
    assert not [each for each in caught if "NaN" in str(each.message)]
    scores = [trial.score for trial in search.oracle.trials.values()]
    assert np.isnan(scores).sum() == 3
