"""Membership inference: the curve against pairs by hand, the intervals against known laws."""

import keras
import numpy as np
import pytest
from scipy import stats

import keras_adaclip as ka


def given_scores(model, x, y):
    return x[:, 0]


def attack(members, non_members, **options):
    members, non_members = (np.asarray(part, float)[:, None] for part in (members, non_members))
    return ka.audit.membership_inference(None, members, non_members, score=given_scores, **options)


def test_the_area_is_the_share_of_pairs_in_order():
    generator = np.random.default_rng(0)
    members = generator.normal(1, 1, 60).round(1)
    others = generator.normal(0, 1, 80).round(1)
    difference = members[:, None] - others
    expected = np.mean(difference > 0) + np.mean(difference == 0) / 2
    assert attack(members, others).auc == pytest.approx(expected)


def test_points_are_the_most_members_at_no_more_than_the_wanted_false_positives():
    generator = np.random.default_rng(1)
    members, others = generator.normal(1, 1, 500), generator.normal(0, 1, 400)
    found = attack(members, others, false_positive_rates=(0.0, 0.01, 0.1, 1.0))
    for point in found.points:
        allowed = [
            np.mean(members >= threshold)
            for threshold in np.concatenate([members, others])
            if np.mean(others >= threshold) <= point.wanted_false_positive_rate
        ]
        assert point.true_positive_rate == pytest.approx(max(allowed))
        assert point.false_positive_rate <= point.wanted_false_positive_rate
        assert np.mean(members >= point.threshold) == pytest.approx(point.true_positive_rate)
        assert np.mean(others >= point.threshold) == pytest.approx(point.false_positive_rate)
        for rate, interval, total in (
            (point.true_positive_rate, point.true_positive_interval, 500),
            (point.false_positive_rate, point.false_positive_interval, 400),
        ):
            exact = stats.binomtest(round(rate * total), total).proportion_ci(method="exact")
            assert interval == pytest.approx((exact.low, exact.high))


@pytest.mark.parametrize("shift", [0.0, 0.5, 3.0])
def test_the_area_lies_in_its_interval_as_often_as_it_says(shift):
    """Binormal scores; the interval is approximate, so 90% may be 83% at worst."""
    generator = np.random.default_rng(2)
    true = stats.norm.cdf(shift / np.sqrt(2))
    runs, held = 200, 0
    for _ in range(runs):
        found = attack(generator.normal(shift, 1, 60), generator.normal(0, 1, 60), confidence=0.9)
        held += found.auc_interval[0] <= true <= found.auc_interval[1]
    assert held / runs > 0.83


def test_the_losses_of_a_model_in_inference_mode():
    """The loss on a member is 0, and 1 on a non-member."""
    dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((2,)), dense, keras.layers.Dropout(0.5)])
    model.compile(loss="mse")
    x = np.random.default_rng(0).normal(size=(600, 2)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)
    found = ka.audit.membership_inference(model, (x[:300], y[:300]), (x[300:], y[300:] + 1))
    assert found.member_scores == pytest.approx(np.zeros(300), abs=1e-5)
    assert found.non_member_scores == pytest.approx(-np.ones(300), abs=1e-5)
    assert found.auc == 1.0
    assert [point.true_positive_rate for point in found.points] == [1.0, 1.0, 1.0]
    assert "area under the ROC curve 1.000" in str(found)
    assert "300 members and 300 non-members (95% intervals)" in str(found)


def test_nan_counts_as_the_lowest_score():
    assert attack([np.nan, np.nan], [0.0, -np.inf]).auc == 0.25
    assert attack([1.0, np.inf], [np.nan, 0.0]).auc == 1.0


def test_a_score_that_is_not_one_number_an_example():
    with pytest.raises(ValueError, match=r"shape \(1, 1\) for 1 examples"):
        ka.audit.membership_inference(None, *np.zeros((2, 1, 1)), score=lambda model, x, y: x)
    with pytest.raises(ValueError, match="At least two"):
        attack([0.0], [0.0, 1.0])
