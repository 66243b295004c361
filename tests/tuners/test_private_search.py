"""Which runs a private search makes, and that nothing leaves but the best."""

import json
import math
import random
from pathlib import Path

import h5py
import keras
import keras_tuner
import numpy as np
import pytest
from scipy import stats

import keras_adaclip as ka
from keras_adaclip.accounting import RandomSelection
from keras_adaclip.tuners import PrivateSearch
from keras_adaclip.tuners.private.private_search_oracle import PrivateSearchOracle
from keras_adaclip.tuners.private.search_record import SearchRecord
from tests.tuners.hypermodels import Regression, Scored, data, planned, private_model

DELTA = 1e-3
# Each chi-squared test, with a fixed seed, fails for that share of seeds though all is well.
FALSE_ALARM = 1e-4
# Draws levels 3, 2, 3, 3, 2, 4, ...: all but the last one of these fail.
SEED_OF_FAILURES = 3


def search_of(hypermodel, folder, **arguments):
    arguments = {"objective": "val_loss", "directory": folder, "project_name": "p", **arguments}
    return PrivateSearch(hypermodel, **arguments)


def run(search, **arguments):
    search.search(*data(), validation_data=data(1), **arguments)
    return search


def draw_number(monkeypatch, number):
    """Makes the secret number known to the test alone."""
    monkeypatch.setattr(RandomSelection, "draw", lambda self, source=None: number)


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


RELEASED_FILES = ["best/build_config.json", "best/checkpoint.weights.h5", "private_search.json"]


# Which runs there are.


def oracle_of(folder, space, seed=None, num_trials=None, score=None):
    """The values of all trials of an oracle that gets its scores from a function."""
    objective = keras_tuner.Objective("val_loss", "min")
    oracle = PrivateSearchOracle(
        objective,
        RandomSelection(10),
        seed=seed,
        num_trials=num_trials,
        hyperparameters=space,
    )
    oracle.verbose = 0
    oracle._set_project_dir(folder, "oracle")
    oracle.save = oracle._save_trial = lambda *arguments: None
    oracle.begin(SearchRecord(folder))
    values = []
    while (trial := oracle.create_trial("tuner")).status == "RUNNING":
        values.append(trial.hyperparameters.values)
        value = 0.0 if score is None else score(trial.hyperparameters.values)
        oracle.update_trial(trial.trial_id, {"val_loss": value})
        trial.status = "COMPLETED"
        oracle.end_trial(trial)
    return values


def test_numbers_of_trials_follow_the_law(tmp_path):
    """By a seed each, since those of the operating system could not be drawn again."""
    space = keras_tuner.HyperParameters()
    space.Choice("level", [1, 2])
    numbers = [len(oracle_of(tmp_path, space, seed=seed)) for seed in range(250)]
    edges = stats.geom(0.1).ppf([0.2, 0.4, 0.6, 0.8])
    cells = np.concatenate([[0.0], stats.geom(0.1).cdf(edges), [1.0]])
    counts = np.bincount(np.searchsorted(edges, numbers), minlength=5)
    assert stats.chisquare(counts, len(numbers) * np.diff(cells)).pvalue > FALSE_ALARM


def test_trials_are_drawn_with_replacement_from_the_declared_law(tmp_path):
    space = keras_tuner.HyperParameters()
    kind = space.Choice("kind", ["plain", "deep"])
    with space.conditional_scope("kind", ["deep"]):
        space.Int("layers", 1, 4)
    space.Float("rate", 1e-3, 1e-1, sampling="log")
    assert kind == "plain"
    trials = oracle_of(tmp_path, space, seed=20240229, num_trials=600)
    assert len(trials) == 600
    kinds = [trial["kind"] for trial in trials]
    assert stats.binomtest(kinds.count("deep"), 600, 0.5).pvalue > FALSE_ALARM
    assert all(("layers" in trial) == (trial["kind"] == "deep") for trial in trials)
    layers = [trial["layers"] for trial in trials if "layers" in trial]
    assert stats.chisquare(np.bincount(layers)[1:]).pvalue > FALSE_ALARM
    rates = np.log10([trial["rate"] for trial in trials])
    assert stats.kstest(rates, stats.uniform(-3, 2).cdf).pvalue > FALSE_ALARM
    # Independent of the trial before.
    pairs = np.zeros((2, 2))
    is_deep = np.array([kind == "deep" for kind in kinds], int)
    np.add.at(pairs, (is_deep[:-1], is_deep[1:]), 1)
    assert stats.chi2_contingency(pairs).pvalue > FALSE_ALARM


def test_trials_do_not_depend_on_earlier_scores(tmp_path):
    space = keras_tuner.HyperParameters()
    space.Float("rate", 0.0, 1.0)
    found = [
        oracle_of(tmp_path, space, seed=3, num_trials=50, score=score)
        for score in (lambda values: values["rate"], lambda values: -values["rate"])
    ]
    assert found[0] == found[1]


def test_without_a_seed_the_operating_system_draws(tmp_path):
    space = keras_tuner.HyperParameters()
    space.Float("rate", 0.0, 1.0)
    found = []
    for _ in range(2):
        random.seed(1)
        found.append(oracle_of(tmp_path, space, num_trials=3))
    assert found[0] != found[1]


