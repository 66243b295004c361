"""Shares of clients: what several processes know and draw, played by threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from keras_adaclip import backend
from keras_adaclip.accounting import Sampling
from keras_adaclip.federated import ClientData
from keras_adaclip.federated.client_share import first_rows, share_of_this_process
from keras_adaclip.federated.cohorts import CohortBatches
from keras_adaclip.federated.round_batch import ClientElsewhere, RoundClient
from keras_adaclip.federated.settings import FederatedSettings
from tests.federated.support import clients_of

SIZES = (7, 0, 5, 12, 1, 6, 3, 9, 4, 8)
COHORT = 5


class Processes:
    """Threads that gather arrays as processes do.

    Args:
        count: Their number.
    """

    def __init__(self, count, monkeypatch):
        self.count = count
        self._barrier, self._sent = threading.Barrier(count, timeout=30), [None] * count
        self._number = threading.local()
        monkeypatch.setattr(backend, "num_processes", lambda: count)
        monkeypatch.setattr(backend, "process_number", lambda: self._number.value)
        monkeypatch.setattr(backend, "gathered", self._gathered)

    def run(self, function):
        """Return what `function(number)` returns in each thread."""

        def numbered(number):
            self._number.value = number
            return function(number)

        with ThreadPoolExecutor(self.count) as threads:
            return list(threads.map(numbered, range(self.count)))

    def _gathered(self, array):
        self._sent[self._number.value] = np.asarray(array)
        self._barrier.wait()
        found = np.stack(self._sent)
        self._barrier.wait()
        return found


def shares(count, monkeypatch, population=None, settings=lambda number: {}):
    """Return the clients of each process, and their shares."""
    population = population or clients_of(SIZES)
    parts = np.array_split(np.array(population.client_ids), count)
    of_process = [population.subset(part.tolist()) for part in parts]
    processes = Processes(count, monkeypatch)
    found = processes.run(lambda n: share_of_this_process(of_process[n], settings(n)))
    return of_process, found


def batches(clients, share, seed=None, sampling=Sampling.POISSON, **settings):
    return CohortBatches(
        clients, COHORT, 2, sampling, FederatedSettings(**settings), seed, None, share
    )


def drawn(cohorts, monkeypatch, rounds=6):
    """Return the clients of each round as a process sees them."""
    seen = []
    monkeypatch.setattr(cohorts, "batch_of", seen.append)
    for number in range(rounds):
        cohorts[number % 2]
    return seen


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("sampling", [Sampling.POISSON, Sampling.FIXED, Sampling.SHUFFLE])
def test_processes_draw_what_one_process_draws(count, seed, sampling, monkeypatch):
    """Each client in one process, with the random numbers and steps that it has alone."""
    parts, found = shares(count, monkeypatch)
    options = {"seed": seed, "sampling": sampling, "client_batch_size": 4, "local_epochs": 2}
    rounds = [
        drawn(batches(clients, share, **options), monkeypatch)
        for clients, share in zip(parts, found, strict=True)
    ]
    options["seed"] = found[0].shared_bits if seed is None else seed
    alone = drawn(batches(clients_of(SIZES), None, **options), monkeypatch)
    assert sum(map(len, alone)) > 6
    for number, expected in enumerate(alone):
        of_processes = [each[number] for each in rounds]
        assert {len(each) for each in of_processes} == {len(expected)}
        for place, client in enumerate(expected):
            here = [each[place] for each in of_processes]
            (own,) = [each for each in here if isinstance(each, RoundClient)]
            np.testing.assert_array_equal(own.order, client.order)
            np.testing.assert_array_equal(own.examples["x"], client.examples["x"])
            process = here.index(own)
            elsewhere = ClientElsewhere(client.num_steps, client.num_rows, process)
            assert all(each == elsewhere for each in here if each is not own)


def test_all_processes_make_batches_of_one_shape(monkeypatch):
    parts, found = shares(3, monkeypatch)
    for options in ({"client_batch_size": 4}, {"client_batch_size": None}):
        made = [batches(*each, seed=5, **options) for each in zip(parts, found, strict=True)]
        for each in made:
            each.most_lanes = 4
        for number in range(4):
            rounds = [each[number % 2] for each in made]
            shapes = [{name: part.shape for name, part in each.items()} for each in rounds]
            assert shapes[0] == shapes[1] == shapes[2]
            # All compute as long.
            np.testing.assert_array_equal(rounds[0]["until"], rounds[1]["until"])
            np.testing.assert_array_equal(rounds[0]["num_events"], rounds[2]["num_events"])


def test_a_client_in_two_processes_is_refused(monkeypatch):
    clients = clients_of(SIZES)
    processes = Processes(2, monkeypatch)
    parts = [clients.subset([0, 2, 3]), clients.subset([5, 3])]
    with pytest.raises(ValueError, match="Two processes hold a client of the same id"):
        processes.run(lambda number: share_of_this_process(parts[number], {}))


def test_processes_that_train_differently_are_refused(monkeypatch):
    with pytest.raises(ValueError, match="train clients differently"):
        shares(2, monkeypatch, settings=lambda number: {"local_epochs": number})


def test_examples_of_different_kinds_are_refused(monkeypatch):
    parts, found = shares(2, monkeypatch)
    x = np.ones((4, 5), "float32")
    other = ClientData.from_arrays(x, np.zeros(4, "int32"), [0, 0, 1, 1])
    processes = Processes(2, monkeypatch)
    with pytest.raises(ValueError, match="different structures, shapes or dtypes"):
        processes.run(lambda number: first_rows([parts[0], other][number], found[number]))


def test_all_processes_examine_the_same_rows(monkeypatch):
    parts, found = shares(2, monkeypatch)
    processes = Processes(2, monkeypatch)
    first, second = processes.run(lambda number: first_rows(parts[number], found[number]))
    np.testing.assert_array_equal(first.x, second.x)
    np.testing.assert_array_equal(first.y, second.y)


def test_a_client_that_changes_its_size_is_named(monkeypatch):
    sizes = dict.fromkeys("abcd", 3)

    def read(client):
        return np.ones((sizes[client], 4), "float32"), np.zeros(sizes[client], "int32")

    parts, found = shares(2, monkeypatch, ClientData.from_function(list("abcd"), read))
    cohorts = batches(parts[0], found[0], seed=1)
    sizes.update(dict.fromkeys("abcd", 4))
    with pytest.raises(ValueError, match=r"Client '.' had 3 when `fit` began. Received: 4"):
        cohorts.take(np.arange(4), np.random.default_rng(0))
