"""Cohorts: the clients that each round draws, as a batch for the compiled step.

The accountant relies on how clients are drawn:

    poisson   each client independently, with the same probability in every round
    fixed     the same number of clients in every round, without replacement
    shuffle   an epoch goes through all clients once, in a new order

Where several processes train one model, each holds clients of its own. Every process knows the
sizes of all clients. So all of them draw the same clients without sending anything, and know how
long each process trains.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
from numpy.random import Generator

from keras_adaclip import backend
from keras_adaclip._checks import check_batch_size, check_choice, check_integer
from keras_adaclip.accounting import Sampling, Unit
from keras_adaclip.federated.client_sources import copied, distinct
from keras_adaclip.federated.clients import ClientData, checked_clients
from keras_adaclip.federated.round_batch import RoundClient, best_num_lanes, round_batch, rounded_up
from keras_adaclip.federated.settings import FederatedSettings
from keras_adaclip.gradients import Batch
from keras_adaclip.sampling import DrawStream, as_arrays, poisson_draw, uniform_draw
from keras_adaclip.training import TrainingData, processes, training_data

# The expected number of clients in a round, and of rounds that make up the population at least.
_USUAL_COHORT, _LEAST_TURNS = 100, 4


def rounds_over(
    num_clients: int,
    settings: FederatedSettings,
    rows: Batch,
    cohort_size: Any = None,
    sampling: str = "poisson",
    steps_per_epoch: Any = None,
) -> TrainingData:
    """Return the facts of rounds over a population that the ledger needs.

    Args:
        num_clients: The number of clients.
        settings: The client arguments of `compile`.
        rows: A few examples, to build the model.
        cohort_size: As for `FederatedModel.fit`.
        sampling: As for `FederatedModel.fit`.
        steps_per_epoch: As for `FederatedModel.fit`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.

    Example:

    >>> rounds_over(40, FederatedSettings(), Batch(None)).expected_batch_size
    10
    """
    check_choice("sampling", sampling, ("poisson", "fixed", "shuffle"))
    if cohort_size is None:
        cohort_size = min(_USUAL_COHORT, max(num_clients // _LEAST_TURNS, 1))
    cohort_size = check_batch_size(cohort_size, num_clients, "cohort_size")
    rounds = math.ceil(num_clients / cohort_size)
    if steps_per_epoch is not None:
        # A shuffled epoch goes through the clients once.
        limit = {"maximum": rounds} if sampling == "shuffle" else {}
        rounds = check_integer("steps_per_epoch", steps_per_epoch, minimum=1, **limit)
    # The simulated cohort is at least as large as that of `fit`.
    noise_size = settings.cohort_noise_size or cohort_size
    noise_size = check_integer("cohort_noise_size", noise_size, minimum=cohort_size)
    return TrainingData(
        sampling=Sampling[sampling.upper()],
        expected_batch_size=cohort_size,
        num_examples=num_clients,
        steps_per_epoch=rounds,
        unit=Unit.CLIENT,
        noise_scale=cohort_size / noise_size,
        rows=rows,
    )


class CohortBatches(keras.utils.PyDataset):
    """Cohorts as batches for `federated_step`; several processes make them together.

    See `round_batch` for what a batch holds.

    Args:
        clients: The clients of this process.
        settings: How each client goes through its examples, and the weights of clients.
        seed: None draws from the operating system. An integer makes the draws repeatable;
            anyone who knows it knows who took part.
        class_weights: The weights of classes in the clients' losses, or None.
        first: Made-up examples whose structure, shapes and dtypes those of all clients must have,
            so that no client is read for them. Other dtypes of numbers are then cast. None takes
            those of the first clients.
        **rounds: `cohort_size`, `sampling` and `steps_per_epoch`, as for `FederatedModel.fit`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, a client comes twice, or processes hold examples
            of different kinds.

    Attributes:
        data: The facts of the rounds.
        first: Examples, for shapes and types.
        share: The clients of this process among those of all.
        most_lanes: The largest number of lanes on a device.
        num_shards: The number of devices of this process that share a round.
        has_seeds: Whether local steps have seeds, for models that draw random numbers.
    """

    def __init__(
        self,
        clients: ClientData,
        settings: FederatedSettings,
        seed: int | None = None,
        class_weights: training_data.ClassWeights | None = None,
        first: dict[str, Any] | None = None,
        **rounds: Any,
    ) -> None:
        super().__init__()
        distinct(checked_clients(clients).client_ids)
        self.clients, self.settings, self.seed = clients, settings, seed
        self.most_lanes, self.has_seeds = 1, False
        self._num_lanes: int | None = None
        self._epoch_order = np.arange(0)
        self._class_weights = class_weights
        self._casts = first is not None
        if first is None:
            first = self._parts(*clients.first_examples())
        self.share = processes.share_of_this_process(len(clients), first)
        self.first = first = self.share.first_rows
        self._draws = DrawStream(seed, self.share)
        self._sizes = _sizes_of_all(clients) if self.num_processes > 1 else None
        # On TensorFlow each process is a device.
        self.num_shards = max(backend.num_batch_shards() // self.num_processes, 1)
        rows = Batch(first["x"], first.get("y"))
        facts = rounds_over(int(self.share.ends[-1]), settings, rows, **rounds)
        self.data = dataclasses.replace(facts, poisson=self)

    @property
    def num_processes(self) -> int:
        """The number of processes that hold the clients."""
        return len(self.share.units_of_processes)

    def __len__(self) -> int:
        return int(self.data.steps_per_epoch or 1)

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
        sizes: Iterable[int] | None = self._sizes
        if self._casts and limit is not None:
            # No client's number of examples decides the shape of another one's batches.
            sizes = (1 << power for power in range(rounded_up(limit).bit_length()))
        elif sizes is None:
            sizes = map(self.clients.num_examples_at, range(len(self.clients)))
        return sorted({rounded_up(int(min(size, limit or size))) for size in sizes})

    @property
    def example(self) -> dict[str, Any]:
        """A batch of no client, for types and shapes."""
        return round_batch(self, [], num_lanes=1)

    def begin_run(self, steps_before: int) -> None:
        """Make the draws that follow differ from those before; see `DrawStream.begin_run`."""
        self._draws.begin_run(steps_before)

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = self._draws.next()
        return self.take(self._draw(generator, index), generator)

    def _draw(self, generator: Generator, index: int) -> np.ndarray:
        """Return the numbers of the clients that take part in round `index` of an epoch."""
        num_clients, size = self.data.num_examples, self.data.expected_batch_size
        if self.data.sampling is Sampling.POISSON:
            return poisson_draw(generator, num_clients, size / num_clients)
        if self.data.sampling is Sampling.FIXED:
            return uniform_draw(generator, num_clients, size)
        if index == 0:
            self._epoch_order = generator.permutation(num_clients)
        return self._epoch_order[index * size : (index + 1) * size]

    def take(self, numbers: np.ndarray, generator: Generator) -> dict[str, Any]:
        """Return the batch of some clients; over several processes, this one's part of it.

        Clients without examples are left out, as if they had not been drawn. An absent client must
        not enter the statistics of a clipping strategy, nor the coordinates of `AdaClip`.

        Args:
            numbers: The numbers of the clients, over all processes.
            generator: The source of the order of each client's examples, and of `seeds`. What it
                gives to a client does not depend on the others.
        """
        key = round_key(generator)
        return self.batch_of([self.client(number, key) for number in map(int, numbers)])

    def batch_of(self, clients: Sequence[RoundClient]) -> dict[str, Any]:
        """Return the batch of some clients; those without examples are left out.

        Args:
            clients: What each brings to the round.
        """
        clients = [client for client in clients if client.num_steps]
        num_steps = [client.num_steps for client in clients]
        num_shards = self.num_shards * self.num_processes
        num_lanes = best_num_lanes(num_steps, self.most_lanes, self._num_lanes, num_shards)
        self._num_lanes = num_lanes
        return round_batch(self, clients, num_lanes)

    def client(self, number: int, key: int, position: int | None = None) -> RoundClient:
        """Return what a client brings to a round; of one of another process, how long it trains.

        Args:
            number: Its number in the whole population.
            key: The `round_key`; with the number it gives the client's random numbers.
            position: Its position in `clients`; None if that follows from the number.

        Raises:
            ValueError: If its examples are unlike those of the first client, or their number has
                changed over several processes.
        """
        settings = self.settings
        if self._sizes is not None:
            process = int(self.share.process_of(number))
            if process != self.share.number:
                return RoundClient(*self._rows_and_steps(int(self._sizes[number])), process)
        position = number - self.share.first_unit if position is None else position
        examples = self._examples_at(position)
        num_examples = len(keras.tree.flatten(examples)[0])
        if self._sizes is not None and num_examples != self._sizes[number]:
            raise ValueError(
                "Over several processes the number of examples of a client must not change. "
                f"Client {self.clients.client_ids[position]!r} had {self._sizes[number]:,} "
                f"when `fit` began. Received: {num_examples:,}"
            )
        num_rows, num_steps = self._rows_and_steps(num_examples)
        if num_rows == 0:
            return RoundClient(0, 0, self.share.number)
        generator = np.random.Generator(np.random.Philox(key=[np.uint64(key), np.uint64(number)]))
        if num_rows < num_examples:
            rows = generator.choice(num_examples, num_rows, replace=False)
            examples = keras.tree.map_structure(lambda array: array[rows], examples)
        size, epochs = settings.client_batch_size or num_rows, settings.local_epochs
        order = np.full((epochs, num_steps // epochs * size), -1)
        for places in order:
            places[:num_rows] = generator.permutation(num_rows)
        seeds = None
        if self.has_seeds:
            seeds = generator.integers(-(2**31), 2**31, (num_steps, 2), np.int32)
        weight = settings.weighting.weight(num_rows)
        order = order.reshape(-1, size)
        return RoundClient(num_rows, num_steps, self.share.number, examples, order, seeds, weight)

    def _rows_and_steps(self, num_examples: int) -> tuple[int, int]:
        """Return how many examples of a client take part, and in how many local steps."""
        num_rows = min(num_examples, self.settings.client_examples_limit or num_examples)
        size = self.settings.client_batch_size or max(num_rows, 1)
        return num_rows, math.ceil(num_rows / size) * self.settings.local_epochs

    def _parts(self, x: Any, y: Any) -> dict[str, Any]:
        """Return inputs, targets and weights by name, as NumPy arrays; targets absent if None."""
        parts = as_arrays({"x": x} if y is None else {"x": x, "y": y})
        if self._class_weights is not None:
            parts["sample_weight"] = self._class_weights.of(parts["y"])
        return parts

    def _examples_at(self, position: int) -> dict[str, Any]:
        """Return a client's examples by name.

        Raises:
            ValueError: If they are unlike those of the first client.
        """
        client = self._parts(*copied(as_arrays(self.clients.examples_at(position))))
        keras.tree.assert_same_structure(self.first, client)
        if self._casts:
            client = keras.tree.map_structure(_as_kind_of, client, self.first)
        arrays = keras.tree.flatten(client)
        found = [(array.shape, str(array.dtype)) for array in arrays]
        expected = [
            ((len(arrays[0]), *array.shape[1:]), str(array.dtype))
            for array in keras.tree.flatten(self.first)
        ]
        if found != expected:
            raise ValueError(
                "The arrays of a client must have one length, and the dtypes and shapes of an "
                f"example of the first client. Expected of client "
                f"{self.clients.client_ids[position]!r}: {expected}. Received: {found}"
            )
        return client


def _sizes_of_all(clients: ClientData) -> np.ndarray:
    """Return the numbers of examples of the clients of all processes, in their order.

    Raises:
        ValueError: If two processes hold the same client.
    """
    digests = [processes.digest(str(client_id).encode()) for client_id in clients.client_ids]
    ids = processes.gathered_rows(np.stack(digests))
    if len(np.unique(ids, axis=0)) < len(ids):
        raise ValueError(
            "Two processes hold a client of the same id, which would take part twice in a round. "
            "Give each process its own clients, for example "
            "`clients.subset(clients.client_ids[process_number::num_processes])`. Received in this "
            f"process: {len(clients):,} clients"
        )
    sizes = [clients.num_examples_at(position) for position in range(len(clients))]
    return processes.gathered_rows(np.array(sizes))


def round_key(generator: Generator) -> int:
    """Return the number that gives each client of a round its random numbers.

    Args:
        generator: The generator of the round, after it has drawn the clients.
    """
    return int(generator.integers(0, 2**63, dtype=np.uint64))


def _as_kind_of(array: np.ndarray, example: np.ndarray) -> np.ndarray:
    """Return an array with the dtype of an example, if both hold integers or both hold floats."""
    kinds = {array.dtype.kind, example.dtype.kind}
    return array.astype(example.dtype) if kinds <= set("biu") or kinds == {"f"} else array
