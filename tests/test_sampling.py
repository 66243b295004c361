"""Poisson sampling: the distribution of the draws, and the rows that a step sees."""

import math

import keras
import numpy as np
import pytest
from scipy import stats

from keras_adaclip.sampling import (
    FixedShapeBatches,
    PoissonDataset,
    ProcessShare,
    split_among_devices,
)
from tests.soundness.setups import dp_sgd, line_model, recorded_fit

# Every statistical test below has a fixed seed; the stated false alarm is for another seed.
FALSE_ALARM = 1e-6


def numbered(num_examples):
    """Rows that hold their own number."""
    return np.arange(num_examples, dtype=np.float32)[:, None]


def inclusions(num_examples, batch_size, num_draws, seed=0):
    """Which rows were in which draw: bools of shape `(num_draws, num_examples)`."""
    dataset = PoissonDataset(numbered(num_examples), expected_batch_size=batch_size, seed=seed)
    drawn = np.zeros((num_draws, num_examples), bool)
    for number in range(num_draws):
        drawn[number, dataset.draw()] = True
    return drawn


@pytest.mark.parametrize(("num_examples", "batch_size"), [(20, 3), (10, 9), (7, 1), (6, 6)])
def test_each_row_is_drawn_with_the_stated_probability(num_examples, batch_size):
    """Chi-square over rows, one degree of freedom each; false alarm 1e-6."""
    num_draws = 20_000
    counts = inclusions(num_examples, batch_size, num_draws).sum(axis=0)
    q = batch_size / num_examples
    bound = stats.chi2.isf(FALSE_ALARM, num_examples)
    assert np.sum((counts - num_draws * q) ** 2) <= bound * num_draws * q * (1 - q)


def test_rows_are_drawn_independently_of_each_other():
    """Pair counts; the largest of 190 standardized counts passes 6 with probability 4e-7."""
    num_draws, q = 20_000, 3 / 20
    drawn = inclusions(20, 3, num_draws).astype(np.int64)
    together = drawn.T @ drawn
    pairs = together[np.triu_indices(20, 1)]
    deviation = math.sqrt(num_draws * q**2 * (1 - q**2))
    assert np.abs(pairs - num_draws * q**2).max() < 6 * deviation


def test_the_size_of_a_draw_is_binomial():
    """Chi-square over sizes, rare ones put together; false alarm 1e-6."""
    num_draws, law = 20_000, stats.binom(20, 3 / 20)
    sizes = inclusions(20, 3, num_draws).sum(axis=1)
    observed = np.bincount(np.minimum(sizes, 9), minlength=10)
    expected = num_draws * np.append(law.pmf(np.arange(9)), law.sf(8))
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


def draws(seed, steps_before=0, num_draws=20):
    dataset = PoissonDataset(numbered(200), expected_batch_size=50, seed=seed)
    dataset.begin_run(steps_before)
    return [tuple(dataset.draw()) for _ in range(num_draws)]


def test_a_seed_repeats_the_draws_and_never_within_or_across_runs():
    assert draws(3) == draws(3)
    found = [draws(3), draws(4), draws(3 + 2**32), draws(2**70), draws(3, 1), draws(3, 2**20)]
    assert len(set().union(*found)) == 120


def test_without_a_seed_draws_come_from_the_operating_system():
    found = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        found += draws(None)
    assert len(set(found)) == 40


def test_a_batch_holds_the_drawn_rows_of_every_part():
    x = {"a": numbered(9), "b": (numbered(9)[:, 0] * 2).astype("int64")}
    y = (numbered(9) * 3, numbered(9) * 4)
    rows = np.array([1, 4])
    batch = PoissonDataset(x, y, np.arange(9.0) * 5, expected_batch_size=3).take(rows)
    assert set(batch) == {"x", "y", "sample_weight", "mask"}
    for name in x:
        np.testing.assert_array_equal(batch["x"][name], x[name][rows])
        assert batch["x"][name].dtype == x[name].dtype
    np.testing.assert_array_equal(batch["y"], [part[rows] for part in y])
    np.testing.assert_array_equal(batch["sample_weight"], np.float32([5, 20]), strict=True)
    np.testing.assert_array_equal(batch["mask"], [True, True])


def test_padding_is_zeros_and_masked_out():
    dataset = PoissonDataset(numbered(9) + 1, expected_batch_size=3)
    batch = dataset.take(np.array([2, 3]), padded_size=4)
    np.testing.assert_array_equal(batch["x"], [[3], [4], [0], [0]])
    np.testing.assert_array_equal(batch["mask"], [True, True, False, False])
    empty = dataset.take(np.array([], np.int64))
    np.testing.assert_array_equal(empty["mask"], [False])
    np.testing.assert_array_equal(empty["x"], [[0]])


