"""Cohorts: each round draws clients, and their data are laid out for the compiled step.

How clients are drawn is what the accountant counts on:

    poisson   each client with the same probability, on its own, at every round
    fixed     as many clients at every round, drawn without replacement
    shuffle   an epoch goes through all clients once, in a new order
"""

import itertools
import math
import os
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_adaclip.accounting import Sampling
from keras_adaclip.federated.client_data import ClientData
from keras_adaclip.federated.weighting import ByExamples
from keras_adaclip.sampling import as_array, dealt, generator_of_draw, padding, poisson_draw


@dataclass(frozen=True)
class LocalBatches:
    """How each client goes through its own examples.

    Args:
        epochs: passes over them, in a new order each.
        batch_size: examples in a batch, the last one of a pass may be smaller; None takes all
            examples at once.
        examples_limit: at most so many examples of a client take part in a round, drawn anew each
            round; None takes all.
    """

    epochs: int = 1
    batch_size: int | None = 20
    examples_limit: int | None = None

    def orders(
        self, generator: np.random.Generator, num_examples: int
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """The rows that take part, and for each local step the places among them.

        Args:
            generator: random numbers.
            num_examples: of the client, one or more.
        """
        taking_part = num_examples
        if self.examples_limit is not None:
            taking_part = min(num_examples, self.examples_limit)
        rows = np.arange(num_examples)
        if taking_part < num_examples:
            rows = generator.choice(num_examples, taking_part, replace=False)
        size = taking_part if self.batch_size is None else self.batch_size
        steps = []
        for _ in range(self.epochs):
            places = generator.permutation(taking_part)
            steps += [places[begin : begin + size] for begin in range(0, taking_part, size)]
        return rows, steps


class CohortBatches(keras.utils.PyDataset):
    """Cohorts, each a batch for `federated_step`.

    Batch `k` is a dict: `"x"` and `"y"`, the clients' examples, of shape `(num_clients, num_rows,
    ...)`; `"order"`, `"num_steps"` and `"weight"` as in `ClientBatch`; `"mask"`, false for padding.
    Numbers of rows and steps are rounded up to one of a few, so that a compiler sees few shapes.

    Args:
        clients: the population.
        cohort_size: (expected) number of clients in a round.
        num_batches: rounds in an epoch.
        sampling: `POISSON`, `FIXED` or `SHUFFLE`.
        local: how each client goes through its examples.
        seed: None draws from the operating system; an integer makes the draws repeatable, and who
            knows it knows who took part.
        weighting: how much each client counts; None for all alike.

    Attributes:
        num_padded_clients: of which number every batch holds a multiple, if it does.
        num_shards: into how many parts devices divide a batch; clients are dealt to them.
    """

    def __init__(
        self,
        clients: ClientData,
        cohort_size: int,
        num_batches: int,
        sampling: Sampling,
        local: LocalBatches,
        seed: int | None,
        weighting: ByExamples | None = None,
    ) -> None:
        super().__init__()
        self.clients = clients
        self.cohort_size = cohort_size
        self.sampling = sampling
        self.local = local
        self.seed = seed
        self.weighting = weighting
        self.num_padded_clients: int | None = None
        self.num_shards = 1
        self._num_batches = num_batches
        self._draw_numbers = itertools.count()
        self._process = os.getpid()
        self._order = np.arange(0)
        first = clients.first_examples(1)
        self._like = {
            name: None if part is None else keras.tree.map_structure(as_array, part)
            for name, part in zip(("x", "y"), first, strict=True)
        }

    @property
    def num_batches(self) -> int:
        """Rounds in an epoch."""
        return self._num_batches

    def __len__(self) -> int:
        return self._num_batches

    @property
    def sampling_probability(self) -> float:
        """The probability with which a round draws each client (of an order: on average)."""
        return self.cohort_size / len(self.clients)

    @property
    def num_open_axes(self) -> dict[str, int]:
        """For each part of a batch, how many of the first axes differ in length."""
        of_order = 3 if self.local.batch_size is None else 2
        return {"x": 2, "y": 2, "order": of_order, "num_steps": 1, "mask": 1, "weight": 1}

    @property
    def row_counts(self) -> list[int]:
        """The numbers of rows of a client's local batch that rounds may have, padding included."""
        if self.local.batch_size is not None:
            return [self.local.batch_size]
        sizes = map(self.clients.num_examples_at, range(len(self.clients)))
        most = self.local.examples_limit
        return sorted({rounded_up(size if most is None else min(size, most)) for size in sizes})

    @property
    def example(self) -> dict[str, Any]:
        """A batch of one client that takes part and has examples, for types and shapes."""
        with_examples = next(n for n in itertools.count() if self.clients.num_examples_at(n) > 0)
        return self.take(np.array([with_examples]), np.random.default_rng(0))

    def __getitem__(self, index: int) -> dict[str, Any]:
        # A process that was forked off would draw what the other one draws.
        seed = self.seed if self._process == os.getpid() else None
        generator = generator_of_draw(seed, next(self._draw_numbers))
        return dealt(self.take(self._draw(generator, index), generator), self.num_shards)

    def _draw(self, generator: np.random.Generator, index: int) -> np.ndarray:
        """Numbers of the clients that take part in round `index` of an epoch."""
        num_clients = len(self.clients)
        if self.sampling is Sampling.POISSON:
            return poisson_draw(generator, num_clients, self.sampling_probability)
        if self.sampling is Sampling.FIXED:
            return np.sort(generator.choice(num_clients, self.cohort_size, replace=False))
        if index == 0:
            self._order = generator.permutation(num_clients)
        return self._order[index * self.cohort_size : (index + 1) * self.cohort_size]

    def take(self, positions: np.ndarray, generator: np.random.Generator) -> dict[str, Any]:
        """The batch of the clients with some numbers.

        Clients without examples are left out, as if they had not been drawn: what is absent must
        not enter the statistics of a clipping strategy, nor the coordinates of `AdaClip`.

        Args:
            positions: numbers of clients; of none, the batch holds one client of padding.
            generator: for the order of each client's examples.
        """
        examples, steps = [], []
        for position in positions:
            x, y = self._checked_examples(position)
            num_examples = _num_rows(x)
            if num_examples == 0:
                continue
            rows, of_client = self.local.orders(generator, num_examples)
            is_whole = len(rows) == num_examples
            examples.append((x, y) if is_whole else (_taken(x, rows), _taken(y, rows)))
            steps.append(of_client)
        num_clients = self._padded_num_clients(len(examples))
        sizes = [_num_rows(x) for x, _ in examples]
        num_rows = rounded_up(max(sizes, default=0))
        num_steps = rounded_up(max(map(len, steps), default=0))
        batch_size = num_rows if self.local.batch_size is None else self.local.batch_size
        order = np.full((num_clients, num_steps, batch_size), -1, np.int32)
        for client, of_client in enumerate(steps):
            for step, rows in enumerate(of_client):
                order[client, step, : len(rows)] = rows
        parts = {"x": [x for x, _ in examples], "y": [y for _, y in examples]}
        batch: dict[str, Any] = {
            name: _padded_parts(self._like[name], of_clients, num_clients, num_rows)
            for name, of_clients in parts.items()
            if self._like[name] is not None
        }
        batch["order"] = order
        batch["num_steps"] = np.zeros(num_clients, np.int32)
        batch["num_steps"][: len(steps)] = [len(of_client) for of_client in steps]
        batch["weight"] = np.ones(num_clients, np.float32)
        if self.weighting is not None:
            batch["weight"][: len(sizes)] = [self.weighting.weight(size) for size in sizes]
        batch["mask"] = np.arange(num_clients) < len(examples)
        return batch

    def _checked_examples(self, position: int) -> tuple[Any, Any]:
        """A client's examples.

        Raises:
            ValueError: where they are not like those of the first client.
        """
        x, y = self.clients.examples_at(position)
        lengths, problems = set(), []
        for name, part in (("x", x), ("y", y)):
            if self._like[name] is None:
                continue
            like = self._like[name]
            if not (isinstance(like, np.ndarray) and isinstance(part, np.ndarray)):
                keras.tree.assert_same_structure(like, part)
            for first, array in zip(_leaves(like), _leaves(part), strict=True):
                lengths.add(len(array))
                # Each client's strings may be of another length.
                is_alike = first.dtype == array.dtype or (
                    first.dtype.kind == "O" and array.dtype.kind in "SUT"
                )
                if array.shape[1:] != first.shape[1:] or not is_alike:
                    problems.append(
                        f"{name} of shape {array.shape} and dtype {array.dtype}, where the first "
                        f"client's examples have shape {first.shape[1:]}, dtype {first.dtype}"
                    )
        if len(lengths) > 1:
            problems.append(f"arrays of different lengths, {sorted(lengths)}")
        if problems:
            client_id = self.clients.client_ids[position]
            raise ValueError(f"Client {client_id!r} has {'; '.join(problems)}.")
        return x, y

    def _padded_num_clients(self, drawn: int) -> int:
        """The number of clients to pad to: one number for nearly every draw."""
        least = max(drawn, 1)
        if self.num_padded_clients is None:
            return least
        return math.ceil(least / self.num_padded_clients) * self.num_padded_clients


def rounded_up(number: int) -> int:
    """The next number that is a power of two, or one and a half times one.

    >>> [rounded_up(number) for number in (0, 1, 2, 3, 4, 5, 7, 9, 13, 25)]
    [1, 1, 2, 3, 4, 6, 8, 12, 16, 32]
    """
    if number <= 2:
        return max(number, 1)
    power = 1 << (number - 1).bit_length()
    return 3 * power // 4 if number <= 3 * power // 4 else power


def _leaves(part: Any) -> list[np.ndarray]:
    """The arrays of a structure; an array is looked at first, as there is one for each client."""
    return [part] if isinstance(part, np.ndarray) else keras.tree.flatten(part)


def _num_rows(part: Any) -> int:
    """How many examples a structure of arrays holds."""
    return len(_leaves(part)[0])


def _taken(part: Any, rows: np.ndarray) -> Any:
    return None if part is None else keras.tree.map_structure(lambda array: array[rows], part)


def _padded_parts(like: Any, of_clients: list[Any], num_clients: int, num_rows: int) -> Any:
    """`_padded` for each array of a structure."""
    if isinstance(like, np.ndarray):
        return _padded(like, tuple(of_clients), num_clients, num_rows)
    return keras.tree.map_structure(
        lambda first, *arrays: _padded(first, arrays, num_clients, num_rows), like, *of_clients
    )


def _padded(
    first: np.ndarray, arrays: tuple[np.ndarray, ...], num_clients: int, num_rows: int
) -> np.ndarray:
    """The clients' arrays in one, of shape `(num_clients, num_rows, ...)`, zero where none is."""
    padded = padding((num_clients, num_rows, *first.shape[1:]), first.dtype)
    for client, array in enumerate(arrays):
        padded[client, : len(array)] = array
    return padded
