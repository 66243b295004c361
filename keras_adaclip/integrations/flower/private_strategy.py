"""The server: a Flower strategy whose rounds are those of `FederatedModel.fit`.

Its `NodeDirectory` knows which node holds which client.
"""

import logging
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from keras import ops

from keras_adaclip._checks import check_integer, check_positive
from keras_adaclip.federated import Drawn, NodeSum, ServerRounds
from keras_adaclip.integrations.flower import messages

_log = logging.getLogger("keras_adaclip")
_SECONDS_BETWEEN_LOOKS = 0.2


class PrivateStrategy(Strategy):
    """The strategy that `flower.server_strategy` returns; the arguments are those of that function.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.
    """

    def __init__(
        self, model: Any, cohort_size: int | None = None, *, min_nodes: int = 1, **options: Any
    ) -> None:
        self.model, self.cohort_size, self._options = model, cohort_size, options
        self.min_nodes = check_integer("min_nodes", min_nodes, minimum=1)
        self._rounds: ServerRounds | None = None
        self._directory: NodeDirectory | None = None
        self._drawn: Drawn | None = None
        # How many clients each node was asked for in this round.
        self._asked_clients: dict[int, int] = {}

    def start(
        self,
        grid: Grid,
        num_rounds: int = 3,
        timeout: float = 3600.0,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Train for some rounds.

        Args:
            grid: Flower's grid.
            num_rounds: The number of rounds, with those that the checkpoint has already.
            timeout: Seconds to wait for the nodes in each round. A later answer is not counted.
            evaluate_fn: As for Flower: takes the round and the weights, returns metrics. It may
                use `model`, which has these weights.

        Returns:
            Flower's result: the trained weights, and `epsilon` and `clip_norm` of each round.

        Raises:
            ValueError: If too few nodes can take part, two hold the same client, or an argument is
                out of range. Nothing was trained then.
        """
        timeout = check_positive("timeout", timeout)
        if self.model.optimizer.seed is not None:
            warnings.warn(
                "The `DPOptimizer` has a seed, which every node knows that builds the same model: "
                "it can subtract the noise. Over real nodes, leave `seed` out.",
                stacklevel=2,
            )
        self._directory = NodeDirectory(grid, self.min_nodes, timeout)
        num_clients = len(self._directory)
        self._rounds = ServerRounds(self.model, num_clients, self.cohort_size, **self._options)
        with self._rounds.run(num_rounds) as left:
            if not left:
                return Result(arrays=self._arrays())
            return super().start(grid, self._arrays(), left, timeout, evaluate_fn=evaluate_fn)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw the clients of a round, and return the messages to their nodes.

        Args:
            server_round: The number of the round in this run.
            arrays: The weights.
            config: Not used.
            grid: Flower's grid.
        """
        rounds, directory = self._rounds, self._directory
        if rounds is None or directory is None:
            raise RuntimeError("A `PrivateStrategy` trains by `start`, which opens the ledger.")
        self._asked_clients = {}
        self._drawn = rounds.begin_round()
        if self._drawn is None:
            return []
        sent = arrays, self.model.optimizer.clipping_state, rounds.ledger
        options = {"message_type": MessageType.TRAIN, "group_id": str(server_round)}
        requests = []
        for node_id, numbers in directory.by_node(self._drawn.numbers).items():
            self._asked_clients[node_id] = len(numbers)
            content = messages.train_request(*sent, numbers, self._drawn.key)
            requests.append(Message(content, dst_node_id=node_id, **options))
        return requests

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Make a private step of the nodes' sums; return the weights, and epsilon.

        Args:
            server_round: The number of the round in this run.
            replies: The nodes' replies.
        """
        if self._rounds is None or self._drawn is None:
            return None, None
        # Each node that was asked counts once.
        found, _ = messages.received(replies, messages.sums_of)
        returned = [
            NodeSum(sums, statistics, self._asked_clients[node_id], node_id)
            for node_id, (sums, statistics) in found.items()
            if node_id in self._asked_clients
        ]
        logs = self._rounds.end_round(returned)
        return self._arrays(), MetricRecord({name: float(value) for name, value in logs.items()})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return no message: what clients measure would leave them without noise.

        Args:
            server_round: Not used.
            arrays: Not used.
            config: Not used.
            grid: Not used.
        """
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None.

        Args:
            server_round: Not used.
            replies: Not used.
        """
        return None

    def summary(self) -> None:
        """Log what the run does."""
        if self._rounds is not None:
            data = self._rounds.data
            _log.info("Cohorts of %s of %s clients", data.expected_batch_size, data.num_examples)

    def _arrays(self) -> ArrayRecord:
        """Return the weights of the model."""
        values = [ops.convert_to_numpy(variable.value) for variable in self.model.weights]
        # Types that NumPy does not have, such as bfloat16, fit into float32.
        values = [each.astype("float32") if each.dtype.kind == "V" else each for each in values]
        return ArrayRecord(numpy_ndarrays=values)


class NodeDirectory:
    """The clients on all nodes when a run begins, numbered in the order of their digests.

    Args:
        grid: Flower's grid.
        min_nodes: The number of nodes that must take part.
        timeout: Seconds to wait for them, the others that are connected, and later for new ones.

    Raises:
        ValueError: If too few nodes answer, or two nodes hold the same client.
    """

    def __init__(self, grid: Grid, min_nodes: int, timeout: float) -> None:
        self._grid, self._timeout = grid, timeout
        end = time.monotonic() + timeout
        self._asked: set[int] = set()
        self._reasons: dict[int, str] = {}
        self._holders: dict[bytes, int] = {}
        num_nodes = 0
        while True:
            connected = list(grid.get_node_ids())
            # A node that does not answer leaves some time for those that connect later.
            left = max(end - time.monotonic(), 0.1 * timeout)
            for node_id, digests in self._answers(connected, left).items():
                num_nodes += 1
                for digest in digests:
                    holder = self._holders.setdefault(digest, node_id)
                    if holder != node_id:
                        raise ValueError(
                            f"Nodes {holder} and {node_id} hold a client of the same id. Ids must "
                            "be unique over all nodes: begin them with the name of the node, "
                            "unless it is the same person, who must then be on one node."
                        )
            if num_nodes >= min_nodes:
                break
            if time.monotonic() > end:
                reasons = dict.fromkeys(self._reasons.values())
                raise ValueError(
                    f"{num_nodes} of {len(connected)} connected nodes can take part after "
                    f"{timeout:g} seconds, and min_nodes={min_nodes}, so nothing was trained. "
                    f"Reasons: {'; '.join(reasons) or 'others did not answer'}"
                )
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        self._digests = sorted(self._holders)

    def __len__(self) -> int:
        return len(self._digests)

    def by_node(self, numbers: Iterable[int]) -> dict[int, dict[bytes, int]]:
        """Return the numbers of some clients by their digests, for each connected node.

        New nodes are asked whether they hold clients of nodes that are gone: a node that was
        restarted may have another number. Clients that were not there when the run began take part
        in the next run.

        Args:
            numbers: The numbers of the clients.
        """
        connected = list(self._grid.get_node_ids())
        for node_id, digests in self._answers(connected, self._timeout).items():
            for digest in digests:
                if digest in self._holders and self._holders[digest] not in connected:
                    self._holders[digest] = node_id
        found: dict[int, dict[bytes, int]] = {}
        for number in map(int, numbers):
            digest = self._digests[number]
            if self._holders[digest] in connected:
                found.setdefault(self._holders[digest], {})[digest] = number
        return found

    def _answers(self, connected: Iterable[int], timeout: float) -> dict[int, list[bytes]]:
        """Ask the nodes that were not asked yet, and return the digests of their clients."""
        new = sorted(set(connected) - self._asked)
        self._asked |= set(new)
        kind = MessageType.QUERY
        asked = [Message(RecordDict(), dst_node_id=each, message_type=kind) for each in new]
        replies = self._grid.send_and_receive(asked, timeout=timeout) if asked else []
        found, reasons = messages.received(replies, messages.digests_of)
        self._reasons |= reasons
        return found
