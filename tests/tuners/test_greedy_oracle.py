"""Searches with scores from a table: one worker, several, and any interruption."""

import math

import keras_tuner
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from keras_tuner.engine.trial import TrialStatus

from keras_adaclip import tuners
from keras_adaclip.tuners.greedy import greedy_clip_tuner, greedy_oracle
from keras_adaclip.tuners.greedy.greedy_oracle import GreedyOracle
from tests.tuners.scripted import ScriptedTuner, algorithm_1, table

EPOCHS, MOST = 3, 6


def expected_search(script, max_drop, higher, epochs=EPOCHS, most=MOST):
    """Visited thresholds of each epoch, and the schedule; None where no score was finite."""
    visited, best = [], []
    for epoch in range(1, epochs + 1):
        tried, norm = algorithm_1(
            lambda number, epoch=epoch: script(epoch, number, 0),
            0.1,
            0.1,
            max_drop,
            most,
            higher=higher,
        )
        visited.append(tried)
        best.append(norm)
        if norm is None:
            return visited, None
    return visited, best


def options(higher, max_drop):
    return {
        "start": 0.1,
        "step": 0.1,
        "max_drop": max_drop,
        "epochs": EPOCHS,
        "max_trials_per_epoch": MOST,
        "objective": keras_tuner.Objective("val_mae", "max" if higher else "min"),
    }


@settings(max_examples=10, phases=[Phase.generate])
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from([0.0, 0.3, 5.0]))
def test_one_worker_visits_what_algorithm_1_does(tmp_path_factory, seed, higher, max_drop):
    script = table(seed)
    visited, best = expected_search(script, max_drop, higher)
    tuner = ScriptedTuner(script, tmp_path_factory.mktemp("one"), **options(higher, max_drop))
    if best is None:
        with pytest.raises(RuntimeError, match="finite val_mae"):
            tuner.search(verbose=0)
    else:
        tuner.search(verbose=0)
        assert tuner.best_schedule().values == best
    assert tuner.visited == visited


def test_an_epoch_begins_from_the_best_trial_of_the_one_before(tmp_path):
    script = table(3, ties=False)
    tuner = ScriptedTuner(script, tmp_path, **options(True, 5.0))
    tuner.search(verbose=0)
    for epoch in range(2, EPOCHS + 1):
        scores = [script(epoch - 1, number, 0) for number in range(MOST)]
        winner = f"{(epoch - 2) * MOST + int(np.nanargmax(scores)):04d}"
        assert {parent for number, _, _, parent in tuner.ran if number == epoch} == {winner}
    assert {parent for number, _, _, parent in tuner.ran if number == 1} == {""}


class Killed(BaseException):
    """What nobody catches, like the end of a process."""


@settings(max_examples=8, phases=[Phase.generate])
@given(st.data())
def test_a_search_killed_at_any_write_goes_on_to_the_same_end(tmp_path_factory, data):
    """A process dies just before one of its files is replaced, or just after, several times."""
    script = table(data.draw(st.integers(0, 10**6)))
    visited, best = expected_search(script, 0.3, False)
    folder, ran = tmp_path_factory.mktemp("killed"), []
    moments = data.draw(st.lists(st.integers(0, 25), min_size=1, max_size=3))
    for moment in [*moments, None]:
        with pytest.MonkeyPatch.context() as patch:
            die_at_write(patch, moment, is_late=data.draw(st.booleans()))
            tuner = None
            try:
                tuner = ScriptedTuner(script, folder, **options(False, 0.3))
                tuner.search(verbose=0)
            except Killed:
                pass
            except RuntimeError:
                assert best is None
            ran += [] if tuner is None else tuner.ran
    assert [finished.threshold for finished in tuner.oracle.finished_epochs] == (
        best or [norm for norm in expected_bests(script) if norm is not None]
    )
    # Nothing was tried that one process alone would not have tried; a trial that died is there
    # twice.
    for epoch in range(1, len(visited) + 1):
        norms = [norm for number, norm, *_ in ran if number == epoch]
        assert list(dict.fromkeys(norms)) == visited[epoch - 1]
    assert len(ran) <= sum(map(len, visited)) + len(moments)


def expected_bests(script):
    """The best thresholds up to the first epoch without a finite score."""
    bests = []
    for epoch in range(1, EPOCHS + 1):
        best = algorithm_1(
            lambda number, epoch=epoch: script(epoch, number, 0), 0.1, 0.1, 0.3, MOST, higher=False
        )[1]
        if best is None:
            break
        bests.append(best)
    return bests


def die_at_write(patch, moment, is_late):
    """Raises `Killed` at the `moment`-th file that is written, before or after it is."""
    whole, remaining = greedy_oracle.write_whole, [moment]

    def write(path, text):
        if remaining[0] is not None:
            remaining[0] -= 1
        dies = remaining[0] is not None and remaining[0] < 0
        if dies and not is_late:
            raise Killed
        whole(path, text)
        if dies:
            raise Killed

    for module in (greedy_oracle, greedy_clip_tuner):
        patch.setattr(module, "write_whole", write)


