"""Flower's grid in this process, and the tiny app."""

import importlib.util
from pathlib import Path

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

APP = Path(__file__).with_name("app")


def tiny_app():
    """Return the module of the tiny app."""
    specification = importlib.util.spec_from_file_location("tiny_app", APP / "tiny_app.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


class LocalGrid(Grid):
    """A grid whose nodes answer in this process.

    Args:
        app: The `ClientApp` of all nodes.
        numbers: The number of each node, by its id.
        run_id: The run; nodes are prepared once for each.

    Attributes:
        silent: Nodes that are connected and do not answer.
        failing: Nodes that answer with an error.
        changed: Functions that change what a node returns of a round, by its id.
        changed_answers: Functions that change what it tells of its clients.
        asked: The ids of the nodes, and the type, of each message.
    """

    def __init__(self, app, numbers, run_id=1):
        self.app, self.numbers, self.run_id = app, dict(numbers), run_id
        # Messages are from this process.
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run_id, 1, 1
        self.silent, self.failing, self.changed, self.asked = set(), set(), {}, []
        self.changed_answers = {}

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.numbers)

    def send_and_receive(self, messages, *, timeout=None):
        return [reply for message in messages for reply in self._replies(message)]

    def _replies(self, message):
        node_id = message.metadata.dst_node_id
        self.asked.append((node_id, message.metadata.message_type))
        message.metadata.__dict__["_run_id"] = self.run_id
        if node_id in self.silent or node_id not in self.numbers:
            return []
        if node_id in self.failing:
            return [Message(Error(code=0, reason="broken"), reply_to=message)]
        config = {"number": self.numbers[node_id]}
        reply = self.app(message, Context(self.run_id, node_id, config, RecordDict(), {}))
        is_answer = message.metadata.message_type == "query"
        if change := (self.changed_answers if is_answer else self.changed).get(node_id):
            change(reply.content)
        return [reply]
