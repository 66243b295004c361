"""Private searches that are interrupted, begun twice, or meant for another folder."""

import keras_tuner
import pytest

from keras_adaclip.tuners.private_record import SearchRecord, SearchState
from tests.tuners.hypermodels import Scored, draw_numbers, files_below, planned, run, search_of
from tests.tuners.test_private_search import RELEASED_FILES

DELTA = 1e-3


def die(*arguments, **others):
    raise KeyboardInterrupt


class Killed(Scored):
    """Is interrupted in the run with this index."""

    def __init__(self, at, score=float):
        super().__init__(score)
        self.at = at

    def fit(self, hp, *arguments, **others):
        value = super().fit(hp, *arguments, **others)
        if len(self.seen) == self.at:
            raise KeyboardInterrupt
        return value


@pytest.mark.parametrize("in_same_process", [False, True])
def test_an_interrupted_search_goes_on_with_the_same_number(tmp_path, monkeypatch, in_same_process):
    draw_numbers(monkeypatch, 7, 100)
    # Two draws of a level hardly ever agree.
    monkeypatch.setattr(Scored, "values", tuple(range(1, 10_000)))
    first = search_of(Killed(at=4), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(first)
    if in_same_process:
        second, before = run(first), first.hypermodel.seen[:4]
        seen = first.hypermodel.seen[4:]
    else:
        second, before = run(search_of(Scored(), tmp_path)), first.hypermodel.seen
        seen = second.hypermodel.seen
    # The interrupted one again, with the same hyperparameters, and the three that were left.
    assert len(seen) == 4
    assert seen[0] == before[3]
    assert second.best_score == min(before + seen)
    assert files_below(tmp_path / "p") == RELEASED_FILES


def test_a_search_that_has_ended_is_read_again(tmp_path, monkeypatch):
    draw_numbers(monkeypatch, 3)
    with monkeypatch.context() as patch:
        # Killed while it cleans up.
        patch.setattr(SearchRecord, "_remove_runs", lambda self: None)
        first = run(search_of(Scored(), tmp_path))
    (tmp_path / "p" / "run_0.weights.h5").touch()
    second = search_of(Scored(), tmp_path)
    assert files_below(tmp_path / "p") == RELEASED_FILES
    assert second.best_score == first.best_score
    run(second)
    assert second.hypermodel.seen == []


def test_another_search_cannot_go_on_with_it(tmp_path, monkeypatch):
    draw_numbers(monkeypatch, 3)
    with pytest.raises(KeyboardInterrupt):
        run(search_of(Killed(at=2), tmp_path))
    with pytest.raises(ValueError, match="has another `validation_is_public`"):
        search_of(Scored(), tmp_path, validation_is_public=True)


def test_an_object_made_before_another_search_began_does_not_tell_of_it(tmp_path, monkeypatch):
    draw_numbers(monkeypatch, 1)
    small = search_of(Scored(), tmp_path, base=planned(50.0))
    run(search_of(Scored(), tmp_path, base=planned(1.0)))
    for use in (lambda: run(small), small.best_model, lambda: small.privacy_spent(DELTA)):
        with pytest.raises(ValueError, match="has another `base`"):
            use()


@pytest.mark.parametrize("moment", ["save", "keep_best", "end", "unlink"])
def test_a_process_killed_between_two_writes_keeps_the_best_run(tmp_path, monkeypatch, moment):
    """The best weights and the record always belong together."""
    draw_numbers(monkeypatch, 3)
    scores = iter([3.0, 1.0, 2.0, 2.0, 2.0])
    first = search_of(Scored(lambda level: next(scores)), tmp_path)

    with monkeypatch.context() as patch:
        if moment == "save":
            save, saves = SearchRecord.save, []

            def save_or_die(self, state):
                saves.append(state)
                return die() if len(saves) == 6 else save(self, state)

            patch.setattr(SearchRecord, "save", save_or_die)
        elif moment == "unlink":
            patch.setattr("pathlib.Path.unlink", die)
        else:
            patch.setattr(SearchRecord, moment, die)
        with pytest.raises(KeyboardInterrupt):
            run(first)
    second = run(search_of(Scored(lambda level: next(scores)), tmp_path))
    assert second.best_score == 1.0
    (values,) = second.get_best_hyperparameters()
    assert (second.best_model().get_weights()[0] == values.get("level")).all()
    assert files_below(tmp_path / "p") == RELEASED_FILES


def test_a_process_killed_while_it_writes_the_record_leaves_the_old_one(tmp_path, monkeypatch):
    record = SearchRecord(tmp_path, {})
    record.begin(planned(), 3)
    monkeypatch.setattr("os.fsync", die)
    for write in (lambda: record.save(SearchState(3, 1)), lambda: record.end("released")):
        with pytest.raises(KeyboardInterrupt):
            write()
        assert SearchRecord(tmp_path, {}).state == SearchState(3)


def test_two_searches_at_once_in_one_folder_are_refused(tmp_path, monkeypatch):
    draw_numbers(monkeypatch, 2)
    refused = []

    class Nested(Scored):
        def fit(self, *arguments, **others):
            with pytest.raises(RuntimeError, match="Another search is running"):
                run(search_of(Scored(), tmp_path))
            refused.append(True)
            return super().fit(*arguments, **others)

    search = run(search_of(Nested(), tmp_path))
    assert len(refused) == len(search.hypermodel.seen) == 2
    assert files_below(tmp_path / "p") == RELEASED_FILES


def test_a_fatal_error_ends_the_search_for_good(tmp_path, monkeypatch):
    """A run that is tried again until it does not fail is no run of the law."""
    draw_numbers(monkeypatch, 3)

    class Fatal(Scored):
        def fit(self, *arguments, **others):
            super().fit(*arguments, **others)
            raise keras_tuner.errors.FatalError

    search = search_of(Fatal(), tmp_path)
    with pytest.raises(keras_tuner.errors.FatalError):
        run(search)
    assert len(search.hypermodel.seen) == 1
    with pytest.raises(RuntimeError, match="raised a `FatalError`"):
        run(search_of(Scored(), tmp_path))
