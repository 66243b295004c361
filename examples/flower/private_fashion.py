"""Private federated learning over Flower's nodes: Fashion-MNIST, divided among users.

Each node holds many users, as a hospital holds the records of its patients. The server draws users
at random; their nodes train them, clip what each contributes, and return sums; the server adds
noise. Epsilon is for adding or removing one user.

On one machine, in five terminals:

    flower-superlink --insecure
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9101 --node-config 'number=0'
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9102 --node-config 'number=1'
    flower-supernode --insecure --superlink 127.0.0.1:8000 --port 9103 --node-config 'number=2'
    flwr run examples/flower loopback --stream

where Flower's `config.toml` has a connection

    [superlink.loopback]
    address = "127.0.0.1:8000"
    insecure = true
"""

import keras
import numpy as np
from flwr.app import Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import keras_adaclip as ka


def build_model(noise_multiplier: float = 0.6) -> keras.Model:
    """The same model on the server and on every node; the nodes add no noise."""
    model = ka.federated.FederatedSequential(
        [keras.Input((784,)), keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)]
    )
    model.compile(
        optimizer=ka.optimizers.DPOptimizer(
            keras.optimizers.SGD(1.0, momentum=0.9),
            clipping="quantile",
            noise_multiplier=noise_multiplier,
        ),
        client_optimizer=keras.optimizers.SGD(0.1),
        client_batch_size=10,
        client_examples_limit=100,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def read_images() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Images as rows of numbers from 0 to 1, and their labels, to train on and to test on."""
    train, test = keras.datasets.fashion_mnist.load_data()
    first, second = (
        (x.reshape(len(x), -1).astype("float32") / 255.0, y.astype("int32"))
        for x, y in (train, test)
    )
    return first, second


def users_of(number: int, num_nodes: int, num_users: int) -> ka.federated.ClientData:
    """The users of one node: every `num_nodes`-th of all."""
    (x, y), _ = read_images()
    users = ka.federated.partition.dirichlet(y, num_clients=num_users, alpha=1.0, seed=0)
    here = users % num_nodes == number
    return ka.federated.ClientData.from_arrays(x[here], y[here], users[here])


def clients(context: Context) -> ka.federated.ClientData:
    """The users of this node. A simulation numbers its nodes by `partition-id`."""
    number = context.node_config.get("number", context.node_config.get("partition-id"))
    return users_of(int(number), context.run_config["nodes"], context.run_config["users"])


# A few images of noise: the nodes examine the model with them, and with no one's data.
MADE_UP = (np.random.default_rng(0).random((8, 784), "float32"), np.arange(8, dtype="int32"))

client = ka.integrations.flower.client_app(build_model, clients, MADE_UP)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and say what was reached and what it cost."""
    config = context.run_config
    model = build_model(config["noise-multiplier"])
    _, test = read_images()
    strategy = ka.integrations.flower.server_strategy(
        model,
        config["cohort-size"],
        min_nodes=config["nodes"],
        checkpoint=config["checkpoint"] or None,
    )
    strategy.start(
        grid,
        num_rounds=config["rounds"],
        timeout=config["timeout"],
        # The test images are public.
        evaluate_fn=lambda number, arrays: MetricRecord(
            model.evaluate(*test, batch_size=1000, verbose=0, return_dict=True)
        ),
    )
    spent = model.privacy_spent(delta=config["users"] ** -1.1)
    steps = sum(row.steps for row in model.privacy_ledger)
    print(f"{steps} rounds, epsilon {spent.epsilon:.3f}", flush=True)
