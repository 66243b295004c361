"""Cohorts: the clients that each round draws, as a batch for the compiled step.

The accountant relies on how clients are drawn:

    poisson   each client independently, with the same probability in every round
    fixed     the same number of clients in every round, without replacement
    shuffle   an epoch goes through all clients once, in a new order
"""

import itertools
import math
import os
from typing import Any

import keras
import numpy as np
from numpy.random import Generator

from keras_adaclip._checks import check_batch_size, check_choice, check_integer
from keras_adaclip.accounting import Sampling, Unit
from keras_adaclip.federated.clients import ClientData
from keras_adaclip.federated.settings import FederatedSettings
from keras_adaclip.gradients import Batch
from keras_adaclip.sampling import (
    as_arrays,
    draw_generator,
    padding,
    poisson_draw,
    split_among_devices,
    uniform_draw,
)
from keras_adaclip.training import TrainingData


class CohortBatches(keras.utils.PyDataset):
    """Cohorts as batches for `federated_step`.

    A batch is a dict. The first axis of every array counts clients.

        x, y        the clients' examples, of shape `(num_clients, num_rows, ...)`
        order       the rows of each local batch, int32 of shape `(num_clients, num_steps,
                    batch_size)`, with -1 for padding
        num_steps   the number of local steps of each client, int32
        weight      the weight of each client, float32 between 0 and 1
        seeds       states of the model's seed generators, int32 of shape `(num_clients, num_steps,
                    num_seeds, 2)`; absent if it has none
        mask        bool, false for padding

    Numbers of rows and steps are rounded up to powers of two, so that a compiler sees few shapes.

    Args:
        clients: The population.
        cohort_size: The (expected) number of clients in a round.
        num_batches: The number of rounds in an epoch.
        sampling: `POISSON`, `FIXED` or `SHUFFLE`.
        settings: How each client goes through its examples, and the weights of clients.
        seed: None draws from the operating system. An integer makes the draws repeatable;
            anyone who knows it knows who took part.

    Attributes:
        num_padded_clients: A divisor of the number of clients in every batch, or None.
        num_shards: The number of equal parts into which devices split a batch.
        num_seeds: The number of seed generators in the model.
    """

    def __init__(
        self,
        clients: ClientData,
        cohort_size: int,
        num_batches: int,
        sampling: Sampling,
        settings: FederatedSettings,
        seed: int | None,
    ) -> None:
        super().__init__()
        self.clients = clients
        self.cohort_size = cohort_size
        self.sampling = sampling
        self.settings = settings
        self.seed = seed
        self.num_padded_clients: int | None = None
        self.num_shards = 1
        self.num_seeds = 0
        self._num_batches = num_batches
        self._draw_numbers = itertools.count()
        self._epoch_order = np.arange(0)
        self._first = _as_parts(*clients.first_examples(1))
        self.begin_run(0)

    def __len__(self) -> int:
        return self._num_batches

    @property
    def sampling_probability(self) -> float:
        """The probability with which a round draws each client."""
        return self.cohort_size / len(self.clients)

    @property
    def num_open_axes(self) -> dict[str, int]:
        """For each part of a batch, the number of leading axes whose lengths vary."""
        order_axes = 3 if self.settings.client_batch_size is None else 2
        axes = {"order": order_axes, "num_steps": 1, "mask": 1, "weight": 1}
        return {"x": 2, "y": 2, "seeds": 2, **axes}

    @property
    def row_counts(self) -> list[int]:
        """The possible numbers of rows of a client's local batch, padding included."""
        if self.settings.client_batch_size is not None:
            return [self.settings.client_batch_size]
        sizes = map(self.clients.num_examples_at, range(len(self.clients)))
        limit = self.settings.client_examples_limit or math.inf
        return sorted({rounded_up(int(min(size, limit))) for size in sizes})

    @property
    def example(self) -> dict[str, Any]:
        """A batch of one client that has examples, for types and shapes."""
        position = next(n for n in itertools.count() if self.clients.num_examples_at(n) > 0)
        return self.take(np.array([position]), np.random.default_rng(0))

    def begin_run(self, steps_before: int) -> None:
        """Make the draws that follow differ from those of earlier runs with the same seed.

        Args:
            steps_before: The number of steps on the model's ledger before the run.
        """
        self._steps_before = steps_before
        self._process = os.getpid()

    def __getitem__(self, index: int) -> dict[str, Any]:
        # A forked process would repeat the draws of its parent.
        seed = self.seed if self._process == os.getpid() else None
        generator = draw_generator(seed, self._steps_before, next(self._draw_numbers))
        batch = self.take(self._draw(generator, index), generator)
        return split_among_devices(batch, self.num_shards)

    def _draw(self, generator: Generator, index: int) -> np.ndarray:
        """Return the positions of the clients that take part in round `index` of an epoch."""
        num_clients = len(self.clients)
        if self.sampling is Sampling.POISSON:
            return poisson_draw(generator, num_clients, self.sampling_probability)
        if self.sampling is Sampling.FIXED:
            return uniform_draw(generator, num_clients, self.cohort_size)
        if index == 0:
            self._epoch_order = generator.permutation(num_clients)
        return self._epoch_order[index * self.cohort_size : (index + 1) * self.cohort_size]

    def take(self, positions: np.ndarray, generator: Generator) -> dict[str, Any]:
        """Return the batch of the clients at some positions.

        Clients without examples are left out, as if they had not been drawn. An absent client must
        not enter the statistics of a clipping strategy, nor the coordinates of `AdaClip`.

        Args:
            positions: Positions of clients. Without any, the batch holds one client of padding.
            generator: The source of the order of each client's examples, and of `seeds`.
        """
        drawn = [self._examples_at(position) for position in positions]
        drawn = [client for client in drawn if _num_rows(client) > 0]
        chosen = [self._local_order(generator, _num_rows(client)) for client in drawn]
        examples = [_rows_of(client, rows) for client, (rows, _) in zip(drawn, chosen, strict=True)]
        orders = [order for _, order in chosen]
        num_clients = max(len(examples), 1)
        if self.num_padded_clients is not None:
            num_clients = math.ceil(num_clients / self.num_padded_clients) * self.num_padded_clients
        num_rows = rounded_up(max(map(_num_rows, examples), default=0))
        num_steps = rounded_up(max(map(len, orders), default=0))

        def padded(first: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
            """Return one array for all clients."""
            result = padding((num_clients, num_rows, *first.shape[1:]), first.dtype)
            for client, array in enumerate(arrays):
                result[client, : len(array)] = array
            return result

        batch: dict[str, Any] = keras.tree.map_structure(padded, self._first, *examples)
        batch_size = self.settings.client_batch_size or num_rows
        batch["order"] = np.full((num_clients, num_steps, batch_size), -1, np.int32)
        batch["num_steps"] = np.zeros(num_clients, np.int32)
        batch["weight"] = np.ones(num_clients, np.float32)
        weighting = self.settings.client_weighting
        for client, order in enumerate(orders):
            batch["order"][client, : len(order), : order.shape[1]] = order
            batch["num_steps"][client] = len(order)
            if weighting is not None:
                batch["weight"][client] = weighting.weight(_num_rows(examples[client]))
        if self.num_seeds:
            shape = (num_clients, num_steps, self.num_seeds, 2)
            batch["seeds"] = generator.integers(0, 2**30, shape, np.int32)
        batch["mask"] = np.arange(num_clients) < len(examples)
        return batch

    def _local_order(
        self, generator: Generator, num_examples: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of a client that take part, and their places in each local batch.

        The places are of shape `(num_steps, batch_size)`, with -1 for padding.
        """
        taking_part = min(num_examples, self.settings.client_examples_limit or num_examples)
        rows = np.arange(num_examples)
        if taking_part < num_examples:
            rows = generator.choice(num_examples, taking_part, replace=False)
        size = self.settings.client_batch_size or taking_part
        epochs = self.settings.local_epochs
        places = np.full((epochs, math.ceil(taking_part / size) * size), -1)
        for epoch in range(epochs):
            places[epoch, :taking_part] = generator.permutation(taking_part)
        return rows, places.reshape(-1, size)

    def _examples_at(self, position: int) -> dict[str, Any]:
        """Return a client's examples by name, `"x"` and `"y"`.

        Raises:
            ValueError: If they are unlike those of the first client.
        """
        client = _as_parts(*self.clients.examples_at(position))
        keras.tree.assert_same_structure(self._first, client)
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


def rounds_over(
    clients: Any,
    settings: FederatedSettings,
    cohort_size: Any,
    steps_per_epoch: Any,
    sampling: str,
    seed: int | None,
) -> TrainingData:
    """Return the rounds over a population; the arguments are those of `FederatedModel.fit`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, or a client comes twice.
    """
    if not isinstance(clients, ClientData):
        raise TypeError(
            "A federated model trains on `keras_adaclip.federated.ClientData`, which says to which "
            "client each example belongs: `ClientData.from_arrays(x, y, client_ids)`. To protect "
            "single examples, train a `keras_adaclip.PrivateModel`. "
            f"Received: clients of type {type(clients).__name__}"
        )
    num_clients, num_ids = len(clients), len(set(clients.client_ids))
    if num_ids < num_clients:
        raise ValueError(
            "Every client must have one entry in `client_ids`: with two it would contribute twice "
            f"to a round. Received: {num_clients:,} entries of {num_ids:,} clients"
        )
    check_choice("sampling", sampling, ("poisson", "fixed", "shuffle"))
    kind = Sampling[sampling.upper()]
    cohort_size = check_batch_size(cohort_size, num_clients, "cohort_size")
    rounds = math.ceil(num_clients / cohort_size)
    if steps_per_epoch is not None:
        # A shuffled epoch goes through the clients once.
        limit = {"maximum": rounds} if kind is Sampling.SHUFFLE else {}
        rounds = check_integer("steps_per_epoch", steps_per_epoch, minimum=1, **limit)
    # The simulated cohort is at least as large as that of `fit`.
    noise_size = settings.cohort_noise_size or cohort_size
    noise_size = check_integer("cohort_noise_size", noise_size, minimum=cohort_size)
    return TrainingData(
        sampling=kind,
        expected_batch_size=cohort_size,
        num_examples=num_clients,
        rows=Batch(*clients.first_examples()),
        steps_per_epoch=rounds,
        poisson=CohortBatches(clients, cohort_size, rounds, kind, settings, seed),
        unit=Unit.CLIENT,
        noise_scale=cohort_size / noise_size,
    )


def rounded_up(number: int) -> int:
    """Return the next power of two.

    >>> [rounded_up(number) for number in (0, 1, 2, 3, 4, 5, 9)]
    [1, 1, 2, 4, 4, 8, 16]
    """
    return 1 << max(number - 1, 0).bit_length()


def _as_parts(x: Any, y: Any) -> dict[str, Any]:
    """Return inputs and targets by name, as NumPy arrays; targets are absent if None."""
    return as_arrays({"x": x} if y is None else {"x": x, "y": y})


def _rows_of(parts: dict[str, Any], rows: np.ndarray) -> dict[str, Any]:
    """Return the given rows of each array."""
    return keras.tree.map_structure(lambda array: array[rows], parts)


def _num_rows(parts: dict[str, Any]) -> int:
    """Return the number of examples of a client."""
    return len(keras.tree.flatten(parts)[0])
