"""The nodes: a Flower `ClientApp` that trains the clients of each node."""

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from keras_adaclip.federated import ClientData, NodeTraining
from keras_adaclip.integrations.flower import messages

# In a simulation, one process plays many nodes. The oldest ones are prepared again.
_MOST_NODES = 64
_nodes: OrderedDict[tuple[int, int], NodeTraining] = OrderedDict()


def client_app(
    build_model: Callable[[], Any],
    clients: Callable[[Context], ClientData],
    made_up: tuple[Any, Any],
) -> ClientApp:
    """Return the app; the arguments are those of `flower.client_app`.

    Raises:
        TypeError: If an argument cannot be called.
    """
    for name, value in (("build_model", build_model), ("clients", clients)):
        if not callable(value):
            raise TypeError(f"Argument `{name}` must be a function. Received: {name}={value!r}")

    app, of_context = ClientApp(), functools.partial(node, build_model, clients, made_up)

    @app.query()
    def query(message: Message, context: Context) -> Message:
        """Prepare the node, and tell the server of its clients."""
        return Message(messages.query_reply(of_context(context).client_ids), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Train the drawn clients of the node."""
        training = of_context(context)
        arguments = messages.train_arguments(message.content, training.client_ids)
        found = training.clipped_sum(**arguments)
        return Message(messages.train_reply(*found), reply_to=message)

    return app


# Not inside of `client_app`: processes of a simulation get copies of what is defined there.
def node(
    build_model: Callable[[], Any],
    clients: Callable[[Context], ClientData],
    made_up: tuple[Any, Any],
    context: Context,
) -> NodeTraining:
    """Return the node, prepared once in a process.

    Args:
        build_model: As for `client_app`.
        clients: As for `client_app`.
        made_up: As for `client_app`.
        context: Flower's context of the node.
    """
    key = (context.run_id, context.node_id)
    if key not in _nodes:
        for old in [each for each in _nodes if each[0] != context.run_id]:
            del _nodes[old]
        model = next(iter(_nodes.values())).model if _nodes else build_model()
        _nodes[key] = NodeTraining(model, clients(context), made_up)
        if len(_nodes) > _MOST_NODES:
            _nodes.popitem(last=False)
    return _nodes[key]
