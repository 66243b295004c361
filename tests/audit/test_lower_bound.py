"""Right guesses to a bound: against sums by hand, and against mechanisms of known epsilon."""

import math

import numpy as np
import pytest
from scipy import stats

from keras_adaclip.audit import OneRunAudit, audit_p_value, epsilon_lower_bound


def p_value_by_hand(num_canaries, num_guesses, num_correct, epsilon, delta):
    q = math.exp(epsilon) / (1 + math.exp(epsilon))

    def probability(number):
        return math.comb(num_guesses, number) * q**number * (1 - q) ** (num_guesses - number)

    def total(first, end):
        return sum(probability(number) for number in range(first, end))

    means = (total(num_correct - i, num_correct) / i for i in range(1, num_correct + 1))
    alpha = max(means, default=0.0)
    return min(1.0, total(num_correct, num_guesses + 1) + 2 * num_canaries * delta * alpha)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("delta", [0.0, 1e-4, 0.1])
@pytest.mark.parametrize(("guesses", "correct"), [(1, 0), (1, 1), (20, 15), (40, 40), (40, 0)])
def test_the_p_value_is_the_theorems(guesses, correct, epsilon, delta):
    expected = p_value_by_hand(50, guesses, correct, epsilon, delta)
    assert audit_p_value(50, guesses, correct, epsilon, delta) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.999])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_the_bound_is_where_the_p_value_crosses_the_level(delta, confidence):
    bound = epsilon_lower_bound(1000, 200, 190, delta, confidence)
    assert p_value_by_hand(1000, 200, 190, bound, delta) <= 1 - confidence
    assert p_value_by_hand(1000, 200, 190, bound + 1e-3, delta) > 1 - confidence


def at_most_as_often(failures, runs, rate, false_alarm=1e-4):
    """Whether so many failures are no surprise where each has at most the probability `rate`."""
    return stats.binom.sf(failures - 1, runs, rate) > false_alarm


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("num_guesses", [None, 100])
def test_randomized_response_is_seldom_said_to_tell_more_than_it_does(epsilon, num_guesses):
    generator = np.random.default_rng(3)
    runs, num_canaries, confidence = 200, 200, 0.9
    failures = bounded = 0
    for _ in range(runs):
        is_member = generator.random(num_canaries) < 0.5
        is_honest = generator.random(num_canaries) < 1 / (1 + math.exp(-epsilon))
        # Ties are broken by chance, apart from the coins.
        scores = np.where(is_honest, is_member, ~is_member) + 0.1 * generator.random(num_canaries)
        options = {"confidence": confidence, "num_guesses": num_guesses}
        audit = OneRunAudit.from_scores(scores, is_member, delta=0.0, **options)
        failures += audit.epsilon_lower_bound > epsilon
        bounded += audit.epsilon_lower_bound
    assert at_most_as_often(failures, runs, 1 - confidence)
    assert bounded / runs > 0.6 * epsilon - 0.2  # and the bound is worth something


def test_a_mechanism_that_tells_all_with_probability_delta_keeps_within_delta():
    generator = np.random.default_rng(4)
    runs, num_canaries, delta = 1500, 60, 0.05
    failures = 0
    for _ in range(runs):
        is_member = generator.random(num_canaries) < 0.5
        tells = generator.random() < delta
        scores = is_member.astype(float) if tells else generator.random(num_canaries)
        audit = OneRunAudit.from_scores(scores, is_member, delta=delta, confidence=0.99)
        failures += audit.epsilon_lower_bound > 0.0
    assert at_most_as_often(failures, runs, 0.01)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_equal_scores_tell_nothing_also_where_members_stand_together(value):
    audit = OneRunAudit.from_scores(np.full(400, value), np.arange(400) >= 200, delta=1e-5)
    assert audit.epsilon_lower_bound < 0.5


def test_the_ends_of_the_order_are_guessed():
    is_member = np.array([True, False, True, False, True, False])
    scores = [0.0, 1.0, np.nan, 2.0, 5.0, 4.0]
    audit = OneRunAudit.from_scores(scores, is_member, delta=0.0, num_guesses=3)
    # In: 5.0 and 4.0; out: NaN, the lowest.
    assert (audit.num_guesses, audit.num_correct) == (3, 1)


@pytest.mark.parametrize(
    ("claimed", "contradicts", "words"),
    [(2.0, True, "at most 2: they contradict"), (6.0, False, "agree"), (np.inf, False, "nothing")],
)
def test_the_audit_is_stated_beside_the_accountant(claimed, contradicts, words):
    is_member = np.arange(400) >= 200
    audit = OneRunAudit.from_scores(np.arange(400), is_member, delta=1e-5, claimed_epsilon=claimed)
    assert audit.contradicts_accountant == contradicts
    assert "400 of 400 guesses about 400 canaries were right" in str(audit)
    assert words in str(audit)
