"""The part of a round that runs where the clients are: train, clip and add up, without noise.

A server that is not the clients' process sends weights and clipping state, and adds up what its
nodes return. See `integrations.flower`.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_adaclip.federated.clients import ClientData, checked_clients
from keras_adaclip.federated.cohorts import CohortBatches
from keras_adaclip.federated.round_batch import RoundClient
from keras_adaclip.sampling import as_arrays

_log = logging.getLogger("keras_adaclip")
_Sum = tuple[list[np.ndarray], np.ndarray]


class NodeTraining:
    """Trains clients of one node, and returns the sum of their clipped contributions.

    Args:
        model: A compiled `FederatedModel`, which this node may overwrite.
        clients: The clients of this node; they are read when they train.
        made_up: The `(x, y)` of a made-up client: a few examples, such as random numbers, with
            the structure, shapes and dtypes of all. The model is examined with them. So no client's
            data decide about another client.

    Guarantees:
        A client's part of the sum is clipped to the norm of the given state, and depends on this
        client alone. A client whose examples cannot be read or trained on, or whose contribution is
        not finite, adds nothing, and does not stop the others. The model's ledger covers the steps
        of the server's.

    Raises:
        TypeError: If `clients` is no `ClientData`.
        ValueError: If the model is not compiled, has no `client_examples_limit`, or breaks the
            guarantee; or if the rows of `made_up` are all alike.
    """

    def __init__(self, model: Any, clients: ClientData, made_up: tuple[Any, Any]) -> None:
        self.model = model
        self.client_ids = list(checked_clients(clients).client_ids)
        x, y = made_up
        self._example = as_arrays({"x": x} if y is None else {"x": x, "y": y})
        inputs = keras.tree.flatten(self._example["x"])
        if len(inputs[0]) < 2 or all(np.all(each == each[:1]) for each in inputs):
            raise ValueError(
                "Argument `made_up` must have at least two different examples, such as random "
                "numbers: with others, not every layer and loss that mixes examples is found. "
                f"Received: {len(inputs[0])} examples, all alike"
            )
        model._require_compiled()
        if model.federated_settings.client_examples_limit is None:
            raise ValueError(
                "A client with very many examples would make its node late, and the node's other "
                "clients would be missing from the round because of it. Compile the model with "
                "`client_examples_limit`, the most examples of a client that train in a round. "
                "Received: client_examples_limit=None"
            )
        self._batches = CohortBatches(
            clients, model.federated_settings, cohort_size=1, first=self._example
        )
        model.prepare_node(self._batches.data)

    def clipped_sum(
        self,
        weights: Sequence[np.ndarray],
        clipping_state: Mapping[str, np.ndarray],
        ledger: Mapping[str, np.ndarray],
        positions: Sequence[int],
        numbers: Sequence[int],
        key: int,
    ) -> _Sum:
        """Return the clipped sum of some clients, and the sum of their statistics.

        Neither is private: only a server that adds noise may see them.

        Args:
            weights: The server's weights, for each of `model.weights`.
            clipping_state: The server's `DPOptimizer.clipping_state`.
            ledger: The server's ledger, `ServerRounds.ledger`.
            positions: The positions of the clients on this node.
            numbers: Their numbers in the whole population.
            key: The `round_key`.

        Returns:
            Float32 arrays of the shapes of the trainable weights; and float32 of shape
            `(num_statistics,)`.

        Raises:
            ValueError: If the server's arrays are not those of this model.
        """
        # First, so that the weights never are here without what was spent on them.
        self.model._load_privacy_state(ledger, has_weights=False)
        self.model.set_weights(weights)
        self.model.optimizer.clipping_state = clipping_state
        clients = [self._client(*each, key) for each in zip(positions, numbers, strict=True)]
        return self._sum_of([client for client in clients if client is not None])

    def _sum_of(self, clients: list[RoundClient]) -> _Sum:
        """Return the sum of what some clients contribute, without those that cannot be trained."""
        with _left_out("A client of this node"):
            return self.model.contribute(self._batches.batch_of(clients))
        total, statistics = self.model.contribute(self._batches.batch_of([]))
        if len(clients) <= 1:
            return total, statistics
        # One of them cannot be trained, as on a label that the loss does not know.
        for client in clients:
            sums, of_client = self._sum_of([client])
            total = [one + other for one, other in zip(total, sums, strict=True)]
            statistics = statistics + of_client
        return total, statistics

    def _client(self, position: int, number: int, key: int) -> RoundClient | None:
        """Return what a client brings; None if that fails."""
        with _left_out(f"Client {position} of this node"):
            return self._batches.client(number, key, position)
        return None


@contextlib.contextmanager
def _left_out(who: str) -> Iterator[None]:
    """Log an error that comes from a client's data, and raise others."""
    try:
        yield
    # One client must not decide whether the others take part: not by a panic of a library, nor
    # by an exit.
    except BaseException as error:
        if isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            raise
        _log.warning("%s adds nothing to this round: %s", who, error)
