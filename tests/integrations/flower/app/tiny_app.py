"""A Flower app with a tiny model on made-up users, 30 of them on three nodes."""

import hashlib
import json
from pathlib import Path

import keras
import numpy as np
from flwr.serverapp import ServerApp

import keras_adaclip as ka
from keras_adaclip.integrations.flower.private_strategy import PrivateStrategy

NUM_USERS, NUM_NODES, COHORT = 30, 3, 10


def build_model():
    keras.utils.set_random_seed(1)
    model = ka.federated.FederatedSequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(
        ka.optimizers.DPOptimizer(
            keras.optimizers.SGD(1.0, momentum=0.9), "quantile", noise_multiplier=0.7, seed=3
        ),
        client_optimizer=keras.optimizers.SGD(0.1),
        client_batch_size=5,
        client_examples_limit=20,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def examples():
    """Return inputs, labels and users, from one to nine examples for each user."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(NUM_USERS), rng.integers(1, 10, NUM_USERS))
    x = rng.normal(size=(len(users), 4)).astype("float32")
    return x, x.argmax(axis=1) % 3, users


def users_of(number):
    x, y, users = examples()
    here = users % NUM_NODES == number
    return ka.federated.ClientData.from_arrays(x[here], y[here], users[here])


def clients(context):
    config = context.node_config
    return users_of(int(config.get("number", config.get("partition-id"))))


MADE_UP = (np.random.default_rng(9).random((8, 4), "float32"), np.zeros(8, "int64"))
client = ka.integrations.flower.client_app(build_model, clients, MADE_UP)
server = ServerApp()


class Recording(PrivateStrategy):
    """Adds a line to a file for each round: the digest of the weights that leave the server."""

    released = ""

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        if self.released:
            values = b"".join(each.tobytes() for each in arrays.to_numpy_ndarrays())
            with Path(self.released).open("a", encoding="utf-8") as file:
                print(hashlib.sha256(values).hexdigest(), len(messages), file=file)
        return messages


@server.main()
def main(grid, context):
    config = context.run_config
    model = build_model()
    strategy = Recording(
        model, COHORT, min_nodes=NUM_NODES, checkpoint=config["checkpoint"] or None
    )
    strategy.released = config["released"]
    strategy.start(grid, num_rounds=config["rounds"], timeout=config["timeout"])
    if config["report"]:
        found = {
            "steps": model.privacy_ledger.steps,
            "epsilon": model.privacy_spent(1e-2).epsilon,
            "weights": [keras.ops.convert_to_numpy(each).tolist() for each in model.weights],
        }
        Path(config["report"]).write_text(json.dumps(found), encoding="utf-8")
