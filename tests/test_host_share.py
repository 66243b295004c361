"""Poisson sampling over processes: the law of one draw, whoever holds the rows."""

import numpy as np
import pytest
from scipy import stats

from keras_adaclip.sampling import HostShare, PoissonDataset, SharedBatches, dealt

ROWS = (50, 30, 20)
FALSE_ALARM = 1e-6


def shares(seed=None, expected_batch_size=25, bits=(1, 2, 3, 4), rows=ROWS):
    """What each process makes of its rows."""
    starts = np.cumsum([0, *rows])
    return [
        HostShare(
            PoissonDataset(np.arange(start, start + count), expected_batch_size=1),
            rows,
            number,
            {"x": np.zeros(1), "mask": np.ones(1, bool)},
            expected_batch_size,
            bits,
            seed,
        )
        for number, (start, count) in enumerate(zip(starts, rows, strict=False))
    ]


def drawn(parts, num_draws):
    """For each draw, which of all rows it holds: bool of shape `(num_draws, num_rows)`."""
    found = np.zeros((num_draws, parts[0].num_examples), bool)
    for draw in range(num_draws):
        for part in parts:
            rows, _ = part.draw()
            found[draw, part.take(rows)["x"][: len(rows)]] = True
    return found


@pytest.mark.parametrize("seed", [None, 5])
def test_each_row_is_drawn_independently_with_one_probability(seed):
    num_draws = 4000
    found = drawn(shares(seed), num_draws)
    # How often each row, and how many in all: both have the law of coins.
    of_rows = found.sum(0)
    expected = num_draws * 0.25
    statistic = np.sum((of_rows - expected) ** 2 / (expected * 0.75))
    assert FALSE_ALARM < stats.chi2(100).sf(statistic) < 1 - FALSE_ALARM
    sizes = np.bincount(found.sum(1), minlength=101)
    law = stats.binom(100, 0.25)
    bins = [np.arange(0, 19), *[np.array([k]) for k in range(19, 32)], np.arange(32, 101)]
    observed = [sizes[each].sum() for each in bins]
    wanted = [num_draws * law.pmf(each).sum() for each in bins]
    assert stats.chisquare(observed, wanted).pvalue > FALSE_ALARM


def test_rows_of_different_processes_are_drawn_independently():
    num_draws = 4000
    found = drawn(shares(5), num_draws).astype(float)
    correlations = np.corrcoef(found.T)[np.triu_indices(100, 1)] * np.sqrt(num_draws)
    # Of 4,950 pairs; a stream that two processes share would give one of 60.
    assert np.abs(correlations).max() < 5.5
    # The numbers of drawn rows, by process.
    counts = np.stack([found[:, :50].sum(1), found[:, 50:80].sum(1), found[:, 80:].sum(1)])
    between = np.corrcoef(counts)[np.triu_indices(3, 1)] * np.sqrt(num_draws)
    assert np.abs(between).max() < 4.5


def test_the_choices_of_two_processes_with_one_seed_are_not_the_same():
    first, second = shares(5, rows=(40, 40), expected_batch_size=20)
    same = 0
    for _ in range(50):
        (one, _), (other, _) = first.draw(), second.draw()
        same += one.tolist() == other.tolist()
    assert same <= 2


def test_all_processes_know_the_largest_number_and_agree_on_a_size():
    parts = shares()
    batches = [SharedBatches(part, 4, sizes=(24, 60), num_shards=6) for part in parts]
    for index in range(200):
        sizes = {len(each[index]["mask"]) for each in batches}
        assert len(sizes) == 1
        assert sizes <= {8, 20, 40}
    # Two devices in each process: padding stands at the end of the half of each.
    mask = batches[0][0]["mask"].reshape(2, -1)
    assert np.all(mask[:, :-1] >= mask[:, 1:])
    assert abs(int(mask[0].sum()) - int(mask[1].sum())) <= 1


def test_nothing_that_is_drawn_is_left_out_where_a_draw_is_larger_than_expected():
    part = shares(rows=(50, 30, 20), expected_batch_size=100)[0]
    batch = SharedBatches(part, 1, sizes=(24,))[0]
    assert batch["mask"].sum() == 50
    assert len(batch["mask"]) == 56


def test_numbers_come_from_shared_bits_that_differ_from_run_to_run():
    def numbers(bits):
        part = shares(bits=bits)[0]
        return [part.draw()[1] for _ in range(20)]

    assert numbers((1, 2, 3, 4)) == numbers((1, 2, 3, 4))
    assert numbers((1, 2, 3, 4)) != numbers((1, 2, 3, 5))


def test_rows_are_dealt_to_shards_and_none_is_lost():
    batch = {"x": np.arange(12).reshape(6, 2), "mask": np.arange(6) < 4}
    found = dealt(batch, 3)
    np.testing.assert_array_equal(found["mask"], [True, True, True, False, True, False])
    assert sorted(found["x"][:, 0].tolist()) == [0, 2, 4, 6, 8, 10]
    assert dealt(batch, 1) is batch


def test_an_expected_batch_size_beyond_all_rows_is_refused():
    with pytest.raises(ValueError, match="batch_size"):
        shares(expected_batch_size=101)