def test_equal_trials_are_run_again(tmp_path):
    search = run(search_of(Scored(), tmp_path, num_trials=5))
    assert len(search.hypermodel.seen) == 5
    assert set(search.hypermodel.seen) <= {1, 2, 3}


def failing_score(level):
    if level == 1:
        raise ValueError("this level fails")
    return {2: math.nan, 3: -math.inf, 4: 7.0}[level]


class FailsOften(Scored):
    values = (1, 2, 3, 4)


def test_failed_trials_count_and_lose(tmp_path):
    # Five in a row fail: keras-tuner would have stopped at the third.
    search = search_of(FailsOften(failing_score), tmp_path, seed=SEED_OF_FAILURES, num_trials=12)
    run(search)
    assert len(search.hypermodel.seen) == 12
    assert search.hypermodel.seen[:6] == [3, 2, 3, 3, 2, 4]
    assert search.best_score == 7.0
    assert search.get_best_hyperparameters()[0].values == {"level": 4}


def test_nothing_is_released_where_all_fail(tmp_path, capfd):
    def score(level):
        raise ValueError("depends on the data")

    search = search_of(Scored(score), tmp_path, num_trials=5)
    with pytest.raises(RuntimeError, match="so did all of them"):
        run(search)
    assert len(search.hypermodel.seen) == 5
    with pytest.raises(RuntimeError, match="so did all of them"):
        search.best_model()
    assert "depends on the data" not in "".join(capfd.readouterr())
    assert files_below(tmp_path / "p") == ["private_search.json"]


def test_a_hyperparameter_that_appears_late_is_refused(tmp_path):
    class Growing(Scored):
        def fit(self, hp, *arguments, **others):
            hp.Float("late", 0.0, 1.0)
            return super().fit(hp, *arguments, **others)

    with pytest.raises(RuntimeError, match="asked for 'late'"):
        run(search_of(Growing(), tmp_path, num_trials=3))


class NotPrivate(Regression):
    def build(self, hp):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mean_squared_error")
        return model


class BrokenBuild(Regression):
    def build(self, hp):
        if hp.Boolean("broken", default=True):
            raise ValueError("no such layer")
        return private_model()


def test_what_is_wrong_with_the_hypermodel_is_told_before_anything_is_drawn(tmp_path):
    with pytest.raises(TypeError, match="must return a compiled private model"):
        run(search_of(NotPrivate(), tmp_path))
    assert not (tmp_path / "p" / "oracle.json").exists()
    with pytest.raises(ValueError, match="no such layer"):
        search_of(BrokenBuild(), tmp_path)


# What leaves.


def test_the_best_run_alone_is_released(tmp_path, monkeypatch):
    draw_number(monkeypatch, 6)
    search = run(search_of(Scored(), tmp_path))
    best = min(search.hypermodel.seen)
    assert len(search.hypermodel.seen) == 6
    (model,) = search.get_best_models()
    assert (model.get_weights()[0] == best).all()
    assert (search.best_model().get_weights()[0] == best).all()
    assert search.get_best_hyperparameters()[0].values == {"level": best}
    assert search.best_score == best
    for ask in (search.get_best_models, search.get_best_hyperparameters, search.results_summary):
        with pytest.raises(ValueError, match="the best run alone is released"):
            ask(2)


def test_the_larger_score_wins_where_it_is_better(tmp_path, monkeypatch):
    draw_number(monkeypatch, 8)
    objective = keras_tuner.Objective("val_accuracy", "max")
    search = run(search_of(Scored(), tmp_path, objective=objective))
    assert search.best_score == max(search.hypermodel.seen)


def test_nothing_is_released_before_the_search_has_ended(tmp_path, monkeypatch):
    draw_number(monkeypatch, 4)
    asked = []

    class Curious(Scored):
        def fit(self, *arguments, **others):
            if self.seen:
                with pytest.raises(RuntimeError, match="before the search has ended"):
                    search.best_model()
                asked.append(True)
            return super().fit(*arguments, **others)

    search = search_of(Curious(), tmp_path)
    with pytest.raises(RuntimeError, match="before the search has ended"):
        search.get_best_hyperparameters()
    run(search)
    assert len(asked) == 3
    assert search.best_model() is not None


@pytest.mark.parametrize("number", [0, 1, 6])
def test_the_disk_holds_nothing_of_losers_nor_their_number(tmp_path, monkeypatch, capfd, number):
    """Byte for byte what another number of runs with the same best one would have left."""
    kept, printed = [], []
    for each in (number, number + 3):
        draw_number(monkeypatch, each)
        hypermodel = Scored(lambda level: 0.125 + level)
        hypermodel.values = (1,)
        folder = tmp_path / str(each)
        search = run(search_of(hypermodel, folder, distribution="poisson"))
        assert len(hypermodel.seen) == each
        printed.append(capfd.readouterr())
        assert files_below(folder / "p") == (RELEASED_FILES if each else RELEASED_FILES[2:])
        kept.append(json.loads((folder / "p" / "private_search.json").read_text()))
        assert search.oracle.trials == {}
        assert not search.oracle.start_order + search.oracle.end_order
        assert search.oracle.get_state()["num_trials"] is None
    if number:
        assert kept[0] == kept[1]
    assert printed[0] == printed[1]
    assert printed[0].out == ""


