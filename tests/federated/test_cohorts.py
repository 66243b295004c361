"""Rounds as they are drawn and laid out."""

import itertools

import numpy as np
import pytest
from scipy import stats

from keras_adaclip.federated import ClientData
from keras_adaclip.federated.cohorts import CohortBatches, rounds_over
from keras_adaclip.federated.settings import FederatedSettings
from keras_adaclip.gradients import Batch
from tests.federated.oracle import trained_in


def cohorts_of(
    sizes, cohort_size=2, seed=0, num_batches=None, sampling="poisson", batch_size=4, **local
):
    ids = np.repeat(np.arange(len(sizes)), sizes)
    # The first number tells the client, the second the example.
    x = np.stack([ids, np.arange(len(ids))], axis=1).astype("float32")
    clients = ClientData.from_arrays(x, np.arange(len(ids)), ids, population=range(len(sizes)))
    settings = FederatedSettings(client_batch_size=batch_size, **local)
    return CohortBatches(
        clients,
        settings,
        seed,
        cohort_size=cohort_size,
        sampling=sampling,
        steps_per_epoch=num_batches,
    )


def test_the_usual_cohort_is_a_quarter_of_few_clients():
    for num_clients, expected in ((3, 1), (40, 10), (1000, 100)):
        data = rounds_over(num_clients, FederatedSettings(), Batch(None))
        assert data.expected_batch_size == expected


def clients_in(batch):
    """The client of each that took part, in the order of their ids."""
    return sorted(int(x[order[0, 0], 0]) for x, _, order, _ in trained_in(batch))


def test_every_example_of_a_client_is_in_one_batch_of_a_pass():
    cohorts = cohorts_of((3, 0, 8, 25), local_epochs=2)
    batch = cohorts.take(np.arange(4), np.random.default_rng(0))
    found = {int(x[order[0, 0], 0]): (x, order) for x, _, order, _ in trained_in(batch)}
    assert {client: len(order) for client, (_, order) in found.items()} == {0: 2, 2: 4, 3: 14}
    for client, size in ((0, 3), (2, 8), (3, 25)):
        x, order = found[client]
        passes = [rows[rows >= 0].tolist() for rows in order.reshape(2, -1)]
        for rows in passes:
            assert len(rows) == len(set(rows)) == size
            assert np.all(x[rows, 0] == client)
        # In another order each time (equal once in 40,000 for the eight).
        assert size < 8 or passes[0] != passes[1]


def test_a_limit_takes_other_examples_each_round():
    cohorts = cohorts_of((30,), 1, batch_size=5, client_examples_limit=10)
    batches = [cohorts[0] for _ in range(3)]
    seen = [set(batch["x"][0, :10, 1].tolist()) for batch in batches]
    assert [len(each) for each in seen] == [10, 10, 10]
    assert seen[0] != seen[1]
    assert [len(trained_in(batch)[0][2]) for batch in batches] == [2, 2, 2]


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_each_client_takes_part_with_the_same_probability(sampling, monkeypatch):
    num_clients, rounds = 40, 2000
    cohorts = cohorts_of((1,) * num_clients, cohort_size=6, seed=7, sampling=sampling)
    drawn = np.zeros((rounds, num_clients), bool)
    monkeypatch.setattr(cohorts, "take", lambda numbers, generator: numbers)
    for number in range(rounds):
        present = cohorts[0]
        assert len(set(present)) == len(present)
        drawn[number, present] = True
    # Every client: two-sided at 1e-6 in all.
    rates, sizes = drawn.sum(axis=0), drawn.sum(axis=1)
    lowest, highest = stats.binom.ppf([1e-8, 1 - 1e-8], rounds, 6 / 40)
    assert lowest <= rates.min()
    assert rates.max() <= highest
    if sampling == "fixed":
        assert set(sizes) == {6}
        return
    # Independently, so that sizes follow the binomial law.
    found = np.bincount(sizes, minlength=41)[2:12]
    expected = rounds * stats.binom.pmf(np.arange(2, 12), 40, 6 / 40)
    assert np.sum((found - expected) ** 2 / expected) < stats.chi2.ppf(1 - 1e-6, 9)


def test_a_shuffled_epoch_goes_through_all_clients_once():
    cohorts = cohorts_of((1,) * 11, cohort_size=4, num_batches=3, sampling="shuffle")
    epochs = [[clients_in(cohorts[index]) for index in range(3)] for _ in range(2)]
    for epoch in epochs:
        assert [len(draw) for draw in epoch] == [4, 4, 3]
        assert sorted(client for draw in epoch for client in draw) == list(range(11))
    assert epochs[0] != epochs[1]


