"""PyTorch by hand: a training loop for each client, then the mean of what they changed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import speed_path  # noqa: F401
import torch
from framework import Train
from torch import nn
from torch_networks import inputs_of, network
from workloads import CLIENT_LEARNING_RATE, SERVER_LEARNING_RATE, Workload


def build(workload: Workload, way: str) -> Train:
    """A model and how to train it.

    Args:
        workload: what a round trains.
        way: "loop".
    """
    del way
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module = network(workload).to(device).train()
    criterion = nn.CrossEntropyLoss()
    parameters = list(module.parameters())
    server = [parameter.detach().clone() for parameter in parameters]
    images, targets = workload.arrays()
    x, y = torch.from_numpy(inputs_of(images)).to(device), torch.from_numpy(targets).to(device)
    generator = np.random.default_rng(0)

    def train_client(number: int) -> torch.Tensor:
        """Trains from the server's weights; returns the sum of the losses."""
        with torch.no_grad():
            for parameter, value in zip(parameters, server, strict=True):
                parameter.copy_(value)
        optimizer = torch.optim.SGD(parameters, lr=CLIENT_LEARNING_RATE)
        client = number % len(x)
        batches = torch.from_numpy(workload.local_batches(generator)).to(device)
        total = torch.zeros((), device=device)
        for rows in batches:
            optimizer.zero_grad()
            loss = criterion(module(x[client, rows]), y[client, rows])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return total

    def train(num_rounds: int) -> Callable[[], Any]:
        def run() -> float:
            loss = torch.zeros((), device=device)
            for _ in range(num_rounds):
                changes = [torch.zeros_like(value) for value in server]
                for number in workload.cohort(generator):
                    loss += train_client(int(number))
                    with torch.no_grad():
                        for change, after, before in zip(changes, parameters, server, strict=True):
                            change += after - before
                for value, change in zip(server, changes, strict=True):
                    value += SERVER_LEARNING_RATE / workload.cohort_size * change
            return loss.item()  # waits for the device

        return run

    return train
