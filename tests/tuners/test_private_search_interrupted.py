"""Private searches that are interrupted, begun twice, or meant for another folder."""

import keras_tuner
import pytest

from keras_adaclip.tuners.private_runs import SearchRecord
from tests.tuners.hypermodels import Scored, draw_numbers, files_below, planned, run, search_of
from tests.tuners.test_private_search import RECORD

DELTA = 1e-3


def die(*arguments, **others):
    raise KeyboardInterrupt


class Killed(Scored):
    """Is interrupted in its second run."""

    def fit(self, hp, *arguments, **others):
        value = super().fit(hp, *arguments, **others)
        return die() if len(self.seen) == 2 else value


def assert_releases_nothing(search):
    for use in (lambda: run(search), search.best_model, search.get_best_hyperparameters):
        with pytest.raises(RuntimeError, match=r"was interrupted.*cost of both"):
            use()
    assert search.privacy_spent(DELTA).epsilon > search.privacy_spent(DELTA).epsilon_of_one_run


def test_an_interrupted_search_releases_nothing_and_is_not_run_again(tmp_path, monkeypatch):
    draw_numbers(monkeypatch, 7919)
    first = search_of(Killed(), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(first)
    second = search_of(Scored(), tmp_path)
    for search in (first, second):
        assert_releases_nothing(search)
    assert (len(first.hypermodel.seen), second.hypermodel.seen) == (2, [])
    # Neither the best weights so far nor the number of runs.
    assert files_below(tmp_path / "p") == [RECORD]
    assert "7919" not in (tmp_path / "p" / RECORD).read_text()


@pytest.mark.parametrize("killed", ["os.fsync", "pathlib.Path.replace", "json.dumps"])
def test_a_search_killed_at_its_end_releases_nothing(tmp_path, monkeypatch, killed):
    draw_numbers(monkeypatch, 3)
    search = search_of(Scored(), tmp_path)
    end = SearchRecord.end

    def end_or_die(self, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(killed, die)
            end(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(SearchRecord, "end", end_or_die)
        with pytest.raises(KeyboardInterrupt):
            run(search)
    assert_releases_nothing(search_of(Scored(), tmp_path))


def test_a_record_of_which_a_part_was_written_is_refused(tmp_path):
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / RECORD).write_text('{"format": "keras')
    with pytest.raises(ValueError, match="is not a record"):
        search_of(Scored(), tmp_path)


def test_an_object_made_before_another_search_began_does_not_tell_of_it(tmp_path, monkeypatch):
    draw_numbers(monkeypatch, 1)
    small = search_of(Scored(), tmp_path, base=planned(50.0))
    run(search_of(Scored(), tmp_path, base=planned(1.0)))
    for use in (lambda: run(small), small.best_model, lambda: small.privacy_spent(DELTA)):
        with pytest.raises(ValueError, match="has another `base`"):
            use()
    with pytest.raises(ValueError, match="has another `validation_is_public`"):
        search_of(Scored(), tmp_path, base=planned(1.0), validation_is_public=True)


def test_of_two_searches_that_begin_at_once_one_runs(tmp_path, monkeypatch):
    draw_numbers(monkeypatch, 2)
    first = search_of(Scored(), tmp_path)

    class Slow(Scored):
        def build(self, hp):
            if first.hypermodel.seen == [] and begun:
                run(first)
            return super().build(hp)

    begun = []
    second = search_of(Slow(), tmp_path)
    begun.append(True)
    run(second)
    assert len(first.hypermodel.seen) == 2
    assert second.hypermodel.seen == []
    assert second.best_score == first.best_score


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
