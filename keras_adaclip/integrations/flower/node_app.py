"""The nodes: a Flower `ClientApp` that trains the clients of each node."""

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
    build_model: Callable[[], Any], clients: Callable[[Context], ClientData]
) -> ClientApp:
    """Return a Flower `ClientApp` that trains clients for a `PrivateStrategy`.

    A node holds one client, such as a telephone, or many, such as a hospital with its patients.
    Each client's contribution is clipped on its node, and nodes return sums.

    Args:
        build_model: Takes nothing and returns the compiled `FederatedModel`, the same one as on the
            server.
        clients: Takes Flower's `Context` and returns the `ClientData` of the node. No id may occur
            on two nodes.

    Returns:
        The app, for `[tool.flwr.app.components]` or for Flower's simulation.

    Raises:
        TypeError: If an argument cannot be called.

    Example:

        def build_model():
            model = ka.federated.FederatedSequential([keras.Input((28, 28)), ...])
            model.compile(ka.optimizers.DPOptimizer(...), client_optimizer="sgd", loss=...)
            return model

        def clients(context):
            number = context.node_config["partition-id"]
            return ka.federated.ClientData.from_folder(f"data/node_{number}", label="label")

        app = ka.integrations.flower.client_app(build_model, clients)
    """
    for name, value in (("build_model", build_model), ("clients", clients)):
        if not callable(value):
            raise TypeError(f"Argument `{name}` must be a function. Received: {name}={value!r}")

    def node(context: Context) -> NodeTraining:
        """Return the node, prepared once in a process."""
        key = (context.run_id, context.node_id)
        if key not in _nodes:
            for old in [each for each in _nodes if each[0] != context.run_id]:
                del _nodes[old]
            model = next(iter(_nodes.values())).model if _nodes else build_model()
            _nodes[key] = NodeTraining(model, clients(context))
            if len(_nodes) > _MOST_NODES:
                _nodes.popitem(last=False)
        return _nodes[key]

    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        """Prepare the node, and tell the server of its clients."""
        return Message(messages.query_reply(node(context).client_ids), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """Train the drawn clients of the node."""
        found = node(context).clipped_sum(**messages.train_arguments(message.content))
        return Message(messages.train_reply(*found), reply_to=message)

    return app
