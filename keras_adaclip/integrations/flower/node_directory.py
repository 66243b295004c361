"""Which node holds which client."""

import logging
import time
from collections.abc import Iterable, Sequence

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from keras_adaclip.integrations.flower import messages

_log = logging.getLogger("keras_adaclip")
_SECONDS_BETWEEN_LOOKS = 0.2


class NodeDirectory:
    """The clients on all nodes when a run begins, numbered in the order of their digests.

    Args:
        grid: Flower's grid.
        min_nodes: The number of nodes that must take part.
        timeout: Seconds to wait for them, and for the answers of the others that are connected.

    Raises:
        ValueError: If too few nodes answer, or two nodes hold the same client.
    """

    def __init__(self, grid: Grid, min_nodes: int, timeout: float) -> None:
        self._asked: set[int] = set()
        self._reasons: dict[int, str] = {}
        self._waiting: set[str] = set()
        found = self._first_answers(grid, min_nodes, timeout)
        holders: dict[bytes, int] = {}
        for node_id, digests in found.items():
            for digest in digests:
                if digest in holders:
                    raise ValueError(
                        f"Nodes {holders[digest]} and {node_id} hold a client of the same id. "
                        "Ids must be unique over all nodes: begin them with the name of the node, "
                        "unless it is the same person, who must then be on one node."
                    )
                holders[digest] = node_id
        self._digests = sorted(holders)
        self._holders = holders

    def __len__(self) -> int:
        return len(self._digests)

    def take_back(self, grid: Grid, connected: Sequence[int]) -> None:
        """Ask new nodes whether they hold clients of nodes that are gone, and read their answers.

        A node that was restarted may have another number. Clients that were not there when the run
        began take part in the next run. Nobody waits for the answers: they count from the round on
        that finds them.

        Args:
            grid: Flower's grid.
            connected: The nodes that are connected.
        """
        for node_id, digests in self._look(grid, connected).items():
            for digest in digests:
                if digest in self._holders and self._holders[digest] not in connected:
                    self._holders[digest] = node_id

    def by_node(
        self, numbers: Iterable[int], connected: Sequence[int]
    ) -> dict[int, tuple[list[bytes], list[int]]]:
        """Return the digests and numbers of some clients, by the connected node that holds them.

        Args:
            numbers: The numbers of the clients.
            connected: The nodes that are connected.
        """
        found: dict[int, tuple[list[bytes], list[int]]] = {}
        for number in map(int, numbers):
            digest = self._digests[number]
            node_id = self._holders[digest]
            if node_id in connected:
                digests, of_node = found.setdefault(node_id, ([], []))
                digests.append(digest)
                of_node.append(number)
        return found

    def _first_answers(self, grid: Grid, min_nodes: int, timeout: float) -> dict[int, list[bytes]]:
        """Return the digests of the clients of each node that answers in time."""
        end = time.monotonic() + timeout
        answers: dict[int, list[bytes]] = {}
        while True:
            connected = set(grid.get_node_ids())
            answers |= self._look(grid, connected)
            is_late = time.monotonic() > end
            if len(answers) >= min_nodes and (is_late or connected <= {*answers, *self._reasons}):
                return answers
            if is_late:
                reasons = (
                    "; ".join(dict.fromkeys(self._reasons.values())) or "others did not answer"
                )
                raise ValueError(
                    f"{len(answers)} of {len(connected)} connected nodes can take part after "
                    f"{timeout:g} seconds, and min_nodes={min_nodes}, so nothing was trained. "
                    f"Reasons: {reasons}"
                )
            time.sleep(_SECONDS_BETWEEN_LOOKS)

    def _look(self, grid: Grid, connected: Iterable[int]) -> dict[int, list[bytes]]:
        """Ask nodes that were not asked yet, and return the answers that are there."""
        if questions := self._questions(set(connected) - self._asked):
            self._waiting |= set(grid.push_messages(questions))
        replies = list(grid.pull_messages(self._waiting)) if self._waiting else []
        self._waiting -= {reply.metadata.reply_to_message_id for reply in replies}
        return self._answers(replies)

    def _questions(self, node_ids: Iterable[int]) -> list[Message]:
        """Return the messages that ask nodes for their clients."""
        asked = sorted(set(node_ids))
        self._asked |= set(asked)
        return [
            Message(RecordDict(), dst_node_id=node_id, message_type=MessageType.QUERY)
            for node_id in asked
        ]

    def _answers(self, replies: Iterable[Message]) -> dict[int, list[bytes]]:
        """Return the digests of the clients of the nodes that have replied without an error."""
        answers: dict[int, list[bytes]] = {}
        for reply in replies:
            node_id = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise ValueError(reply.error.reason)
                answers[node_id] = messages.digests_of(reply.content)
            # Whatever a node sends, the others go on.
            except Exception as error:
                self._reasons[node_id] = str(error)
                _log.warning("Node %s cannot take part: %s", node_id, error)
        return answers
