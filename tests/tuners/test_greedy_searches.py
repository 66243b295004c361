"""Searches with scores from a table: their order, interruptions, files and lines."""

import keras_tuner
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from keras_adaclip import tuners
from keras_adaclip.schedules import PiecewiseConstant
from tests.tuners.scripted import ScriptedTuner, algorithm_1, table

EPOCHS, MOST = 3, 6


def expected_search(script, max_drop, higher):
    """Norms tried in each epoch, and the schedule; None where no score was finite."""
    visited, best = [], []
    for epoch in range(1, EPOCHS + 1):

        def score_of(number, epoch=epoch):
            return script(epoch, number)

        tried, norm = algorithm_1(score_of, 0.1, 0.1, max_drop, MOST, higher=higher)
        visited.append(tried)
        best.append(norm)
        if norm is None:
            return visited, None
    return visited, best


def tuner_of(script, folder, *, max_drop=5.0, higher=True, tuner=ScriptedTuner, **changed):
    options = {
        "start": 0.1,
        "step": 0.1,
        "max_drop": max_drop,
        "epochs": EPOCHS,
        "max_trials_per_epoch": MOST,
        "objective": keras_tuner.Objective("val_mae", "max" if higher else "min"),
    }
    return tuner(script, folder, **{**options, **changed})


@settings(max_examples=10, phases=[Phase.generate])
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([0.0, 0.3, 5.0]))
def test_a_search_visits_what_algorithm_1_does(tmp_path_factory, seed, higher, max_drop):
    script = table(seed)
    visited, best = expected_search(script, max_drop, higher)
    folder = tmp_path_factory.mktemp("one")
    tuner = tuner_of(script, folder, max_drop=max_drop, higher=higher)
    if best is None:
        with pytest.raises(RuntimeError, match="finite val_mae"):
            tuner.search(verbose=0)
    else:
        tuner.search(verbose=0)
        assert tuner.best_schedule().values == best
    assert tuner.visited == visited


def test_geometric_norms_are_tried_up_to_the_largest_one(tmp_path):
    geometric = {"step": 2.0, "spacing": "geometric", "max_clip_norm": 1.0, "epochs": 1}
    tuner = tuner_of(lambda epoch, number: number, tmp_path, **geometric)
    tuner.search(verbose=0)
    assert tuner.visited == [pytest.approx([0.1, 0.2, 0.4, 0.8])]
    assert tuner.best_schedule().values == pytest.approx([0.8])


class Killed(BaseException):
    """What nobody catches, like the end of a process."""


@pytest.mark.parametrize("num_before", [0, MOST, 10])
def test_a_search_killed_within_a_trial_runs_it_again(tmp_path, num_before):
    script = table(5, ties=False)

    class Dies(ScriptedTuner):
        def run_trial(self, trial, *arguments, **keywords):
            if len(self.ran) == num_before:
                raise Killed
            return super().run_trial(trial, *arguments, **keywords)

    first = tuner_of(script, tmp_path, tuner=Dies)
    with pytest.raises(Killed):
        first.search(verbose=0)
    second = tuner_of(script, tmp_path)
    second.search(verbose=0)
    visited, best = expected_search(script, 5.0, True)
    assert [norm for _, norm in [*first.ran, *second.ran]] == [
        norm for epoch in visited for norm in epoch
    ]
    assert second.best_schedule().values == best


def test_a_finished_search_is_continued_with_the_same_settings_only(tmp_path):
    script = table(5, ties=False)
    tuner_of(script, tmp_path).search(verbose=0)
    again = tuner_of(script, tmp_path)
    again.search(verbose=0)
    assert again.ran == []
    more = tuner_of(script, tmp_path, epochs=EPOCHS + 1)
    more.search(verbose=0)
    assert {epoch for epoch, _ in more.ran} == {EPOCHS + 1}
    for changed in ({"start": 0.2}, {"max_drop": 0.1}, {"step": 2.0, "spacing": "geometric"}):
        with pytest.raises(ValueError, match="holds a search with other settings"):
            tuner_of(script, tmp_path, **changed)


def test_several_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "worker0")
    with pytest.raises(ValueError, match="A greedy search runs in one process"):
        tuner_of(table(5), tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"start": 0.0}, "`start` must be positive"),
        ({"step": 0.0}, "`step` must be positive"),
        ({"step": 1.0, "spacing": "geometric"}, "`step` must be above 1"),
        ({"max_drop": -0.1}, "`max_drop` must not be negative"),
        ({"spacing": "cubic"}, "`spacing` must be one of 'linear', 'geometric'"),
        ({"max_clip_norm": 0.01}, "`max_clip_norm` must be at least `start`, 0.1"),
        ({"max_trials_per_epoch": 0}, "`max_trials_per_epoch` must be at least 1"),
    ],
)
def test_arguments_out_of_range(tmp_path, changed, message):
    with pytest.raises(ValueError, match=message):
        tuner_of(table(5), tmp_path, **changed)


def test_only_weights_that_may_win_are_kept(tmp_path):
    kept = []

    class Watches(ScriptedTuner):
        def on_trial_end(self, trial):
            super().on_trial_end(trial)
            found = (tmp_path / "scripted").glob("trial_*/*.weights.h5")
            kept.append(sorted(path.read_text() for path in found))

    scores = [0.1, 0.3, 0.2, 0.4, 0.3, 0.35]
    tuner = tuner_of(lambda epoch, number: scores[number], tmp_path, tuner=Watches)
    tuner.search(verbose=0)
    assert kept[:MOST] == [["0000"], ["0001"], ["0001"], ["0003"], ["0003"], ["0003"]]
    assert kept[-1] == ["0003", "0009", "0015"]
    assert [trial.trial_id for trial in tuner.oracle.get_best_trials(9)] == kept[-1]


def test_progress_and_summary_say_that_the_search_is_not_private(tmp_path, capsys):
    tuner = tuner_of(table(5, ties=False), tmp_path)
    tuner.search(verbose=1)
    shown = capsys.readouterr().out
    assert (shown.count("NOT private"), shown.count("\nepoch ")) == (1, EPOCHS * MOST)
    tuner.results_summary()
    shown = capsys.readouterr().out
    assert (shown.count("NOT private"), shown.count("clip_norm: ")) == (1, EPOCHS)


@given(st.floats(0.01, 10.0), st.floats(0.0, 2.0), st.integers(2, 8))
def test_the_trend_of_a_power_law_is_that_law(initial, power, num_epochs):
    tuner = object.__new__(tuners.GreedyClipTuner)
    norms = [initial / epoch**power for epoch in range(1, num_epochs + 1)]
    tuner.best_schedule = lambda: PiecewiseConstant(norms)
    trend = tuner.trend()
    assert trend.initial_value == pytest.approx(initial)
    assert trend.power == pytest.approx(power, abs=1e-6)
