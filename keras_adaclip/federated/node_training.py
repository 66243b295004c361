"""The part of a round that runs where the clients are: train, clip and add up, without noise.

A server that is not the clients' process sends weights and clipping state, and adds up what its
nodes return. See `integrations.flower`.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from keras_adaclip.federated.clients import ClientData
from keras_adaclip.federated.cohorts import CohortBatches
from keras_adaclip.federated.round_batch import RoundClient

_log = logging.getLogger("keras_adaclip")


class NodeTraining:
    """Trains clients of one node, and returns the sum of their clipped contributions.

    Args:
        model: A compiled `FederatedModel`, which this node may overwrite.
        clients: The clients of this node.

    Guarantees:
        A client's part of the sum is clipped to the norm of the given state, and depends on this
        client alone. A client whose examples cannot be read, or whose contribution is not finite,
        adds nothing, and does not stop the others.

    Raises:
        TypeError: If `clients` is no `ClientData`.
        ValueError: If the model is not compiled, or breaks the guarantee.
    """

    def __init__(self, model: Any, clients: ClientData) -> None:
        self.model = model
        self.client_ids = list(clients.client_ids)
        self._batches: CohortBatches = model.prepare_node(clients)

    def clipped_sum(
        self,
        weights: Sequence[np.ndarray],
        clipping_state: Mapping[str, np.ndarray],
        positions: Sequence[int],
        numbers: Sequence[int],
        key: int,
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the clipped sum of some clients, and the sum of their statistics.

        Neither is private: only a server that adds noise may see them.

        Args:
            weights: The server's weights, for each of `model.weights`.
            clipping_state: The server's `DPOptimizer.clipping_state`.
            positions: The positions of the clients on this node.
            numbers: Their numbers in the whole population.
            key: The `round_key`.

        Returns:
            Float32 arrays of the shapes of the trainable weights; and float32 of shape
            `(num_statistics,)`.

        Raises:
            ValueError: If the server's arrays are not those of this model.
        """
        _assign(self.model.weights, weights)
        self.model.optimizer.clipping_state = clipping_state
        clients = [self._client(*each, key) for each in zip(positions, numbers, strict=True)]
        present = [client for client in clients if client is not None]
        return self.model.contribute(self._batches.batch_of(present))

    def _client(self, position: int, number: int, key: int) -> RoundClient | None:
        """Return what a client brings; None if that fails."""
        try:
            return self._batches.client(position, number, key)
        # One client must not decide whether the others take part.
        except Exception as error:
            client_id = self.client_ids[position]
            _log.warning("Client %r adds nothing to this round: %s", client_id, error)
            return None


def _assign(variables: Sequence[keras.Variable], values: Sequence[np.ndarray]) -> None:
    """Assign the server's weights.

    Raises:
        ValueError: If they are not those of the model.
    """
    expected = [tuple(variable.shape) for variable in variables]
    if expected != [value.shape for value in values]:
        raise ValueError(
            "The server's model is not the model of this node. Build the same model on both. "
            f"Expected weights of shapes {expected}. Received: {[v.shape for v in values]}"
        )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