def test_seeds_repeat_draws_within_a_run_alone():
    runs = [cohorts_of((2,) * 200, 100, seed) for seed in (0, 0, 0, None, None)]
    runs[2].begin_run(3)
    for cohorts in runs:
        cohorts.has_seeds = True
    first, again, *others = [run[0] for run in runs]
    assert np.array_equal(first["order"], again["order"])
    assert np.array_equal(first["step"], again["step"])
    assert np.array_equal(first["seeds"], again["seeds"])
    found = [clients_in(batch) for batch in (first, *others)]
    assert all(one != other for one, other in itertools.combinations(found, 2))


def test_every_client_and_step_has_random_numbers_of_its_own():
    cohorts = cohorts_of((5,) * 50, 50, seed=None, batch_size=1)
    cohorts.has_seeds = True
    batches = [cohorts[0] for _ in range(2)]
    seeds = np.concatenate([each["seeds"][0, each["step"][each["step"] >= 0]] for each in batches])
    assert (seeds.shape, seeds.dtype) == ((500, 2), np.int32)
    # Equal pairs among 500 have probability 1e-14.
    assert len(np.unique(seeds, axis=0)) == 500


@pytest.mark.parametrize(("sampling", "lanes"), [("fixed", 1), ("shuffle", 6)])
def test_a_client_without_examples_is_as_one_that_was_not_drawn(sampling, lanes):
    local = {"local_epochs": 2, "batch_size": None, "client_examples_limit": 5}
    cohorts = cohorts_of((0, 3, 0, 0, 8, 0), 6, sampling=sampling, **local)
    cohorts.most_lanes = lanes
    batch = cohorts[0]
    assert clients_in(batch) == [1, 4]
    assert batch["ends"].sum() == 2
    only_empty = cohorts.take(np.array([0, 2, 5]), np.random.default_rng(0))
    for nobody in (only_empty, cohorts.take(np.array([], int), np.random.default_rng(0))):
        assert trained_in(nobody) == []
        assert not np.any(nobody["ends"])
        assert np.all(nobody["step"] == -1)


def in_one_lane(batch):
    """The rows and seeds that each client sees, by its number."""
    found = {}
    for shard, lane in np.ndindex(batch["step"].shape[0], batch["step"].shape[2]):
        for step in batch["step"][shard, :, lane]:
            if step >= 0:
                rows = batch["order"][shard, step]
                x = batch["x"][shard, rows[rows >= 0]]
                found.setdefault(int(x[0, 0]), []).append((x, batch["seeds"][shard, step]))
    return found


@pytest.mark.parametrize("num_shards", [1, 2])
@pytest.mark.parametrize("most_lanes", [1, 3, 8])
def test_no_client_has_a_say_in_what_another_one_sees(most_lanes, num_shards):
    """Nor have the lanes: rows and random numbers of a client are the same."""
    found = []
    for sizes, lanes in (((7, 5, 9, 3, 6), most_lanes), ((7, 1, 9, 40, 6), 1)):
        cohorts = cohorts_of(sizes, 5, client_examples_limit=8, local_epochs=2)
        # The second number of an example counts those of all clients before it.
        cohorts.most_lanes, cohorts.has_seeds = lanes, True
        if len(found) == 0:
            cohorts.num_shards = num_shards
        batch = cohorts.take(np.arange(5), np.random.default_rng(1))
        assert sorted(in_one_lane(batch)) == list(range(5))
        found.append(in_one_lane(batch))
    for client in (0, 2, 4):
        assert len(found[0][client]) == len(found[1][client])
        first, other = (min(x[:, 1].min() for x, _ in each[client]) for each in found)
        for (x, seeds), (y, same) in zip(found[0][client], found[1][client], strict=True):
            np.testing.assert_array_equal(x[:, 1] - first, y[:, 1] - other)
            np.testing.assert_array_equal(seeds, same)


def test_one_large_client_among_a_hundred_makes_the_others_no_larger():
    cohorts = cohorts_of((5000, *[50] * 99), 100, sampling="fixed", batch_size=20)
    cohorts.most_lanes = 25
    batch = cohorts[0]
    assert batch["x"].shape[1] <= 1.5 * (5000 + 99 * 50)
    assert batch["order"].shape[1] <= 2 * (250 + 99 * 3)
    num_ticks, num_lanes = batch["step"].shape[1:]
    assert (batch["until"].max(), num_lanes, num_ticks) == (250, 3, 256)
