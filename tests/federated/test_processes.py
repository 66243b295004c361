"""Rounds of several processes: what each knows and draws, played by threads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from keras_adaclip import backend
from keras_adaclip.federated import ClientData
from keras_adaclip.federated.cohorts import CohortBatches
from keras_adaclip.federated.settings import FederatedSettings
from keras_adaclip.training import refuse_other_settings
from tests.federated.support import clients_of, compiled

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


def parts_of(population, count):
    parts = np.array_split(np.array(population.client_ids), count)
    return [population.subset(part.tolist()) for part in parts]


def rounds_of(parts, monkeypatch, seed=None, sampling="poisson", **settings):
    """Return the rounds as each process makes them; of one process as it is without others."""

    def rounds(number):
        rounds = {"cohort_size": COHORT, "sampling": sampling, "steps_per_epoch": 2}
        return CohortBatches(parts[number], FederatedSettings(**settings), seed, **rounds)

    with monkeypatch.context() as patched:
        return Processes(len(parts), patched).run(rounds) if len(parts) > 1 else [rounds(0)]


def drawn(cohorts, monkeypatch, rounds=6):
    seen = []
    monkeypatch.setattr(cohorts, "batch_of", seen.append)
    for number in range(rounds):
        cohorts[number % 2]
    return seen


@pytest.mark.parametrize(
    ("count", "seed", "sampling"),
    [(2, None, "poisson"), (3, 5, "poisson"), (3, None, "fixed"), (2, None, "shuffle")],
)
def test_processes_draw_what_one_process_draws(count, seed, sampling, monkeypatch):
    """Each client in one process, with the random numbers and steps that it has alone."""
    options = {"sampling": sampling, "client_batch_size": 4, "local_epochs": 2}
    of_processes = rounds_of(parts_of(clients_of(SIZES), count), monkeypatch, seed, **options)
    shared = of_processes[0].share.shared_bits
    assert all(each.share.shared_bits == shared for each in of_processes)
    (whole,) = rounds_of([clients_of(SIZES)], monkeypatch, shared if seed is None else 5, **options)
    rounds = [drawn(each, monkeypatch) for each in of_processes]
    alone = drawn(whole, monkeypatch)
    assert sum(map(len, alone)) > 6
    for number, expected in enumerate(alone):
        seen = [each[number] for each in rounds]
        assert {len(each) for each in seen} == {len(expected)}
        for place, client in enumerate(expected):
            here = [each[place] for each in seen]
            (process,) = {each.process for each in here}
            for number_of, each in enumerate(here):
                assert (each.num_rows, each.num_steps) == (client.num_rows, client.num_steps)
                if number_of == process and client.num_rows:
                    np.testing.assert_array_equal(each.order, client.order)
                    np.testing.assert_array_equal(each.examples["x"], client.examples["x"])
                else:
                    assert each.examples == {}


def test_all_processes_make_batches_of_one_shape(monkeypatch):
    for options in ({"client_batch_size": 4}, {"client_batch_size": None}):
        made = rounds_of(parts_of(clients_of(SIZES), 3), monkeypatch, seed=5, **options)
        for each in made:
            each.most_lanes = 4
        for number in range(4):
            rounds = [each[number % 2] for each in made]
            shapes = [{name: part.shape for name, part in each.items()} for each in rounds]
            assert shapes[0] == shapes[1] == shapes[2]
            # All compute as long.
            np.testing.assert_array_equal(rounds[0]["until"], rounds[1]["until"])
            np.testing.assert_array_equal(rounds[0]["num_events"], rounds[2]["num_events"])


def test_processes_that_train_differently_are_refused(monkeypatch):
    model = compiled()
    processes = Processes(2, monkeypatch)
    processes.run(lambda number: refuse_other_settings(model, local_epochs=1))
    with pytest.raises(ValueError, match="Received different values of: local_epochs"):
        processes.run(lambda number: refuse_other_settings(model, local_epochs=number))


def test_all_processes_examine_the_same_rows(monkeypatch):
    made = rounds_of(parts_of(clients_of(SIZES), 2), monkeypatch)
    first, second = (each.data.rows for each in made)
    np.testing.assert_array_equal(first.x, second.x)
    np.testing.assert_array_equal(first.y, second.y)


def test_a_client_that_changes_its_size_is_named(monkeypatch):
    sizes = dict.fromkeys("abcdefgh", 3)

    def read(client):
        return np.ones((sizes[client], 4), "float32"), np.zeros(sizes[client], "int32")

    clients = ClientData.from_function(list(sizes), read)
    cohorts, _ = rounds_of(parts_of(clients, 2), monkeypatch, seed=1)
    sizes.update(dict.fromkeys(sizes, 4))
    with pytest.raises(ValueError, match=r"Client '.' had 3 when `fit` began. Received: 4"):
        cohorts.take(np.arange(8), np.random.default_rng(0))


def test_shares_that_do_not_fit_each_other_are_refused(monkeypatch):
    clients = clients_of(SIZES)
    parts = [clients.subset([0, 2, 3]), clients.subset([5, 3])]
    with pytest.raises(ValueError, match="Two processes hold a client of the same id"):
        rounds_of(parts, monkeypatch)
    x = np.ones((4, 5), "float32")
    other = ClientData.from_arrays(x, np.zeros(4, "int32"), ["a", "a", "b", "b"])
    with pytest.raises(ValueError, match="different values of: kinds_of_data"):
        rounds_of([clients, other], monkeypatch)
