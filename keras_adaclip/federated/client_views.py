"""Clients made of other clients: some of them, with other examples, or with a part of theirs."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_adaclip.federated.client_ids import generator_of
from keras_adaclip.federated.client_sources import Examples, Source, copied, num_rows, rows_of

# What the random numbers of a client are for.
_OF_CLIENTS, _OF_EXAMPLES = 1, 2


class Subset(Source):
    """Some of the clients; see `ClientData.subset`."""

    def __init__(self, clients: Any, positions: Sequence[int]) -> None:
        self._clients, self._positions = clients, positions
        self.client_ids = [clients.client_ids[position] for position in positions]

    def examples_at(self, position: int) -> Examples:
        """Return the arrays `(x, y)` of one client."""
        return self._clients.examples_at(self._positions[position])

    def num_examples_at(self, position: int) -> int:
        """Return the number of examples of one client."""
        return self._clients.num_examples_at(self._positions[position])


class Mapped(Source):
    """Clients whose examples a function changes; see `ClientData.map`."""

    def __init__(self, clients: Any, function: Callable[[Any, Any], Examples]) -> None:
        if not callable(function):
            raise TypeError(
                "Argument `preprocess` must be a function of the `(x, y)` of one client. "
                f"Received: preprocess of type {type(function).__name__}"
            )
        self._clients, self._function = clients, function
        self.client_ids = clients.client_ids

    def examples_at(self, position: int) -> Examples:
        """Return the arrays `(x, y)` of one client."""
        found = self._function(*self._clients.examples_at(position))
        if not (isinstance(found, tuple) and len(found) == 2):
            raise TypeError(
                "The function must return the examples of a client as a tuple `(x, y)`. "
                f"Received: {type(found).__name__}"
            )
        x, y = found
        return copied((keras.tree.lists_to_tuples(x), keras.tree.lists_to_tuples(y)))


def divided(clients: Any, test_fraction: float, seed: int) -> tuple[list[int], list[int]]:
    """Return the positions of clients to train on and to test on.

    Each client is drawn by its id and the seed alone: with another client more or less, all others
    stay where they are.
    """
    draws = [generator_of(each, seed, _OF_CLIENTS).random() for each in clients.client_ids]
    is_test = np.array(draws) < test_fraction
    return np.flatnonzero(~is_test).tolist(), np.flatnonzero(is_test).tolist()


class Part(Source):
    """A part of the examples of each client; see `ClientData.split`.

    The examples of a client are shuffled by the seed and by its id, so that no other client has
    a say in it.
    """

    def __init__(self, clients: Any, test_fraction: float, seed: int, is_test: bool) -> None:
        self._clients, self._test_fraction = clients, test_fraction
        self._seed, self._is_test = seed, is_test
        self.client_ids = clients.client_ids

    def examples_at(self, position: int) -> Examples:
        """Return the arrays `(x, y)` of one client."""
        examples = self._clients.examples_at(position)
        generator = generator_of(self.client_ids[position], self._seed, _OF_EXAMPLES)
        order = generator.permutation(num_rows(examples))
        num_tests = self._num_tests(len(order))
        return rows_of(examples, np.sort(order[:num_tests] if self._is_test else order[num_tests:]))

    def num_examples_at(self, position: int) -> int:
        """Return the number of examples of one client."""
        count = self._clients.num_examples_at(position)
        num_tests = self._num_tests(count)
        return num_tests if self._is_test else count - num_tests

    def _num_tests(self, count: int) -> int:
        """Return how many of the examples of a client are for testing: not all of them."""
        return min(round(self._test_fraction * count), max(count - 1, 0))
