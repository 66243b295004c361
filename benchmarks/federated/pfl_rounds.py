"""pfl-research: its federated averaging on PyTorch, with its Gaussian mechanism and without."""

from collections.abc import Callable
from typing import Any

import numpy as np
import speed_path  # noqa: F401
import torch
from framework import Framework, Train
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from torch import Tensor
from torch.nn import functional
from torch_networks import inputs_of, network
from workloads import (
    CLIENT_LEARNING_RATE,
    CLIP_NORM,
    NOISE_MULTIPLIER,
    SERVER_LEARNING_RATE,
    Workload,
)


def framework(name: str) -> Framework:
    """What the measurements need.

    Args:
        name: not used, there is one only.
    """
    del name
    return Framework(
        build=build,
        packages=("pfl", "torch", "numpy"),
        limit_threads=lambda: torch.set_num_threads(1),
        memory=torch.cuda.max_memory_allocated if torch.cuda.is_available() else None,
    )


def build(workload: Workload, way: str) -> Train:
    """A model and how to train it, as pfl's benchmarks write it.

    Args:
        workload: what a round trains.
        way: "private": clipped to a norm and with noise; "plain": neither.
    """
    device = pytorch_ops.get_default_device()
    module = network(workload).train()
    # What pfl asks of a module, beyond being one.
    module.loss = lambda x, y: functional.cross_entropy(module(x), y)
    module.metrics = lambda x, y: {}
    server_optimizer = torch.optim.SGD(module.parameters(), lr=SERVER_LEARNING_RATE)
    model = PyTorchModel(module, torch.optim.SGD, server_optimizer)
    images, targets = workload.arrays()
    x, y = torch.from_numpy(inputs_of(images)).to(device), torch.from_numpy(targets).to(device)
    generator = np.random.default_rng(0)

    def client_data(number: int) -> PyTorchTensorDataset:
        # pfl goes through the examples as they come: a new order is the data set's matter.
        rows: Tensor = torch.from_numpy(workload.local_batches(generator).ravel()).to(device)
        client = number % len(x)
        return PyTorchTensorDataset((x[client, rows], y[client, rows]), user_id=str(number))

    data = FederatedDataset(client_data, lambda: int(generator.integers(workload.num_clients)))
    mechanism = GaussianMechanism(CLIP_NORM, NOISE_MULTIPLIER)
    privacy = [CentrallyAppliedPrivacyMechanism(mechanism)] if way == "private" else []
    backend = SimulatedBackend(data, data, postprocessors=privacy)
    local = NNTrainHyperParams(
        local_batch_size=workload.batch_size,
        local_num_epochs=1,
        local_learning_rate=CLIENT_LEARNING_RATE,
    )

    def train(num_rounds: int) -> Callable[[], Any]:
        rounds = NNAlgorithmParams(
            central_num_iterations=num_rounds,
            evaluation_frequency=10**9,
            train_cohort_size=workload.cohort_size,
            val_cohort_size=0,
        )

        def run() -> float:
            FederatedAveraging().run(rounds, backend, model, local, send_metrics_to_platform=False)
            return float(next(module.parameters()).sum())  # waits for the device

        return run

    return train
