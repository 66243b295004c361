"""Rounds a second in Flower's simulation: this package's strategy beside Flower's fixed clipping.

    KERAS_BACKEND=torch python benchmarks/federated/flower_strategies.py ours
    KERAS_BACKEND=torch python benchmarks/federated/flower_strategies.py flower
    KERAS_BACKEND=torch python benchmarks/federated/flower_strategies.py flower-loop

in an environment with `keras-adaclip[torch,flower]` and `flwr[simulation]`. Each way trains the
same multilayer perceptron on 60 nodes of one client with 60 examples, of which 50 take part in a
round (on average, in the first way), with fixed clipping and noise, on one process of Ray's:

- *ours*: `server_strategy` and `client_app`;
- *flower*: `DifferentialPrivacyServerSideFixedClipping` around `FedAvg`; clients call Keras's
  `fit`;
- *flower-loop*: the same; clients train a PyTorch module in a loop by hand.

The first round, which starts processes and compiles, does not count.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

sys.path.insert(0, str(Path(__file__).parent))

NUM_NODES, COHORT_SIZE, NUM_EXAMPLES, BATCH_SIZE = 60, 50, 60, 20
CLIP_NORM, NOISE_MULTIPLIER = 1.0, 1.0
WAYS = ("ours", "flower", "flower-loop")


def examples(number: int) -> tuple[np.ndarray, np.ndarray]:
    """The examples of a client, made up."""
    rng = np.random.default_rng(number)
    x = rng.normal(size=(NUM_EXAMPLES, 784)).astype("float32")
    return x, rng.integers(0, 10, NUM_EXAMPLES).astype("int32")


def layers() -> list[Any]:
    """The multilayer perceptron 784-200-100-10."""
    import keras

    hidden = [keras.layers.Dense(units, activation="relu") for units in (200, 100)]
    return [keras.Input((784,)), *hidden, keras.layers.Dense(10)]


def private_model() -> Any:
    """The federated model of *ours*."""
    import keras

    import keras_adaclip as ka

    model = ka.federated.FederatedSequential(layers())
    model.compile(
        ka.optimizers.DPOptimizer(
            keras.optimizers.SGD(1.0), CLIP_NORM, noise_multiplier=NOISE_MULTIPLIER
        ),
        client_optimizer=keras.optimizers.SGD(0.1),
        client_batch_size=BATCH_SIZE,
        client_examples_limit=NUM_EXAMPLES,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


def clients(context: Context) -> Any:
    """The one client of a node of *ours*."""
    import keras_adaclip as ka

    number = int(context.node_config["partition-id"])
    return ka.federated.ClientData.from_dict({number: examples(number)})


def keras_trainer() -> Any:
    """Train a client by Keras's `fit`."""
    import keras

    model = keras.Sequential(layers())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)

    def train(arrays: list[np.ndarray], number: int) -> list[np.ndarray]:
        model.set_weights(arrays)
        model.fit(*examples(number), batch_size=BATCH_SIZE, verbose=0)
        return model.get_weights()  # type: ignore[no-any-return]

    return train, model.get_weights()


def loop_trainer() -> Any:
    """Train a client in a loop by hand."""
    import torch
    from torch import nn

    module = nn.Sequential(
        nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 100), nn.ReLU(), nn.Linear(100, 10)
    )
    loss = nn.CrossEntropyLoss()
    torch.set_num_threads(1)

    def train(arrays: list[np.ndarray], number: int) -> list[np.ndarray]:
        with torch.no_grad():
            for parameter, value in zip(module.parameters(), arrays, strict=True):
                parameter.copy_(torch.from_numpy(value))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        x, y = (torch.from_numpy(each) for each in examples(number))
        for rows in torch.randperm(len(x)).split(BATCH_SIZE):
            optimizer.zero_grad()
            loss(module(x[rows]), y[rows].long()).backward()
            optimizer.step()
        return [parameter.detach().numpy().copy() for parameter in module.parameters()]

    return train, [parameter.detach().numpy().copy() for parameter in module.parameters()]


_trainers: dict[str, Any] = {}


def trainer(way: str) -> Any:
    """The function that trains a client, made once in a process."""
    if way not in _trainers:
        _trainers[way] = {"flower": keras_trainer, "flower-loop": loop_trainer}[way]()
    return _trainers[way]


def apps(way: str, num_rounds: int, times: list[float]) -> tuple[ServerApp, ClientApp]:
    """The server, which appends the time of the end of each round, and the nodes."""
    server, client = ServerApp(), ClientApp()

    def ended(number: int, arrays: ArrayRecord) -> None:
        times.append(time.perf_counter())

    if way == "ours":
        import keras_adaclip as ka

        client = ka.integrations.flower.client_app(private_model, clients, examples(0))

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            strategy = ka.integrations.flower.server_strategy(
                private_model(), COHORT_SIZE, min_nodes=NUM_NODES
            )
            strategy.start(grid, num_rounds=num_rounds, evaluate_fn=ended)

        return server, client

    @client.train()
    def train(message: Message, context: Context) -> Message:
        train_client, _ = trainer(way)
        arrays = message.content["arrays"].to_numpy_ndarrays()
        found = train_client(arrays, int(context.node_config["partition-id"]))
        content = {
            "arrays": ArrayRecord(numpy_ndarrays=found),
            "metrics": MetricRecord({"num-examples": NUM_EXAMPLES}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    @server.main()
    def main_of_flower(grid: Grid, context: Context) -> None:
        plain = FedAvg(
            fraction_train=COHORT_SIZE / NUM_NODES,
            fraction_evaluate=0.0,
            min_available_nodes=NUM_NODES,
        )
        strategy = DifferentialPrivacyServerSideFixedClipping(
            plain, NOISE_MULTIPLIER, CLIP_NORM, COHORT_SIZE
        )
        _, arrays = trainer(way)
        start = ArrayRecord(numpy_ndarrays=arrays)
        strategy.start(grid, start, num_rounds=num_rounds, evaluate_fn=ended)

    return server, client


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    times: list[float] = []
    server, client = apps(options.way, options.rounds, times)
    run_simulation(
        server,
        client,
        num_supernodes=NUM_NODES,
        backend_config={
            "init_args": {"num_cpus": 1, "num_gpus": 0, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    lengths = np.diff(times)[1:]
    found = {"way": options.way, "rounds": len(lengths)}
    print(json.dumps({**found, "median_seconds": round(statistics.median(lengths), 4)}))


if __name__ == "__main__":
    main()
