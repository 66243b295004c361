"""The server: a Flower strategy whose rounds are those of `FederatedModel.fit`.

Its `NodeDirectory` knows which node holds which client.
"""

import logging
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
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
        self,
        model: Any,
        cohort_size: int | None = None,
        *,
        min_nodes: int = 1,
        callbacks: Any = None,
        checkpoint: Any = None,
    ) -> None:
        self.model = model
        self.cohort_size = cohort_size
        self.min_nodes = check_integer("min_nodes", min_nodes, minimum=1)
        self.checkpoint = checkpoint
        self._callbacks = callbacks
        self._rounds: ServerRounds | None = None
        self._directory: NodeDirectory | None = None
        self._timeout = 0.0
        self._drawn: Drawn | None = None
        self._waiting: dict[int, int] = {}

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
        self._timeout = check_positive("timeout", timeout)
        if self.model.optimizer.seed is not None:
            warnings.warn(
                "The `DPOptimizer` has a seed, which every node knows that builds the same model: "
                "it can subtract the noise. Over real nodes, leave `seed` out.",
                stacklevel=2,
            )
        self._directory = NodeDirectory(grid, self.min_nodes, self._timeout)
        self._rounds = ServerRounds(
            self.model, len(self._directory), self.cohort_size, self._callbacks, self.checkpoint
        )
        with self._rounds.run(num_rounds) as left:
            if not left:
                return Result(arrays=self._arrays())
            return super().start(
                grid, self._arrays(), left, timeout=self._timeout, evaluate_fn=evaluate_fn
            )

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
        self._waiting = {}
        self._drawn = rounds.begin_round()
        if self._drawn is None:
            return []
        connected = list(grid.get_node_ids())
        directory.take_back(grid, connected)
        state, ledger = self.model.optimizer.clipping_state, rounds.ledger
        requests = []
        for node_id, (digests, numbers) in directory.by_node(
            self._drawn.numbers, connected
        ).items():
            self._waiting[node_id] = len(numbers)
            content = messages.train_request(
                arrays, state, ledger, digests, numbers, self._drawn.key
            )
            requests.append(
                Message(
                    content,
                    dst_node_id=node_id,
                    message_type=MessageType.TRAIN,
                    group_id=str(server_round),
                )
            )
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
        returned = []
        for reply in replies:
            node_id = reply.metadata.src_node_id
            # Each node counts once.
            num_clients = self._waiting.pop(node_id, None)
            if num_clients is None:
                continue
            found, _ = messages.received(reply, messages.sums_of)
            if found is not None:
                sums, statistics = found
                returned.append(NodeSum(sums, statistics, num_clients, node_id))
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
        if new := sorted(set(connected) - self._asked):
            self._asked |= set(new)
            questions = [
                Message(RecordDict(), dst_node_id=node_id, message_type=MessageType.QUERY)
                for node_id in new
            ]
            self._waiting |= set(grid.push_messages(questions))
        answers: dict[int, list[bytes]] = {}
        for reply in list(grid.pull_messages(self._waiting)) if self._waiting else []:
            self._waiting.discard(reply.metadata.reply_to_message_id)
            digests, reason = messages.received(reply, messages.digests_of)
            if digests is None:
                self._reasons[reply.metadata.src_node_id] = reason
            else:
                answers[reply.metadata.src_node_id] = digests
        return answers
