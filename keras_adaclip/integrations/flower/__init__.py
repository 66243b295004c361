"""Federated training over the nodes of Flower: real ones, or those of its simulation.

private_strategy   the server: draws clients, knows their nodes, adds noise, keeps the ledger
node_app           the nodes: train clients, clip and add up
messages           what travels between server and nodes

Flower is imported when one of the two functions is called.
"""

import importlib
from collections.abc import Callable
from typing import Any

from keras_adaclip.federated import ClientData

__all__ = ["client_app", "server_strategy"]


def server_strategy(
    model: Any,
    cohort_size: int | None = None,
    *,
    min_nodes: int = 1,
    callbacks: Any = None,
    checkpoint: Any = None,
) -> Any:
    """Return a Flower strategy that trains a `FederatedModel` privately on the clients of nodes.

    Every round draws clients at random, independently; asks their nodes, which run `client_app`, to
    train them; adds up the clipped contributions; and makes a private step of the sum with the
    model's `DPOptimizer`, which adds the noise once, moves the clipping norm and counts the round.
    With the same seeds, the weights are those of `fit` on the same clients in one process.

    Args:
        model: A compiled and built `FederatedModel`. It ends with the trained weights, and with the
            ledger: `model.privacy_spent(delta)`.
        cohort_size: The expected number of clients in a round; None as in `FederatedModel.fit`.
        min_nodes: The number of nodes that must answer before the run begins. Others that are
            connected are waited for, up to the `timeout` of `start`.
        callbacks: As for Keras; an epoch is one round. `PrivacyCallback(target_epsilon=...)` ends
            the run at its budget.
        checkpoint: Path of a file, ending in `.weights.h5`, to which weights, optimizer and ledger
            are written after each round, before the new weights leave the server. If it is there
            when a run begins, the run goes on from it. None writes none.

    Guarantees:
        The weights that leave the server are (epsilon, delta)-differentially private for adding or
        removing one client with all of its examples, against everybody but the server and the
        client's own node. The server sees each node's sum without noise. It refuses sums that are
        longer than clipping allows, but relies on a node with several clients to clip each. Nodes
        that drop out, are late, or return NaN contribute nothing. `evaluate_fn`, and whether and
        when nodes answer, are not covered. Nodes that build the model with a `seed` know the
        noise.

    Returns:
        A Flower strategy. `strategy.start(grid, num_rounds, timeout)` trains, and returns Flower's
        result with the trained weights, and `epsilon` and `clip_norm` of each round.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.
        ImportError: If Flower is not installed.

    Example:

        app = ServerApp()

        @app.main()
        def main(grid, context):
            model = build_model()
            strategy = ka.integrations.flower.server_strategy(
                model, cohort_size=50, min_nodes=3, checkpoint="/var/run.weights.h5"
            )
            strategy.start(grid, num_rounds=100)
            model.save("trained.keras")
    """
    strategy = _part("private_strategy").PrivateStrategy
    return strategy(
        model, cohort_size, min_nodes=min_nodes, callbacks=callbacks, checkpoint=checkpoint
    )


def client_app(
    build_model: Callable[[], Any], clients: Callable[[Any], ClientData], made_up: tuple[Any, Any]
) -> Any:
    """Return a Flower `ClientApp` that trains clients for a `server_strategy`.

    A node holds one client, such as a telephone, or many, such as a hospital with its patients.
    Each client's contribution is clipped on its node, and nodes return sums.

    Args:
        build_model: Takes nothing and returns the `FederatedModel`, the same one as on the server,
            compiled with a `client_examples_limit`.
        clients: Takes Flower's `Context` and returns the `ClientData` of the node. No id may occur
            on two nodes. Prefer clients that are read when they train
            (`from_function`, `from_hdf5`): what fails here takes the whole node with it.
        made_up: The `(x, y)` of a made-up client: a few examples of random numbers, the same on all
            nodes, with the structure, shapes and dtypes of all. Nodes examine the model with them,
            and leave out clients of another kind. So no client's data decide about another client.

    Returns:
        The app, for `[tool.flwr.app.components]` or for Flower's simulation.

    Raises:
        TypeError: If an argument cannot be called.
        ImportError: If Flower is not installed.

    Example:

        def build_model():
            model = ka.federated.FederatedSequential([keras.Input((28, 28)), ...])
            model.compile(
                ka.optimizers.DPOptimizer(...),
                client_optimizer="sgd",
                client_examples_limit=100,
                loss=...,
            )
            return model

        def clients(context):
            number = context.node_config["partition-id"]
            return ka.federated.ClientData.from_hdf5(f"node_{number}.h5", x="pixels", y="label")

        made_up = np.random.default_rng(0).random((8, 28, 28), "float32"), np.zeros(8, "int32")
        app = ka.integrations.flower.client_app(build_model, clients, made_up)
    """
    return _part("node_app").client_app(build_model, clients, made_up)


def _part(name: str) -> Any:
    """Return a module of this folder that imports Flower.

    Raises:
        ImportError: If Flower is not installed.
    """
    try:
        importlib.import_module("flwr.serverapp")
    except ImportError as error:
        raise ImportError(
            "Flower 1.42 or later is needed for `keras_adaclip.integrations.flower`: "
            "pip install keras-adaclip[flower], in an environment of its own if other packages "
            "pin what Flower pins."
        ) from error
    return importlib.import_module(f"{__name__}.{name}")
