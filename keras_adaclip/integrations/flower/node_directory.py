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
        found = self._first_answers(grid, min_nodes, timeout)
        # The nodes of each client, with its position there.
        holders: dict[bytes, tuple[int, int]] = {}
        for node_id, digests in found.items():
            for position, digest in enumerate(digests):
                if digest in holders:
                    raise ValueError(
                        f"Nodes {holders[digest][0]} and {node_id} hold a client of the same id. "
                        "Ids must be unique over all nodes: begin them with the name of the node, "
                        "unless it is the same person, who must then be on one node."
                    )
                holders[digest] = node_id, position
        digests = sorted(holders)
        self._numbers = {digest: number for number, digest in enumerate(digests)}
        self._holders = [holders[digest] for digest in digests]

    def __len__(self) -> int:
        return len(self._holders)

    def take_back(self, grid: Grid, connected: Sequence[int], timeout: float) -> None:
        """Ask new nodes whether they hold clients of nodes that are gone.

        A node that was restarted may have another number. Clients that were not there when the run
        began take part in the next run.

        Args:
            grid: Flower's grid.
            connected: The nodes that are connected.
            timeout: Seconds to wait for answers.
        """
        new = [node_id for node_id in connected if node_id not in self._asked]
        replies = grid.send_and_receive(self._questions(new), timeout=timeout) if new else ()
        for node_id, digests in self._answers(replies).items():
            for position, digest in enumerate(digests):
                number = self._numbers.get(digest)
                if number is not None and self._holders[number][0] not in connected:
                    self._holders[number] = node_id, position

    def by_node(
        self, numbers: Iterable[int], connected: Sequence[int]
    ) -> dict[int, tuple[list[int], list[int]]]:
        """Return the positions and numbers of some clients, by the connected node that holds them.

        Args:
            numbers: The numbers of the clients.
            connected: The nodes that are connected.
        """
        found: dict[int, tuple[list[int], list[int]]] = {}
        for number in numbers:
            node_id, position = self._holders[number]
            if node_id in connected:
                positions, of_node = found.setdefault(node_id, ([], []))
                positions.append(position)
                of_node.append(int(number))
        return found

    def _first_answers(self, grid: Grid, min_nodes: int, timeout: float) -> dict[int, list[bytes]]:
        """Return the digests of the clients of each node that answers in time."""
        end = time.monotonic() + timeout
        waiting: set[str] = set()
        answers: dict[int, list[bytes]] = {}
        while True:
            connected = set(grid.get_node_ids())
            waiting |= set(grid.push_messages(self._questions(connected - self._asked)))
            replies = list(grid.pull_messages(waiting)) if waiting else []
            waiting -= {reply.metadata.reply_to_message_id for reply in replies}
            answers |= self._answers(replies)
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
            if reply.has_error():
                self._reasons[node_id] = reply.error.reason
                _log.warning("Node %s cannot take part: %s", node_id, reply.error.reason)
            else:
                answers[node_id] = messages.digests_of(reply.content)
        return answers
