"""The search of one epoch alone, against algorithm 1 written out in `scripted`."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_adaclip.tuners.greedy_oracle import GreedyRule
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
    """The norms that the rule asks for, one after the other, and the best one."""
    known, visited = [], []
    while (norm := rule.next_norm(known)) is not None:
        visited.append(norm)
        known.append(scores[len(known)])
    best = rule.best(known)
    return visited, None if best is None else visited[best]


@given(
    SCORES,
    st.sampled_from([0.0, 0.02, 0.125, 0.5, 2.0]),
    st.integers(1, 60),
    st.one_of(st.floats(0.05, 2.0), st.just(1e15)),
)
def test_visits_are_those_of_algorithm_1(scores, max_drop, most, largest):
    rule = GreedyRule(0.05, 0.01, max_drop, max_trials=most, max_clip_norm=largest)
    expected = algorithm_1(scores.__getitem__, 0.05, 0.01, max_drop, most, largest)
    assert run(rule, scores) == expected


def test_ties_keep_the_smaller_norm():
    assert run(GreedyRule(0.1, 0.1, 0.0, max_trials=3), [0.5] * 3)[1] == 0.1


def test_a_drop_of_just_max_drop_does_not_end_the_epoch():
    visited, best = run(GreedyRule(1.0, 1.0, 0.25), [0.75, 0.5, 0.625, 0.25])
    assert (visited, best) == ([1.0, 2.0, 3.0, 4.0], 1.0)


def test_geometric_steps_are_factors():
    rule = GreedyRule(0.1, 2.0, 0.0, "geometric", max_clip_norm=1.0)
    visited, best = run(rule, range(10))
    assert visited == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert best == pytest.approx(0.8)


def test_a_geometric_search_without_bound_ends():
    visited, _ = run(GreedyRule(1.0, 1e9, math.pi, "geometric"), range(200))
    assert visited == [1.0, 1e9]
