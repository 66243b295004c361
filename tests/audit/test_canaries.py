"""Canaries: what they are, and what training sees of them."""

import numpy as np
import pytest
from scipy import stats

from keras_adaclip.audit import CANARY_KINDS, Canaries


def data(num_examples=300):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(num_examples, 4)).astype(np.float32)
    x[:, 3] = 7.0
    return x, generator.integers(10, size=num_examples)


@pytest.mark.parametrize("kind", CANARY_KINDS)
def test_only_canaries_differ_from_the_data(kind):
    x, y = data()
    before = x.copy(), y.copy()
    canaries = Canaries.draw(x, y, num_canaries=100, kind=kind)
    assert np.array_equal(x, before[0])
    assert np.array_equal(y, before[1])
    assert len(canaries) == 100 == len(np.unique(canaries.rows))
    others = np.setdiff1d(np.arange(300), canaries.rows)
    assert np.array_equal(canaries.x[others], x[others])
    assert np.array_equal(canaries.y[others], y[others])
    changed_inputs = np.any(canaries.x != x, axis=1)[canaries.rows].mean()
    changed_targets = np.mean(canaries.y[canaries.rows] != y[canaries.rows])
    assert changed_inputs == (1.0 if kind == "random" else 0.0)
    # Of ten classes one target in ten is the same by chance.
    low, high = {"random": (0.7, 0.99), "mislabeled": (1.0, 1.0), "unchanged": (0.0, 0.0)}[kind]
    assert low <= changed_targets <= high


def test_random_inputs_lie_within_the_range_of_the_data_at_their_place():
    generator = np.random.default_rng(0)
    x = {
        "real": np.float32(generator.normal(size=(200, 3)) * [1.0, 10.0, 0.0]),
        "token": generator.integers(2, 9, size=(200, 5)),
        "flag": generator.random((200, 2)) < 0.1,
        "byte": generator.integers(0, 256, size=(200, 2)).astype(np.uint8),
    }
    canaries = Canaries.draw(x, num_canaries=200, seed=1)
    for name, array in x.items():
        drawn = canaries.x[name]
        assert drawn.dtype == array.dtype
        assert np.all(drawn >= array.min(axis=0))
        assert np.all(drawn <= array.max(axis=0))
    assert set(np.unique(canaries.x["token"])) == set(range(2, 9))
    assert canaries.y is None


def test_coins_are_fair_and_independent_of_each_other():
    x, y = data(2)
    heads = np.array([Canaries.draw(x, y, num_canaries=2).is_member for _ in range(2000)])
    for count in (heads[:, 0].sum(), heads[:, 1].sum(), (heads[:, 0] ^ heads[:, 1]).sum()):
        assert stats.binomtest(int(count), 2000).pvalue > 1e-6


def test_a_seed_repeats_canaries_and_coins():
    x, y = data()
    first, again, other = (Canaries.draw(x, y, num_canaries=99, seed=seed) for seed in (5, 5, 6))
    assert np.array_equal(first.is_member, again.is_member)
    assert np.array_equal(first.x, again.x)
    assert np.array_equal(first.y, again.y)
    assert not np.array_equal(first.is_member, other.is_member)


def test_training_never_draws_a_canary_that_is_out_and_the_rest_as_ever():
    x, y = data()
    canaries = Canaries.draw(x, y, num_canaries=200)
    dataset = canaries.dataset(batch_size=30)
    # 100 rows that are no canaries, and half of 200 that are, whatever the coins say.
    assert (dataset.num_examples, len(dataset)) == (200, 7)
    assert dataset.sampling_probability == 0.15
    counts, num_draws = np.zeros(300, int), 400
    for _ in range(num_draws):
        counts[dataset.draw()] += 1
    out = canaries.rows[~canaries.is_member]
    assert np.all(counts[out] == 0)
    present = np.delete(counts, out)
    assert stats.binomtest(int(present.sum()), num_draws * len(present), 0.15).pvalue > 1e-6
    # The spread over rows is the binomial's, too.
    ratio = np.sum((present - num_draws * 0.15) ** 2) / (num_draws * 0.15 * 0.85)
    assert stats.chi2.sf(ratio, len(present)) > 1e-6
    assert stats.chi2.cdf(ratio, len(present)) > 1e-6
