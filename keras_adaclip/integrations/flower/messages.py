"""What travels between the server and its nodes, as records of Flower.

query     server -> node   nothing
          node -> server   digests of the ids of its clients
train     server -> node   weights, clipping state and ledger; which clients train, and the key
                           of their random numbers
          node -> server   the sum of their clipped contributions, and of their statistics
"""

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    return RecordDict({"clients": ConfigRecord({"digests": [*map(digest_of, client_ids)]})})


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
    numbers: Mapping[bytes, int],
    key: int,
) -> RecordDict:
    """Return what a node needs for a round; see `NodeTraining.clipped_sum`.

    Args:
        weights: The weights as a record, which the messages to all nodes share.
        clipping_state: Arrays by name.
        ledger: Arrays by name.
        numbers: The numbers of one or more clients, by their digests.
        key: An integer.
    """
    drawn = {"digests": list(numbers), "numbers": list(numbers.values()), "key": key}
    named = {
        name: ArrayRecord(array_dict={key: Array(np.asarray(each)) for key, each in arrays.items()})
        for name, arrays in (("clipping", clipping_state), ("ledger", ledger))
    }
    return RecordDict({"weights": weights, **named, "drawn": ConfigRecord(drawn)})


def train_arguments(content: RecordDict, client_ids: Sequence[Any]) -> dict[str, Any]:
    """Return the arguments of `NodeTraining.clipped_sum`, without clients that are not there.

    Args:
        content: A `train_request`.
        client_ids: The ids of the clients of the node.
    """
    drawn = content["drawn"]
    numbers = dict(zip(drawn["digests"], drawn["numbers"], strict=True))
    digests = map(digest_of, client_ids)
    here = {n: numbers[digest] for n, digest in enumerate(digests) if digest in numbers}
    return {
        "weights": content["weights"].to_numpy_ndarrays(),
        "clipping_state": {name: array.numpy() for name, array in content["clipping"].items()},
        "ledger": {name: array.numpy() for name, array in content["ledger"].items()},
        "positions": list(here),
        "numbers": list(here.values()),
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


def received(
    replies: Iterable[Message], read: Callable[[RecordDict], Any]
) -> tuple[dict[int, Any], dict[int, str]]:
    """Return what nodes have sent, and the reasons why others cannot be used, by node.

    Args:
        replies: The replies of the nodes.
        read: Takes the content of a reply and returns what it means.
    """
    found, reasons = {}, {}
    for reply in replies:
        node_id = reply.metadata.src_node_id
        try:
            if reply.has_error():
                raise ValueError(reply.error.reason)
            found[node_id] = read(reply.content)
        # Whatever a node sends, the others go on.
        except Exception as error:
            _log.warning("Node %s takes no part: %s", node_id, error)
            reasons[node_id] = str(error)
    return found, reasons
