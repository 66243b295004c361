"""The search of one epoch alone, against algorithm 1 written out in `scripted`."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_adaclip.tuners import GreedyRule
from tests.tuners.scripted import algorithm_1

SCORES = st.lists(
    st.one_of(
        st.integers(0, 8).map(lambda value: value / 8),
        st.floats(-1.0, 1.0),
        st.sampled_from([math.nan, math.inf, -math.inf]),
    ),
    min_size=60,
    max_size=60,
)


def run(rule, scores):
    """The thresholds that `replay` asks for, one after the other, and the best one."""
    known, visited = {}, []
    while not (replayed := rule.replay(known)).is_done:
        visited.append(rule.threshold(replayed.wanted))
        known[replayed.wanted] = scores(replayed.wanted)
    return visited, None if replayed.best is None else rule.threshold(replayed.best)


@given(SCORES, st.sampled_from([0.0, 0.02, 0.125, 0.5, 2.0]), st.integers(1, 60))
def test_visits_are_those_of_algorithm_1(scores, max_drop, most):
    rule = GreedyRule(0.05, 0.01, max_drop, max_thresholds=most)
    expected = algorithm_1(scores.__getitem__, 0.05, 0.01, max_drop, most)
    assert run(rule, scores.__getitem__) == expected


@given(SCORES, st.floats(0.1, 2.0))
def test_no_threshold_passes_the_largest(scores, largest):
    rule = GreedyRule(0.1, 0.1, 0.1, max_clip_norm=largest)
    expected = algorithm_1(scores.__getitem__, 0.1, 0.1, 0.1, 60, largest)
    assert run(rule, scores.__getitem__) == expected


@given(SCORES, st.data())
def test_scores_beyond_the_end_change_nothing(scores, data):
    """What other workers tried ahead plays no part, in whatever order it comes in."""
    rule = GreedyRule(0.05, 0.01, 0.125, max_thresholds=40, refinements=2)
    visited, best = run(rule, lambda position: scores[position % 60])
    others = data.draw(st.sets(st.integers(0, 300)))
    known = {position: scores[position % 60] for position in others}
    while not (replayed := rule.replay(known)).is_done:
        known[replayed.wanted] = scores[replayed.wanted % 60]
    assert [rule.threshold(position) for position in replayed.visited] == visited
    assert (None if replayed.best is None else rule.threshold(replayed.best)) == best


@given(SCORES, st.data())
def test_trying_ahead_never_skips_and_never_repeats(scores, data):
    rule = GreedyRule(0.05, 0.01, 0.125, max_thresholds=40, refinements=1)
    known, running = {}, set()
    while not rule.replay(known).is_done:
        ahead = rule.ahead(known, running)
        if ahead is not None:
            assert ahead not in known
            assert ahead not in running
        # What is wanted is begun before anything is tried ahead of it.
        assert rule.replay(known).wanted in {*running, ahead}
        if ahead is not None and (not running or data.draw(st.booleans())):
            running.add(ahead)
        else:
            ended = data.draw(st.sampled_from(sorted(running)))
            running.remove(ended)
            known[ended] = scores[ended % 60]


def test_ties_keep_the_smaller_threshold():
    assert run(GreedyRule(0.1, 0.1, 0.0, max_thresholds=3), lambda position: 0.5)[1] == 0.1


def test_a_drop_of_just_max_drop_does_not_end_the_search():
    scores = [0.75, 0.5, 0.625, 0.25]
    visited, best = run(GreedyRule(1.0, 1.0, 0.25), scores.__getitem__)
    assert (visited, best) == ([1.0, 2.0, 3.0, 4.0], 1.0)


def test_rounding_does_not_add_up():
    rule = GreedyRule(0.05, 0.01)
    assert rule.threshold(200_000) == 0.05 + 200_000 * 0.01


def test_geometric_steps_are_factors():
    rule = GreedyRule(0.1, 2.0, 0.0, spacing="geometric", max_clip_norm=1.0)
    visited, best = run(rule, lambda position: position)
    assert visited == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert best == pytest.approx(0.8)


def test_refinements_halve_the_spacing_around_the_best():
    def score(position):  # highest at 0.33
        return -abs(0.1 + 0.1 * position / 4 - 0.33)

    rule = GreedyRule(0.1, 0.1, 0.1, refinements=2)
    visited, best = run(rule, score)
    assert visited == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.25, 0.35, 0.325, 0.375])
    assert best == pytest.approx(0.325)


def test_refinements_stay_within_the_range():
    rule = GreedyRule(0.1, 0.1, 0.0, refinements=1, max_clip_norm=0.2)
    assert run(rule, lambda position: -position)[0] == pytest.approx([0.1, 0.2, 0.15])
    assert run(rule, lambda position: position)[0] == pytest.approx([0.1, 0.2, 0.15])


def test_without_a_finite_score_there_is_no_best():
    assert run(GreedyRule(0.1, 0.1, max_thresholds=4), lambda position: math.nan)[1] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"start": 0.0}, "`start` must be above 0"),
        ({"step": 0.0}, "`step` must be above 0"),
        ({"step": 1.0, "spacing": "geometric"}, "`step` must be above 1"),
        ({"max_drop": -0.1}, "`max_drop` must be at least 0"),
        ({"spacing": "cubic"}, "`spacing` must be one of 'linear', 'geometric'"),
        ({"max_clip_norm": 0.01}, "`max_clip_norm` must be at least 0.05"),
        ({"max_thresholds": 0}, "`max_thresholds` must lie between 1"),
        ({"refinements": -1}, "`refinements` must lie between 0 and 20"),
        ({"start": math.nan}, "`start` must be finite"),
    ],
)
def test_arguments_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        GreedyRule(**options)