@pytest.mark.parametrize(("num_examples", "length"), [(100, 10), (101, 11), (14, 2)])
def test_an_epoch_is_the_number_of_examples_over_the_batch_size(num_examples, length):
    dataset = PoissonDataset(numbered(num_examples), expected_batch_size=10)
    assert len(dataset) == dataset.num_batches == length


@pytest.mark.parametrize(("drawn", "padded"), [(0, 24), (24, 24), (25, 40), (41, 80), (512, 520)])
def test_a_draw_of_any_size_loses_nothing(drawn, padded, monkeypatch):
    dataset = PoissonDataset(numbered(512), expected_batch_size=16)
    batches = FixedShapeBatches(dataset, 3, sizes=(24, 40))
    assert len(batches) == batches.num_batches == 3
    monkeypatch.setattr(dataset, "draw", lambda: np.arange(drawn))
    batch = batches[0]
    assert len(batch["mask"]) == len(batch["x"]) == padded
    np.testing.assert_array_equal(batch["x"][batch["mask"], 0], np.arange(drawn))


def test_a_fit_uses_the_rows_of_each_draw_and_no_others(monkeypatch):
    """Row i has the gradient -2^i, so the update of a step spells the rows that it used."""
    dataset = PoissonDataset(2.0 ** numbered(12), numbered(12) * 0, expected_batch_size=4, seed=2)
    drawn, draw = [], dataset.draw

    def recording():
        drawn.append(draw())
        return drawn[-1]

    monkeypatch.setattr(dataset, "draw", recording)
    model = line_model(dp_sgd(1e6, 0.0))
    sums = recorded_fit(model, dataset, None, None, 8).updates[:, 0] * 4
    expected = [np.sum(2.0**rows) for rows in drawn]
    # Keras may look at draws before the first step and after the last one.
    starts = range(len(expected) - len(sums) + 1)
    assert any(np.allclose(expected[start : start + len(sums)], sums) for start in starts)
    assert len(set(expected)) > 6


# Errors

X = np.zeros((6, 2), np.float32)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"expected_batch_size": 0}, ValueError, "between 1 and 6"),
        ({"expected_batch_size": 2.0}, TypeError, "must be an integer"),
        ({"y": np.zeros(5)}, ValueError, r"same number of rows .*x: \[6\], y: \[5\]"),
        ({"sample_weight": np.ones(7)}, ValueError, r"sample_weight: \[7\]"),
        ({"x": X[:0]}, ValueError, "at least one example"),
        ({"x": np.float32(1.0)}, TypeError, "first axis counts the examples"),
        ({"x": np.array([None] * 6)}, TypeError, "first axis counts the examples"),
        ({"seed": -1}, ValueError, "`seed` must not be negative"),
        ({"present": np.ones(5, bool)}, ValueError, "`present` must be a bool array"),
        ({"present": np.ones(6)}, ValueError, "`present` must be a bool array"),
        ({"present": np.ones(6, bool), "num_present": 7}, ValueError, "num_present"),
    ],
)
def test_arguments_out_of_range(arguments, error, message):
    with pytest.raises(error, match=message):
        PoissonDataset(**{"x": X, "expected_batch_size": 3, **arguments})


def test_the_law_of_the_draws_cannot_be_changed():
    """`fit` accounts for the law above."""
    with pytest.raises(TypeError, match="cannot be subclassed"):

        class All(PoissonDataset):
            def draw(self):
                return np.arange(6)

    dataset = PoissonDataset(X, expected_batch_size=3)
    for name in ("expected_batch_size", "num_examples", "sampling_probability"):
        with pytest.raises(AttributeError):
            setattr(dataset, name, 1)


# Rows that are not present


def test_rows_that_are_not_present_are_never_drawn_and_all_else_stays():
    """Chi-square over the present rows, and the mean size; false alarm 1e-6 each."""
    present = np.arange(20) % 3 != 0
    dataset = PoissonDataset(numbered(20), expected_batch_size=5, seed=0, present=present)
    assert (len(dataset), dataset.sampling_probability) == (4, 0.25)
    assert np.array_equal(dataset.present, present)
    num_draws, counts = 10_000, np.zeros(20)
    for _ in range(num_draws):
        counts[dataset.draw()] += 1
    assert np.all(counts[~present] == 0)
    statistic = np.sum((counts[present] - num_draws / 4) ** 2) / (num_draws * 3 / 16)
    assert statistic < stats.chi2.isf(FALSE_ALARM, present.sum())