def test_a_search_killed_within_a_trial_runs_it_again(tmp_path):
    script = table(5, ties=False)

    class Dies(ScriptedTuner):
        def run_trial(self, trial, *arguments, **keywords):
            if len(self.ran) == 2:
                raise Killed
            return super().run_trial(trial, *arguments, **keywords)

    first = Dies(script, tmp_path, **options(True, 5.0))
    with pytest.raises(Killed):
        first.search(verbose=0)
    second = ScriptedTuner(script, tmp_path, **options(True, 5.0))
    second.search(verbose=0)
    visited, best = expected_search(script, 5.0, True)
    assert [norm for _, norm, *_ in [*first.ran, *second.ran]] == [
        norm for epoch in visited for norm in epoch
    ]
    assert second.best_schedule().values == best


def test_a_finished_search_is_over_and_more_epochs_can_follow(tmp_path):
    script = table(5, ties=False)
    ScriptedTuner(script, tmp_path, **options(True, 5.0)).search(verbose=0)
    again = ScriptedTuner(script, tmp_path, **options(True, 5.0))
    again.search(verbose=0)
    assert again.ran == []
    more = ScriptedTuner(script, tmp_path, **{**options(True, 5.0), "epochs": EPOCHS + 1})
    more.search(verbose=0)
    assert {epoch for epoch, *_ in more.ran} == {EPOCHS + 1}
    assert len(more.best_schedule().values) == EPOCHS + 1


def test_other_settings_are_refused_on_resuming(tmp_path):
    ScriptedTuner(table(5, ties=False), tmp_path, **options(True, 5.0)).search(verbose=0)
    for name, value in (("start", 0.2), ("max_drop", 0.1), ("repeats", 2), ("seed", 1)):
        with pytest.raises(ValueError, match="begun with other settings"):
            ScriptedTuner(table(5, ties=False), tmp_path, **{**options(True, 5.0), name: value})


def test_a_failed_trial_ends_the_search_and_is_run_again(tmp_path):
    script = table(5, ties=False)

    def failing(epoch, number, repeat):
        if (epoch, number) == (2, 1):
            raise OSError("the disk is full")
        return script(epoch, number, repeat)

    first = ScriptedTuner(failing, tmp_path, **options(True, 5.0))
    with pytest.raises(RuntimeError, match=r"epoch 2, clip_norm 0\.2\) failed(.|\n)*disk is full"):
        first.search(verbose=0)
    first.script = script  # mended, in the same process
    first.search(verbose=0)
    visited, best = expected_search(script, 5.0, True)
    assert [norm for _, norm, *_ in first.ran] == [
        *visited[0],
        *visited[1][:2],
        *visited[1][1:],
        *visited[2],
    ]
    assert first.best_schedule().values == best


# Workers, as the chief of keras-tuner sees them: trials cross the wire as protocol buffers.


def oracle_in(folder, rule=None, repeats=1):
    rule = rule or tuners.GreedyRule(0.1, 0.1, 0.3, max_thresholds=MOST)
    objective = keras_tuner.Objective("val_mae", "max")
    oracle = GreedyOracle(rule, EPOCHS, objective, repeats)
    oracle._set_project_dir(str(folder), "workers")
    return oracle


def end(oracle, trial, score):
    """What a worker sends when its trial is over; its floats are of single precision."""
    sent = type(trial).from_proto(trial.to_proto())
    sent.status = TrialStatus.COMPLETED
    oracle.update_trial(sent.trial_id, {"val_mae": score})
    oracle.end_trial(type(trial).from_proto(sent.to_proto()))


@settings(max_examples=10, phases=[Phase.generate])
@given(st.data(), st.integers(2, 4), st.integers(0, 10**6), st.integers(1, 2), st.integers(0, 2))
def test_workers_in_turns_come_to_the_same_schedule(
    tmp_path_factory, data, num_workers, seed, repeats, refinements
):
    script = table(seed)
    rule = tuners.GreedyRule(0.1, 0.1, 0.3, max_thresholds=MOST, refinements=refinements)
    alone = oracle_in(tmp_path_factory.mktemp("alone"), rule, repeats)
    while (trial := alone.create_trial("alone")).status == TrialStatus.RUNNING:
        end(alone, trial, score_of(script, trial))
    oracle = oracle_in(tmp_path_factory.mktemp("workers"), rule, repeats)
    busy, stopped = {}, set()
    while len(stopped) < num_workers:
        worker = data.draw(st.sampled_from(sorted(set(range(num_workers)) - stopped)))
        if worker in busy:
            trial = busy.pop(worker)
            end(oracle, trial, score_of(script, trial))
            continue
        trial = oracle.create_trial(f"worker {worker}")
        if trial.status == TrialStatus.STOPPED:
            stopped.add(worker)
        elif trial.status == TrialStatus.RUNNING:
            busy[worker] = trial
        else:
            assert busy  # no worker waits for nothing
    assert thresholds(oracle) == thresholds(alone)
    winners = [search.winner.hyperparameters.values for search in oracle.finished_epochs]
    expected = [search.winner.hyperparameters.values for search in alone.finished_epochs]
    for one, other in zip(winners, expected, strict=True):
        for name in ("greedy/epoch", "greedy/position", "greedy/repeat"):
            assert one[name] == other[name]
    # Each epoch began from the one before.
    for number, search in enumerate(oracle.finished_epochs[1:]):
        parent = search.winner.hyperparameters.values["greedy/parent"]
        assert parent == oracle.finished_epochs[number].winner.trial_id


