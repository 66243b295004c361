"""The runs of a private search: which ones, that they are independent, and what is released."""

import json
import math
import random
import warnings
from pathlib import Path

import keras
import keras_tuner
import numpy as np
import pytest
from scipy import stats

from keras_adaclip.accounting import RandomSelection
from keras_adaclip.tuners.private_runs import draw_values
from tests.tuners.hypermodels import Regression, Scored, draw_numbers, files_below, run, search_of

DELTA = 1e-3
# Each chi-squared test, with a fixed seed, fails for that share of seeds though all is well.
FALSE_ALARM = 1e-4
RECORD = "private_search.json"
RELEASED_FILES = ["best.weights.h5", RECORD]


def test_runs_are_drawn_with_replacement_from_the_declared_law():
    space = keras_tuner.HyperParameters()
    space.Choice("kind", ["plain", "deep"])
    with space.conditional_scope("kind", ["deep"]):
        space.Int("layers", 1, 4)
    space.Float("rate", 1e-3, 1e-1, sampling="log")
    source = random.Random(20240229)
    runs = [draw_values(space, source.random) for _ in range(600)]
    kinds = [run["kind"] for run in runs]
    assert stats.binomtest(kinds.count("deep"), 600, 0.5).pvalue > FALSE_ALARM
    assert all(("layers" in run) == (run["kind"] == "deep") for run in runs)
    layers = [run["layers"] for run in runs if "layers" in run]
    assert stats.chisquare(np.bincount(layers)[1:]).pvalue > FALSE_ALARM
    rates = np.log10([run["rate"] for run in runs])
    assert stats.kstest(rates, stats.uniform(-3, 2).cdf).pvalue > FALSE_ALARM


def test_runs_do_not_start_from_global_seeds(tmp_path, monkeypatch):
    """Otherwise initial weights would be a function of the number of runs before."""
    rates, weights, sources = [], [], []
    # The number of runs comes from the operating system too.
    monkeypatch.setattr(RandomSelection, "draw", lambda self, source: sources.append(source) or 2)

    class Looks(Regression):
        def fit(self, hp, model, *arguments, **others):
            rates.append(hp.get("learning_rate"))
            weights.append(str(model.get_weights()[0]))
            return 1.0

    for folder in ("a", "b"):
        keras.utils.set_random_seed(1)
        run(search_of(Looks(), tmp_path / folder))
    assert len(set(rates)) == len(set(weights)) == 4
    assert [type(source) for source in sources] == [random.SystemRandom] * 2


class Listed(Scored):
    """Takes the results of its runs from a list, with a warning; errors are raised."""

    def __init__(self, *results):
        self.results = iter(results)
        super().__init__(self.next_score)

    def next_score(self, level):
        warnings.warn("once a run", stacklevel=2)
        result = next(self.results)
        if isinstance(result, Exception):
            raise result
        return result


FAILURES = (ValueError("secret"), math.nan, math.inf, -math.inf)


@pytest.mark.parametrize(
    ("direction", "scores", "best"),
    [("min", (0.8237461, 0.2910573), 0.2910573), ("max", (0.8237461, 0.2910573), 0.8237461)],
)
def test_runs_that_fail_or_lose_count_and_leave_no_word(
    tmp_path, monkeypatch, capfd, direction, scores, best
):
    draw_numbers(monkeypatch, 10)
    hypermodel = Listed(*FAILURES, scores[0], *FAILURES[:2], scores[1], *FAILURES[2:])
    search = search_of(hypermodel, tmp_path, objective=keras_tuner.Objective("val_x", direction))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(search)
    assert caught == []
    assert "".join(capfd.readouterr()) == ""
    assert len(hypermodel.seen) == 10
    assert search.best_score == best
    search.results_summary(delta=DELTA)
    texts = [path.read_bytes() for path in Path(tmp_path).rglob("*") if path.is_file()]
    texts.append(str(vars(search)).encode() + str(vars(search.oracle)).encode())
    texts.append("".join(capfd.readouterr()).encode())
    for score in scores:
        assert any(str(score)[:6].encode() in text for text in texts) == (score == best)


@pytest.mark.parametrize("number", [0, 4])
def test_nothing_is_released_if_no_run_succeeds(tmp_path, monkeypatch, capfd, number):
    draw_numbers(monkeypatch, number)
    search = search_of(Listed(*FAILURES), tmp_path, distribution="poisson")
    if number:
        for use in (lambda: run(search), search.best_model, lambda: run(search)):
            with pytest.raises(RuntimeError, match="all of them did"):
                use()
    else:
        run(search)
        assert search.best_model() is search.best_score is None
        assert search.get_best_models() == search.get_best_hyperparameters() == []
        search.results_summary(delta=DELTA)
        assert "nothing is released" in capfd.readouterr().out
    assert len(search.hypermodel.seen) == number
    assert "secret" not in "".join(capfd.readouterr())
    assert files_below(tmp_path / "p") == [RECORD]


def test_the_best_run_alone_is_released_when_the_search_has_ended(tmp_path, monkeypatch, capsys):
    draw_numbers(monkeypatch, 9)

    def score(level):
        with pytest.raises(RuntimeError, match="before a search has ended"):
            search.best_model()
        return level

    search = search_of(Scored(score), tmp_path)
    with pytest.raises(RuntimeError, match="before the search has ended"):
        search.get_best_hyperparameters()
    run(search)
    best = min(search.hypermodel.seen)
    assert len(search.hypermodel.seen) == 9
    (model,) = search.get_best_models()
    assert (model.get_weights()[0] == best).all()
    assert search.get_best_hyperparameters()[0].values == {"level": best}
    assert search.best_score == best
    for ask in (search.get_best_models, search.get_best_hyperparameters, search.results_summary):
        with pytest.raises(ValueError, match="must lie between 1 and 1"):
            ask(2)
    search.results_summary(delta=DELTA)
    spent, text = search.privacy_spent(DELTA), capsys.readouterr().out
    assert "drawn from the geometric law with mean 10" in text
    assert f"epsilon = {spent.epsilon:.3f}"[:-1] in text
    assert f"epsilon of one run = {spent.epsilon_of_one_run:.3f}"[:-1] in text
    assert f"level: {best}" in text


def test_the_disk_holds_nothing_of_losers_nor_their_number(tmp_path, monkeypatch, capfd):
    """Byte for byte what another number of runs with the same best one would have left."""
    kept = []
    for each in (2, 5):
        draw_numbers(monkeypatch, each)
        hypermodel = Scored(lambda level: 0.125 + level)
        hypermodel.values = (1,)
        folder = tmp_path / str(each)
        run(search_of(hypermodel, folder))
        assert len(hypermodel.seen) == each
        assert capfd.readouterr().out == ""
        assert files_below(folder / "p") == RELEASED_FILES
        kept.append(json.loads((folder / "p" / RECORD).read_text()))
    assert kept[0] == kept[1]


def test_checkpoints_of_losers_go_as_soon_as_they_have_lost(tmp_path, monkeypatch):
    draw_numbers(monkeypatch, 5)
    present = []

    class Looks(Listed):
        def fit(self, *arguments, **others):
            present.append(len(list(Path(tmp_path).rglob("*.weights.h5"))))
            return super().fit(*arguments, **others)

    # Each run is better than the one before.
    run(search_of(Looks(5.0, 4.0, 3.0, 2.0, 1.0), tmp_path))
    assert present == [0, 1, 1, 1, 1]