def test_with_one_seed_the_others_are_drawn_alike_whoever_is_present():
    present = np.arange(20) != 7
    whole = PoissonDataset(numbered(20), expected_batch_size=5, seed=0)
    without = PoissonDataset(numbered(20), expected_batch_size=5, seed=0, present=present)
    for _ in range(20):
        rows = whole.draw()
        assert np.array_equal(without.draw(), rows[rows != 7])


def test_a_public_number_of_present_rows_sets_the_probability():
    arguments = {"expected_batch_size": 5, "present": np.arange(20) < 12, "num_present": 10}
    dataset = PoissonDataset(numbered(20), seed=0, **arguments)
    assert (dataset.num_examples, len(dataset), dataset.sampling_probability) == (10, 2, 0.5)
    sizes = [len(dataset.draw()) for _ in range(2000)]
    assert abs(np.mean(sizes) - 6) < 5 * math.sqrt(3 / 2000)


# Several processes

ROWS = (50, 30, 20)


def shares(seed=None, expected_batch_size=25, bits=(1, 2, 3, 4), rows=ROWS):
    """The rows of each process, which hold their own number."""
    starts = np.cumsum([0, *rows])
    return [
        PoissonDataset(
            np.arange(start, start + count),
            expected_batch_size=expected_batch_size,
            seed=seed,
            share=ProcessShare(rows, number, bits, {"x": np.zeros(1), "mask": np.ones(1, bool)}),
        )
        for number, (start, count) in enumerate(zip(starts, rows, strict=False))
    ]


@pytest.mark.parametrize("seed", [None, 5])
def test_all_processes_together_make_one_poisson_draw(seed):
    num_draws, parts = 4000, shares(seed)
    assert (parts[0].num_examples, parts[0].sampling_probability, len(parts[0])) == (100, 0.25, 4)
    found = np.zeros((num_draws, 100))
    for draw in range(num_draws):
        for part in parts:
            rows = part.draw()
            found[draw, part.take(rows)["x"][: len(rows)]] = 1.0
    # Each row: two-sided chi-square.
    statistic = np.sum((found.sum(0) - num_draws / 4) ** 2 / (num_draws * 3 / 16))
    assert FALSE_ALARM < stats.chi2(100).sf(statistic) < 1 - FALSE_ALARM
    # The size of the whole draw: binomial, rare sizes put together.
    sizes, law = np.bincount(np.clip(found.sum(1), 18, 32).astype(int)), stats.binom(100, 0.25)
    expected = [law.cdf(18), *law.pmf(np.arange(19, 32)), law.sf(31)]
    assert stats.chisquare(sizes[18:], num_draws * np.array(expected)).pvalue > FALSE_ALARM
    # Pairs of rows, 4,950 of them; a stream shared by two processes would give one of 60.
    correlations = np.corrcoef(found.T)[np.triu_indices(100, 1)] * np.sqrt(num_draws)
    assert np.abs(correlations).max() < 6


def test_all_processes_agree_on_a_size_and_lose_nothing():
    batches = [FixedShapeBatches(part, 4, sizes=(24, 60), num_shards=6) for part in shares()]
    for index in range(100):
        sizes = {len(each[index]["mask"]) for each in batches}
        assert len(sizes) == 1
        assert sizes <= {8, 20, 40}
    # Two devices in each process: padding stands at the end of the half of each.
    mask = batches[0][0]["mask"].reshape(2, -1)
    assert np.all(mask[:, :-1] >= mask[:, 1:])
    assert abs(int(mask[0].sum()) - int(mask[1].sum())) <= 1
    batch = FixedShapeBatches(shares(expected_batch_size=100)[0], 1, sizes=(24,))[0]
    assert (batch["mask"].sum(), len(batch["mask"])) == (50, 56)


def test_rows_are_split_among_devices_and_none_is_lost():
    batch = {"x": np.arange(12).reshape(6, 2), "mask": np.arange(6) < 4}
    found = split_among_devices(batch, 3)
    np.testing.assert_array_equal(found["mask"], [True, True, True, False, True, False])
    assert sorted(found["x"][:, 0].tolist()) == [0, 2, 4, 6, 8, 10]
    assert split_among_devices(batch, 1) is batch


@pytest.mark.parametrize("max_batch_size", [None, 40])
def test_drawn_rows_stand_in_random_order(max_batch_size):
    """The first of them is any of the rows: its mean is off by less than six standard errors."""
    x = np.arange(100)
    options = {"expected_batch_size": 30, "seed": 1, "max_batch_size": max_batch_size}
    dataset = PoissonDataset(x, **options)
    first, last = np.array([dataset.draw()[[0, -1]] for _ in range(2000)]).T
    assert abs(first.mean() - 49.5) < 6.0 * 28.9 / 2000**0.5
    assert abs(last.mean() - 49.5) < 6.0 * 28.9 / 2000**0.5