def score_of(script, trial):
    values = trial.hyperparameters.values
    return script(values["greedy/epoch"], values["greedy/position"], values["greedy/repeat"])


def thresholds(oracle):
    return [search.threshold for search in oracle.finished_epochs]


def test_a_chief_that_died_gives_its_trials_to_any_worker(tmp_path):
    first = oracle_in(tmp_path)
    lost = [first.create_trial(name).trial_id for name in ("a", "b")]
    second = oracle_in(tmp_path)
    second.reload()
    trials = [second.create_trial(name) for name in ("c", "d")]
    assert [trial.trial_id for trial in trials] == lost
    # The worker that was given up for lost reports after all: the first score stays.
    end(second, trials[0], 0.5)
    end(second, trials[0], 0.9)
    assert second.epoch(1).score(0) == 0.5


def test_a_trial_that_is_run_again_has_one_score(tmp_path):
    first = oracle_in(tmp_path)
    trial = first.create_trial("a")
    first.update_trial(trial.trial_id, {"val_mae": 0.9})  # and dies before the trial is ended
    second = oracle_in(tmp_path)
    second.reload()
    end(second, second.create_trial("a"), 0.1)
    assert second.epoch(1).score(0) == pytest.approx(0.1)


def test_repeats_are_averaged_and_their_best_weights_kept(tmp_path):
    scores = {0: [0.5, 0.5], 1: [0.2, 0.9], 2: [0.7, 0.1]}
    tuner = ScriptedTuner(
        lambda epoch, number, repeat: scores[number][repeat],
        tmp_path,
        **{**options(True, 5.0), "max_trials_per_epoch": 6, "epochs": 2},
        repeats=2,
    )
    tuner.search(verbose=0)
    assert tuner.best_schedule().values == [0.2, 0.2]
    assert {parent for epoch, *_, parent in tuner.ran if epoch == 2} == {"0003"}


def test_only_weights_that_may_win_are_kept(tmp_path):
    kept = []

    class Watches(ScriptedTuner):
        def on_trial_end(self, trial):
            super().on_trial_end(trial)
            found = (tmp_path / "scripted").glob("trial_*/*.weights.h5")
            kept.append(sorted(path.read_text() for path in found))

    scores = [0.1, 0.3, 0.2, 0.4, 0.3, 0.35]
    tuner = Watches(lambda epoch, number, repeat: scores[number], tmp_path, **options(True, 5.0))
    tuner.search(verbose=0)
    assert kept[:MOST] == [["0000"], ["0001"], ["0001"], ["0003"], ["0003"], ["0003"]]
    assert kept[-1] == ["0003", "0009", "0015"]
    assert [trial.trial_id for trial in tuner.oracle.get_best_trials(9)] == kept[-1]


def test_a_hypermodel_sees_the_threshold_and_keeps_its_other_defaults(tmp_path):
    oracle = oracle_in(tmp_path)
    space = oracle.get_space()
    space.Float("learning_rate", 0.1, 10.0, default=0.5)
    oracle.update_space(space)
    end(oracle, oracle.create_trial("a"), 0.5)
    values = oracle.create_trial("a").hyperparameters.values
    assert values["learning_rate"] == 0.5
    assert values["clip_norm"] == 0.2


def test_each_line_of_progress_fits_a_terminal(tmp_path, capsys):
    tuner = ScriptedTuner(table(5, ties=False), tmp_path, **options(True, 5.0))
    tuner.search(verbose=1)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("epoch ") for line in lines) == EPOCHS * MOST
    assert "This search is NOT private" in lines[0]
    assert "left unknown" in lines[3]
    assert lines[-1].endswith("left 0:00:00")
    tuner.results_summary()
    assert "This search is NOT private" in capsys.readouterr().out


def test_a_quiet_search_prints_nothing(tmp_path, capsys):
    ScriptedTuner(table(5, ties=False), tmp_path, **options(True, 5.0)).search(verbose=0)
    assert capsys.readouterr().out == ""


def test_all_epochs_of_a_constant_objective_end_at_the_cap(tmp_path):
    tuner = ScriptedTuner(lambda *_: 0.5, tmp_path, **options(False, math.pi))
    tuner.search(verbose=0)
    assert tuner.best_schedule().values == [0.1] * EPOCHS
    assert list(map(len, tuner.visited)) == [MOST] * EPOCHS
