"""What travels between the server and its nodes, as records of Flower.

query     server -> node   nothing
          node -> server   digests of the ids of its clients
train     server -> node   weights, clipping state, which clients train, their random numbers
          node -> server   the sum of their clipped contributions, and of their statistics
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

_DIGEST_SIZE = 16


def query_reply(client_ids: Sequence[Any]) -> RecordDict:
    """Return what a node tells of its clients.

    Args:
        client_ids: Their ids.
    """
    digests = [
        hashlib.blake2b(str(client_id).encode(), digest_size=_DIGEST_SIZE).digest()
        for client_id in client_ids
    ]
    return RecordDict({"clients": ConfigRecord({"digests": digests})})


def digests_of(content: RecordDict) -> list[bytes]:
    """Return the digests that a node has sent.

    Args:
        content: A `query_reply`.
    """
    return list(content["clients"]["digests"])


def train_request(
    weights: ArrayRecord,
    clipping_state: Mapping[str, np.ndarray],
    positions: Sequence[int],
    numbers: Sequence[int],
    key: int,
) -> RecordDict:
    """Return what a node needs for a round; the arguments are those of `NodeTraining.clipped_sum`.

    Args:
        weights: The weights as a record, which the messages to all nodes share.
        clipping_state: Arrays by name.
        positions: One or more integers.
        numbers: As many integers.
        key: An integer.
    """
    state = {name: Array(np.asarray(value)) for name, value in clipping_state.items()}
    drawn = {"positions": [*map(int, positions)], "numbers": [*map(int, numbers)], "key": key}
    return RecordDict(
        {
            "weights": weights,
            "clipping": ArrayRecord(array_dict=state),
            "drawn": ConfigRecord(drawn),
        }
    )


def train_arguments(content: RecordDict) -> dict[str, Any]:
    """Return the arguments of `NodeTraining.clipped_sum`.

    Args:
        content: A `train_request`.
    """
    state = {name: array.numpy() for name, array in content["clipping"].items()}
    weights = content["weights"].to_numpy_ndarrays()
    return {"weights": weights, "clipping_state": state, **dict(content["drawn"])}


def train_reply(sums: Sequence[np.ndarray], statistics: np.ndarray) -> RecordDict:
    """Return what a node contributes to a round.

    Args:
        sums: The clipped sums.
        statistics: The sums of the strategy's statistics.
    """
    return RecordDict({"sum": ArrayRecord(numpy_ndarrays=[statistics, *sums])})


def sums_of(content: RecordDict) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the sums and statistics that a node has sent.

    Args:
        content: A `train_reply`.
    """
    statistics, *sums = content["sum"].to_numpy_ndarrays()
    return sums, statistics