def names_within(model, path):
    """All names that a released model and its file have."""
    with h5py.File(path) as file:
        names = [model.name, model.optimizer.name, *(layer.name for layer in model.layers)]
        file.visititems(lambda name, item: names.extend([name, *map(str, item.attrs.items())]))
    return names


def test_names_in_the_released_model_do_not_count_runs(tmp_path, monkeypatch):
    found = []
    for number in (1, 6):
        draw_number(monkeypatch, number)
        model = run(search_of(Scored(), tmp_path / str(number))).best_model()
        path = tmp_path / str(number) / "p" / "best" / "checkpoint.weights.h5"
        found.append(names_within(model, path))
    assert found[0] == found[1]


def test_runs_do_not_start_from_one_global_seed(tmp_path):
    """Else the initial weights of a run would be a function of how many came before."""
    found = []
    for folder in ("a", "b"):

        class Looks(Scored):
            def fit(self, hp, model, *arguments, **others):
                found.append(model.get_weights()[0].tolist())
                return super().fit(hp, model, *arguments, **others)

        keras.utils.set_random_seed(1)
        run(search_of(Looks(), tmp_path / folder, num_trials=2))
    assert len({str(weights) for weights in found}) == 4


class Seeded(Regression):
    def build(self, hp):
        model = super().build(hp)
        optimizer = ka.optimizers.DPOptimizer(
            "sgd", noise_multiplier=2.0, seed=hp.Int("seed", 0, 9)
        )
        model.compile(optimizer, "mean_squared_error")
        return model


def test_a_seed_of_the_noise_is_refused(tmp_path):
    with pytest.raises(ValueError, match="several runs draw the same noise"):
        run(search_of(Seeded(), tmp_path))


def test_scores_of_losers_are_nowhere(tmp_path, monkeypatch, capfd):
    scores = [0.8237461, 0.2910573, 0.7391502]
    draw_number(monkeypatch, 3)
    given = iter(scores)
    search = run(search_of(Scored(lambda level: next(given)), tmp_path))
    search.results_summary(delta=DELTA)
    texts = [path.read_bytes() for path in Path(tmp_path).rglob("*") if path.is_file()]
    texts.append(str(vars(search)).encode() + str(vars(search.oracle)).encode())
    texts.append("".join(capfd.readouterr()).encode())
    for loser in (scores[0], scores[2]):
        assert not any(str(loser)[:6].encode() in text for text in texts)
    assert any(str(scores[1])[:6].encode() in text for text in texts)


def test_checkpoints_of_losers_go_as_soon_as_they_have_lost(tmp_path, monkeypatch):
    draw_number(monkeypatch, 5)
    present = []

    class Looks(Scored):
        def fit(self, *arguments, **others):
            present.append(len(list(Path(tmp_path).rglob("*.weights.h5"))))
            return super().fit(*arguments, **others)

    run(search_of(Looks(), tmp_path))
    assert present == [0, 1, 1, 1, 1]


def test_private_diagnostics_keep_everything_and_say_so(tmp_path, monkeypatch, capsys):
    draw_number(monkeypatch, 4)
    search = run(search_of(Scored(), tmp_path, private_diagnostics=True))
    assert len(search.get_best_models(4)) == 4
    assert len(list(Path(tmp_path).rglob("trial_*/*.weights.h5"))) == 4
    assert "Trial 4 Complete" in capsys.readouterr().out
    assert (
        "The losing runs, which private_diagnostics=True" in search.privacy_report(DELTA).to_text()
    )


def test_no_run_at_all(tmp_path, monkeypatch, capsys):
    draw_number(monkeypatch, 0)
    search = run(search_of(Scored(), tmp_path, distribution="poisson"))
    assert search.hypermodel.seen == []
    assert search.best_model() is None
    assert search.best_score is None
    assert search.get_best_models() == search.get_best_hyperparameters() == []
    expected = RandomSelection(10, "poisson").epsilon(planned(), DELTA)
    assert search.privacy_spent(DELTA).epsilon == expected
    search.results_summary(delta=DELTA)
    assert "nothing is released" in capsys.readouterr().out


def test_the_summary(tmp_path, monkeypatch, capsys):
    draw_number(monkeypatch, 9)
    search = run(search_of(Scored(), tmp_path))
    search.results_summary(delta=DELTA)
    spent, text = search.privacy_spent(DELTA), capsys.readouterr().out
    assert "drawn from the geometric law with mean 10" in text
    assert f"epsilon = {spent.epsilon:.3f}"[:-1] in text
    assert f"epsilon of one run = {spent.epsilon_of_one_run:.3f}"[:-1] in text
    assert f"level: {min(search.hypermodel.seen)}" in text
    assert "9" not in text.replace(f"{spent.epsilon}", "").split("val_loss")[1]
