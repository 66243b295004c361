"""Which node holds which client."""

import logging
from collections.abc import Iterable, Sequence

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from keras_adaclip.integrations.flower import messages

_log = logging.getLogger("keras_adaclip")


class NodeDirectory:
    """The clients on all nodes when a run begins, numbered in the order of their digests.

    Args:
        grid: Flower's grid.
        node_ids: The nodes.
        timeout: Seconds to wait for their answers.

    Raises:
        ValueError: If no node answers, or two nodes hold the same client.
    """

    def __init__(self, grid: Grid, node_ids: Iterable[int], timeout: float) -> None:
        self._asked: set[int] = set()
        self._reasons: dict[int, str] = {}
        # The nodes of each client, with its position there.
        holders: dict[bytes, tuple[int, int]] = {}
        for node_id, digests in self._ask(grid, node_ids, timeout).items():
            for position, digest in enumerate(digests):
                if digest in holders:
                    raise ValueError(
                        f"Nodes {holders[digest][0]} and {node_id} hold a client of the same id. "
                        "Ids must be unique over all nodes: begin them with the name of the node, "
                        "unless it is the same person, who must then be on one node."
                    )
                holders[digest] = node_id, position
        if not holders:
            reasons = "; ".join(dict.fromkeys(self._reasons.values())) or "no node answered"
            raise ValueError(f"No node can take part, so nothing was trained: {reasons}")
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
        for node_id, digests in self._ask(grid, new, timeout).items():
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

    def _ask(self, grid: Grid, node_ids: Iterable[int], timeout: float) -> dict[int, list[bytes]]:
        """Return the digests of the clients of each node that answers."""
        asked = set(node_ids)
        self._asked |= asked
        questions = [
            Message(RecordDict(), dst_node_id=node_id, message_type=MessageType.QUERY)
            for node_id in sorted(asked)
        ]
        answers: dict[int, list[bytes]] = {}
        for reply in grid.send_and_receive(questions, timeout=timeout) if questions else ():
            node_id = reply.metadata.src_node_id
            if reply.has_error():
                self._reasons[node_id] = reply.error.reason
                _log.warning("Node %s cannot take part: %s", node_id, reply.error.reason)
            else:
                answers[node_id] = messages.digests_of(reply.content)
        return answers
