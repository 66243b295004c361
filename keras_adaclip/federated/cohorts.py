"""Cohorts: the clients that each round draws, as a batch for the compiled step.

The accountant relies on how clients are drawn:

    poisson   each client independently, with the same probability in every round
    fixed     the same number of clients in every round, without replacement
    shuffle   an epoch goes through all clients once, in a new order
"""

import itertools
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from numpy.random import Generator

from keras_adaclip.accounting import Sampling
from keras_adaclip.federated.client_share import ClientShare
from keras_adaclip.federated.client_sources import copied
from keras_adaclip.federated.clients import ClientData
from keras_adaclip.federated.lanes import best_num_lanes
from keras_adaclip.federated.round_batch import (
    ClientElsewhere,
    RoundClient,
    round_batch,
    rounded_up,
)
from keras_adaclip.federated.settings import FederatedSettings
from keras_adaclip.sampling import as_arrays, draw_generator, poisson_draw, uniform_draw
from keras_adaclip.training import training_data


class CohortBatches(keras.utils.PyDataset):
    """Cohorts as batches for `federated_step`.

    See `round_batch` for what a batch holds.

    Args:
        clients: The population.
        cohort_size: The (expected) number of clients in a round.
        num_batches: The number of rounds in an epoch.
        sampling: `POISSON`, `FIXED` or `SHUFFLE`.
        settings: How each client goes through its examples, and the weights of clients.
        seed: None draws from the operating system. An integer makes the draws repeatable;
            anyone who knows it knows who took part.
        class_weight: The weight of each class number in the clients' losses, or None.
        share: The place of these clients among those of several processes; None with one process.
        first: An example whose structure, shapes and dtypes those of all clients must have, so that
            no client is read for them. Other dtypes of numbers are then cast. None takes those of
            the first client.

    Attributes:
        most_lanes: The largest number of lanes on a device.
        num_shards: The number of devices of this process that share a round.
        has_seeds: Whether local steps have seeds, for models that draw random numbers.
    """

    def __init__(
        self,
        clients: ClientData,
        cohort_size: int,
        num_batches: int,
        sampling: Sampling,
        settings: FederatedSettings,
        seed: int | None,
        class_weight: dict[int, float] | None = None,
        share: ClientShare | None = None,
        first: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.clients = clients
        self.share = share or ClientShare.alone(clients)
        self.cohort_size = cohort_size
        self.sampling = sampling
        self.settings = settings
        self.seed = seed
        self.most_lanes = 1
        self._num_lanes: int | None = None
        self.num_shards = 1
        self.has_seeds = False
        self._num_batches = num_batches
        self._draw_numbers = itertools.count()
        self._epoch_order = np.arange(0)
        self._class_weight = class_weight
        self._casts = first is not None
        self._first = self._parts(*clients.first_examples(1)) if first is None else first
        self.begin_run(0)

    def __len__(self) -> int:
        return self._num_batches

    @property
    def sampling_probability(self) -> float:
        """The probability with which a round draws each client."""
        return self.cohort_size / self.share.num_clients

    @property
    def num_open_axes(self) -> dict[str, int]:
        """For each part of a batch, the number of leading axes whose lengths vary."""
        order_axes = 3 if self.settings.client_batch_size is None else 2
        tables = {"x": 2, "y": 2, "sample_weight": 2, "order": order_axes, "seeds": 2}
        return {**tables, "step": 3, "until": 2, "ends": 3, "weight": 3, "num_events": 1}

    @property
    def row_counts(self) -> list[int]:
        """The possible numbers of rows of a client's local batch, padding included."""
        if self.settings.client_batch_size is not None:
            return [self.settings.client_batch_size]
        limit = self.settings.client_examples_limit
        if self._casts and limit is not None:
            # No client's number of examples decides the shape of another one's batches.
            return [1 << power for power in range(rounded_up(limit).bit_length())]
        sizes: Iterable[int] = self.share.sizes.tolist()
        if self.share.num_processes == 1:
            sizes = map(self.clients.num_examples_at, range(len(self.clients)))
        return sorted({rounded_up(int(min(size, limit or math.inf))) for size in sizes})

    @property
    def example(self) -> dict[str, Any]:
        """A batch of one client that has examples, for types and shapes."""
        position = next(n for n in itertools.count() if self.clients.num_examples_at(n) > 0)
        number = self.share.first_numbers[self.share.process] + position
        return self.take(np.array([number]), np.random.default_rng(0))

    def begin_run(self, steps_before: int) -> None:
        """Make the draws that follow differ from those of earlier runs with the same seed.

        Args:
            steps_before: The number of steps on the model's ledger before the run.
        """
        self._steps_before = steps_before
        self._process = os.getpid()

    def __getitem__(self, index: int) -> dict[str, Any]:
        # A forked process would repeat the draws of its parent.
        seed: int | tuple[int, ...] | None = self.seed if self._process == os.getpid() else None
        if seed is None and self.share.num_processes > 1:
            seed = self.share.shared_bits  # The same draw in all processes.
        generator = draw_generator(seed, self._steps_before, next(self._draw_numbers))
        return self.take(self._draw(generator, index), generator)

    def _draw(self, generator: Generator, index: int) -> np.ndarray:
        """Return the numbers of the clients that take part in round `index` of an epoch."""
        num_clients = self.share.num_clients
        if self.sampling is Sampling.POISSON:
            return poisson_draw(generator, num_clients, self.sampling_probability)
        if self.sampling is Sampling.FIXED:
            return uniform_draw(generator, num_clients, self.cohort_size)
        if index == 0:
            self._epoch_order = generator.permutation(num_clients)
        return self._epoch_order[index * self.cohort_size : (index + 1) * self.cohort_size]

    def take(self, numbers: np.ndarray, generator: Generator) -> dict[str, Any]:
        """Return the batch of some clients; over several processes, this one's part of it.

        Clients without examples are left out, as if they had not been drawn. An absent client must
        not enter the statistics of a clipping strategy, nor the coordinates of `AdaClip`.

        Args:
            numbers: The numbers of the clients, over all processes.
            generator: The source of the order of each client's examples, and of `seeds`. What it
                gives to a client does not depend on the others.
        """
        key, share = round_key(generator), self.share
        first, end = share.first_numbers[share.process : share.process + 2]
        clients: list[RoundClient | ClientElsewhere] = []
        for number in map(int, numbers):
            if first <= number < end:
                clients.append(self.client(number - first, number, key))
            else:
                clients.append(self._elsewhere(number))
        return self.batch_of(clients)

    def batch_of(self, clients: Sequence[RoundClient | ClientElsewhere]) -> dict[str, Any]:
        """Return the batch of some clients; those without examples are left out.

        Args:
            clients: What each brings to the round.
        """
        clients = [client for client in clients if client.num_steps]
        num_steps = [client.num_steps for client in clients]
        num_shards = self.num_shards * self.share.num_processes
        num_lanes = best_num_lanes(num_steps, self.most_lanes, self._num_lanes, num_shards)
        self._num_lanes = num_lanes
        return round_batch(
            clients,
            self._first,
            self.settings.client_batch_size,
            self.has_seeds,
            num_lanes,
            self.num_shards,
            self.share.process,
            self.share.num_processes,
        )

    def _elsewhere(self, number: int) -> ClientElsewhere:
        """Return what is known of a client of another process."""
        num_rows = self._taking_part(int(self.share.sizes[number]))
        steps = self._num_batches_of(num_rows) * self.settings.local_epochs
        return ClientElsewhere(steps, num_rows, self.share.process_of(number))

    def _taking_part(self, num_examples: int) -> int:
        """Return the number of examples of a client that take part in a round."""
        return min(num_examples, self.settings.client_examples_limit or num_examples)

    def _num_batches_of(self, num_rows: int) -> int:
        """Return the number of batches in a pass over the examples of a client."""
        return math.ceil(num_rows / (self.settings.client_batch_size or max(num_rows, 1)))

    def client(self, position: int, number: int, key: int) -> RoundClient:
        """Return what a client brings to a round.

        Args:
            position: The position of the client in `clients`.
            number: Its number in the whole population.
            key: The `round_key`; with the number it gives the client's random numbers.

        Raises:
            ValueError: If its examples are unlike those of the first client, or their number has
                changed over several processes.
        """
        examples = self._examples_at(position)
        num_rows = _num_rows(examples)
        if self.share.num_processes > 1 and num_rows != self.share.sizes[number]:
            raise ValueError(
                "Over several processes the number of examples of a client must not change. "
                f"Client {self.clients.client_ids[position]!r} had {self.share.sizes[number]:,} "
                f"when `fit` began. Received: {num_rows:,}"
            )
        if num_rows == 0:
            return RoundClient(examples, np.zeros((0, 1), np.int32), None)
        generator = np.random.Generator(np.random.Philox(key=[np.uint64(key), np.uint64(number)]))
        rows, order = self._local_order(generator, num_rows)
        if len(rows) < num_rows:
            examples = keras.tree.map_structure(lambda array: array[rows], examples)
        seeds = None
        if self.has_seeds:
            seeds = generator.integers(-(2**31), 2**31, (len(order), 2), np.int32)
        weighting = self.settings.client_weighting
        weight = 1.0 if weighting is None else weighting.weight(len(rows))
        return RoundClient(examples, order, seeds, weight)

    def _local_order(
        self, generator: Generator, num_examples: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of a client that take part, and their places in each local batch.

        The places are of shape `(num_steps, batch_size)`, with -1 for padding.
        """
        taking_part = self._taking_part(num_examples)
        rows = np.arange(num_examples)
        if taking_part < num_examples:
            rows = generator.choice(num_examples, taking_part, replace=False)
        size = self.settings.client_batch_size or taking_part
        epochs = self.settings.local_epochs
        places = np.full((epochs, self._num_batches_of(taking_part) * size), -1)
        for epoch in range(epochs):
            places[epoch, :taking_part] = generator.permutation(taking_part)
        return rows, places.reshape(-1, size)

    def _parts(self, x: Any, y: Any) -> dict[str, Any]:
        """Return inputs, targets and weights by name, as NumPy arrays; targets absent if None."""
        parts = as_arrays({"x": x} if y is None else {"x": x, "y": y})
        if self._class_weight is not None:
            weights = training_data.weights_of_classes(parts.get("y"), self._class_weight, None)
            parts["sample_weight"] = weights
        return parts

    def _examples_at(self, position: int) -> dict[str, Any]:
        """Return a client's examples by name.

        Raises:
            ValueError: If they are unlike those of the first client.
        """
        client = self._parts(*copied(as_arrays(self.clients.examples_at(position))))
        keras.tree.assert_same_structure(self._first, client)
        if self._casts:
            client = keras.tree.map_structure(_as_kind_of, client, self._first)
        num_rows = _num_rows(client)
        found = [(array.shape, str(array.dtype)) for array in keras.tree.flatten(client)]
        expected = [
            ((num_rows, *array.shape[1:]), str(array.dtype))
            for array in keras.tree.flatten(self._first)
        ]
        if found != expected:
            raise ValueError(
                "The arrays of a client must have one length, and the dtypes and shapes of an "
                f"example of the first client. Expected of client "
                f"{self.clients.client_ids[position]!r}: {expected}. Received: {found}"
            )
        return client


def round_key(generator: Generator) -> int:
    """Return the number that gives each client of a round its random numbers.

    Args:
        generator: The generator of the round, after it has drawn the clients.
    """
    return int(generator.integers(0, 2**63, dtype=np.uint64))


def _num_rows(parts: dict[str, Any]) -> int:
    """Return the number of examples of a client."""
    return len(keras.tree.flatten(parts)[0])


def _as_kind_of(array: np.ndarray, example: np.ndarray) -> np.ndarray:
    """Return an array with the dtype of an example, if both hold integers or both hold floats."""
    kinds = {array.dtype.kind, example.dtype.kind}
    return array.astype(example.dtype) if kinds <= set("biu") or kinds == {"f"} else array
