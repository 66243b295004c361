"""Rounds as they are drawn and laid out."""

import itertools

import numpy as np
import pytest
from scipy import stats

from keras_adaclip.accounting import Sampling
from keras_adaclip.federated import ClientData
from keras_adaclip.federated.cohorts import CohortBatches
from keras_adaclip.federated.settings import FederatedSettings


def cohorts_of(
    sizes, cohort_size=2, seed=0, num_batches=5, sampling=Sampling.POISSON, batch_size=4, **local
):
    ids = np.repeat(np.arange(len(sizes)), sizes)
    # The first number tells the client, the second the example.
    x = np.stack([ids, np.arange(len(ids))], axis=1).astype("float32")
    clients = ClientData.from_arrays(x, np.arange(len(ids)), ids, population=range(len(sizes)))
    settings = FederatedSettings(client_batch_size=batch_size, **local)
    return CohortBatches(clients, cohort_size, num_batches, sampling, settings, seed)


def clients_in(batch):
    return batch["x"][batch["mask"]][:, 0, 0].astype(int).tolist()


def test_every_example_of_a_client_is_in_one_batch_of_a_pass():
    cohorts = cohorts_of((3, 0, 8, 25), local_epochs=2)
    batch = cohorts.take(np.arange(4), np.random.default_rng(0))
    assert batch["num_steps"].tolist() == [2, 4, 14]
    for client, (number, size) in enumerate(((0, 3), (2, 8), (3, 25))):
        steps = -(-size // 4)
        orders = []
        for epoch in range(2):
            rows = batch["order"][client, epoch * steps : (epoch + 1) * steps].ravel()
            orders.append(rows[rows >= 0].tolist())
            assert sorted(orders[-1]) == list(range(size))
        # In another order each time (equal once in 40,000 for the eight).
        assert size < 8 or orders[0] != orders[1]
        assert np.all(batch["order"][client, 2 * steps :] == -1)
        assert np.all(batch["x"][client, :size, 0] == number)
        assert np.all(batch["x"][client, size:] == 0)


def test_a_limit_takes_other_examples_each_round():
    cohorts = cohorts_of((30,), 1, batch_size=5, client_examples_limit=10)
    seen = [set(cohorts[0]["x"][0, :10, 1].tolist()) for _ in range(3)]
    assert [len(each) for each in seen] == [10, 10, 10]
    assert seen[0] != seen[1]
    assert cohorts[0]["num_steps"].tolist() == [2]


@pytest.mark.parametrize("sampling", [Sampling.POISSON, Sampling.FIXED])
def test_each_client_takes_part_with_the_same_probability(sampling):
    num_clients, rounds = 40, 2000
    cohorts = cohorts_of((1,) * num_clients, cohort_size=6, seed=7, sampling=sampling)
    drawn = np.zeros((rounds, num_clients), bool)
    for number in range(rounds):
        present = clients_in(cohorts[0])
        assert len(set(present)) == len(present)
        drawn[number, present] = True
    # Every client: two-sided at 1e-6 in all.
    rates, sizes = drawn.sum(axis=0), drawn.sum(axis=1)
    lowest, highest = stats.binom.ppf([1e-8, 1 - 1e-8], rounds, 6 / 40)
    assert lowest <= rates.min()
    assert rates.max() <= highest
    if sampling is Sampling.FIXED:
        assert set(sizes) == {6}
        return
    # Independently, so that sizes follow the binomial law.
    found = np.bincount(sizes, minlength=41)[2:12]
    expected = rounds * stats.binom.pmf(np.arange(2, 12), 40, 6 / 40)
    assert np.sum((found - expected) ** 2 / expected) < stats.chi2.ppf(1 - 1e-6, 9)


def test_a_shuffled_epoch_goes_through_all_clients_once():
    cohorts = cohorts_of((1,) * 11, cohort_size=4, num_batches=3, sampling=Sampling.SHUFFLE)
    epochs = [[clients_in(cohorts[index]) for index in range(3)] for _ in range(2)]
    for epoch in epochs:
        assert [len(draw) for draw in epoch] == [4, 4, 3]
        assert sorted(client for draw in epoch for client in draw) == list(range(11))
    assert epochs[0] != epochs[1]


def test_seeds_repeat_draws_within_a_run_alone():
    runs = [cohorts_of((2,) * 200, 100, seed) for seed in (0, 0, 0, None, None)]
    runs[2].begin_run(3)
    for cohorts in runs:
        cohorts.num_seeds = 2
    first, again, *others = [run[0] for run in runs]
    assert np.array_equal(first["order"], again["order"])
    assert np.array_equal(first["seeds"], again["seeds"])
    found = [clients_in(batch) for batch in (first, *others)]
    assert all(one != other for one, other in itertools.combinations(found, 2))


def test_every_client_step_and_generator_has_random_numbers_of_its_own():
    cohorts = cohorts_of((5,) * 50, 50, seed=None, batch_size=1)
    cohorts.num_seeds = 3
    seeds = np.concatenate([cohorts[0]["seeds"] for _ in range(2)])
    assert (seeds.shape, seeds.dtype) == ((100, 8, 3, 2), np.int32)
    # Equal pairs among 2,400 have probability 3e-12; PyTorch adds up the two: 1e-3.
    assert len(np.unique(seeds.reshape(-1, 2), axis=0)) == 2400
    assert seeds.min() >= 0


@pytest.mark.parametrize(("sampling", "padded"), [(Sampling.FIXED, None), (Sampling.SHUFFLE, 6)])
def test_a_client_without_examples_is_as_one_that_was_not_drawn(sampling, padded):
    local = {"local_epochs": 2, "batch_size": None, "client_examples_limit": 5}
    cohorts = cohorts_of((0, 3, 0, 0, 8, 0), 6, sampling=sampling, **local)
    cohorts.num_padded_clients = padded
    batch = cohorts[0]
    assert sorted(clients_in(batch)) == [1, 4]
    size = padded or 2
    assert batch["mask"].tolist() == [number < 2 for number in range(size)]
    assert batch["num_steps"].tolist() == [2, 2] + [0] * (size - 2)
    only_empty = cohorts.take(np.array([0, 2, 5]), np.random.default_rng(0))
    assert not np.any(only_empty["mask"])
    assert not np.any(only_empty["num_steps"])
