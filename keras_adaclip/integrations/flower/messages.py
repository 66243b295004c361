"""What travels between the server and its nodes, as records of Flower.

query     server -> node   nothing
          node -> server   digests of the ids of its clients
train     server -> node   weights, clipping state and ledger; which clients train, and the key
                           of their random numbers
          node -> server   the sum of their clipped contributions, and of their statistics
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

_log = logging.getLogger("keras_adaclip")
_DIGEST_SIZE = 16


def digest_of(client_id: Any) -> bytes:
    """Return the digest by which the server knows a client.

    Args:
        client_id: Its id.
    """
    return hashlib.blake2b(str(client_id).encode(), digest_size=_DIGEST_SIZE).digest()


def query_reply(client_ids: Sequence[Any]) -> RecordDict:
    """Return what a node tells of its clients.

    Args:
        client_ids: Their ids.
    """
    digests = [digest_of(client_id) for client_id in client_ids]
    return RecordDict({"clients": ConfigRecord({"digests": digests})})


def digests_of(content: RecordDict) -> list[bytes]:
    """Return the digests that a node has sent.

    Args:
        content: A `query_reply`.

    Raises:
        ValueError: If they are no digests, or one comes twice.
    """
    digests = list(content["clients"]["digests"])
    if not all(isinstance(each, bytes) and len(each) == _DIGEST_SIZE for each in digests):
        raise ValueError("It has sent something else than the ids of its clients.")
    if len(set(digests)) < len(digests):
        raise ValueError("Two of its clients have ids that print alike.")
    return digests


def train_request(
    weights: ArrayRecord,
    clipping_state: Mapping[str, np.ndarray],
    ledger: Mapping[str, np.ndarray],
    digests: Sequence[bytes],
    numbers: Sequence[int],
    key: int,
) -> RecordDict:
    """Return what a node needs for a round; see `NodeTraining.clipped_sum`.

    Args:
        weights: The weights as a record, which the messages to all nodes share.
        clipping_state: Arrays by name.
        ledger: Arrays by name.
        digests: The digests of one or more clients.
        numbers: As many integers.
        key: An integer.
    """
    drawn = {"digests": list(digests), "numbers": [*map(int, numbers)], "key": key}
    return RecordDict(
        {
            "weights": weights,
            "clipping": _named(clipping_state),
            "ledger": _named(ledger),
            "drawn": ConfigRecord(drawn),
        }
    )


def train_arguments(content: RecordDict, client_ids: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments of `NodeTraining.clipped_sum`, without clients that are not there.

    Args:
        content: A `train_request`.
        client_ids: The ids of the clients of the node.
    """
    drawn = content["drawn"]
    positions = {digest_of(client_id): n for n, client_id in enumerate(client_ids)}
    pairs = zip(drawn["digests"], drawn["numbers"], strict=True)
    here = [(positions[digest], number) for digest, number in pairs if digest in positions]
    return {
        "weights": content["weights"].to_numpy_ndarrays(),
        "clipping_state": {name: array.numpy() for name, array in content["clipping"].items()},
        "ledger": {name: array.numpy() for name, array in content["ledger"].items()},
        "positions": [position for position, _ in here],
        "numbers": [number for _, number in here],
        "key": drawn["key"],
    }


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


def received(reply: Message, read: Callable[[RecordDict], Any]) -> tuple[Any, str]:
    """Return what a node has sent and "", or None and the reason why it cannot be used.

    Args:
        reply: The reply of the node.
        read: Takes the content of the reply and returns what it means.
    """
    try:
        if reply.has_error():
            raise ValueError(reply.error.reason)
        return read(reply.content), ""
    # Whatever a node sends, the others go on.
    except Exception as error:
        _log.warning("Node %s takes no part: %s", reply.metadata.src_node_id, error)
        return None, str(error)


def _named(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """Return arrays by name as a record."""
    return ArrayRecord(array_dict={name: Array(np.asarray(each)) for name, each in arrays.items()})
