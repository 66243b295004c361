"""This package: rounds of `FederatedModel` on the backend that the process runs."""

import contextlib
import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import speed_path  # noqa: F401
from framework import Train
from keras_ways import framework as framework  # the same as for steps
from workloads import (
    CLIENT_LEARNING_RATE,
    CLIP_NORM,
    NOISE_MULTIPLIER,
    SERVER_LEARNING_RATE,
    Arrays,
    Workload,
)

import keras_adaclip as ka


class SyntheticClients(ka.federated.ClientData):
    """Clients whose examples are made when they are asked for: a million take no memory.

    Args:
        workload: whose clients they are.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload

    @property
    def client_ids(self) -> Sequence[int]:
        """The numbers of all clients."""
        return range(self._workload.num_clients)

    def num_examples_at(self, position: int) -> int:
        """As many for each client.

        Args:
            position: of the client.
        """
        return self._workload.num_examples

    def examples_at(self, position: int) -> Arrays:
        """The examples of a client.

        Args:
            position: of the client.
        """
        return self._workload.client(position)


def build(workload: Workload, way: str) -> Train:
    """A compiled model and how to train it.

    Args:
        workload: what a round trains.
        way: "ours": cohorts of a fixed size, as all others draw them; "poisson": the cohorts that
            `fit` draws unless it is told otherwise, of which the size varies; "one-by-one": fixed
            cohorts with `microbatch_size=1`, one client after another; "-xla": with
            `jit_compile=True`.
    """
    # Keras's `fit` imports TensorFlow on every backend where it is there: no matter of a round.
    with contextlib.suppress(ImportError):
        importlib.import_module("tensorflow")
    kind = way.removesuffix("-xla")
    model = ka.FederatedModel(*workload.about.build(keras))
    workload.check_size(sum(math.prod(weight.shape) for weight in model.trainable_weights))
    model.compile(
        optimizer=ka.optimizers.DPOptimizer(
            keras.optimizers.SGD(SERVER_LEARNING_RATE),
            clipping=CLIP_NORM,
            noise_multiplier=NOISE_MULTIPLIER,
            microbatch_size=1 if kind == "one-by-one" else None,
        ),
        client_optimizer=keras.optimizers.SGD(CLIENT_LEARNING_RATE),
        client_batch_size=workload.batch_size,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=True if way.endswith("-xla") else "auto",
    )
    workload.arrays()  # drawn here, as the loops do, so that no round is charged for it
    clients = SyntheticClients(workload)

    def train(num_rounds: int) -> Callable[[], Any]:
        def run() -> None:
            # `fit` ends with reading the loss, for which it waits for all rounds.
            model.fit(
                clients,
                cohort_size=workload.cohort_size,
                steps_per_epoch=num_rounds,
                sampling="poisson" if kind == "poisson" else "fixed",
                verbose=0,
            )

        return run

    return train
