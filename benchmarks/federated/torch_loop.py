"""PyTorch by hand: a training loop for each client, then the mean of what they changed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import speed_path  # noqa: F401
import torch
from framework import Train
from torch import Tensor, nn
from torch_networks import inputs_of, network
from workloads import CLIENT_LEARNING_RATE, SERVER_LEARNING_RATE, Workload


class LocalTraining:
    """The training of single clients, whose data are on the device.

    Args:
        workload: what a round trains.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.module = network(workload).to(self.device).train()
        self.parameters = list(self.module.parameters())
        images, targets = workload.arrays()
        self._x = torch.from_numpy(inputs_of(images)).to(self.device)
        self._y = torch.from_numpy(targets).to(self.device)
        self._generator = np.random.default_rng(0)
        self._criterion = nn.CrossEntropyLoss()

    def train(self, client: int) -> Tensor:
        """Trains the module on a client's examples, from the weights that it has.

        Args:
            client: number of the client.

        Returns:
            The sum of the losses of its batches.
        """
        optimizer = torch.optim.SGD(self.parameters, lr=CLIENT_LEARNING_RATE)
        client %= len(self._x)
        batches = self._workload.local_batches(self._generator)
        total = torch.zeros((), device=self.device)
        for rows in torch.from_numpy(batches).to(self.device):
            optimizer.zero_grad()
            loss = self._criterion(self.module(self._x[client, rows]), self._y[client, rows])
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return total


def build(workload: Workload, way: str) -> Train:
    """A model and how to train it.

    Args:
        workload: what a round trains.
        way: "loop".
    """
    del way
    local = LocalTraining(workload)
    server = [parameter.detach().clone() for parameter in local.parameters]
    generator = np.random.default_rng(1)

    @torch.no_grad()
    def start_from_server() -> None:
        for parameter, value in zip(local.parameters, server, strict=True):
            parameter.copy_(value)

    @torch.no_grad()
    def add_change(changes: list[Tensor]) -> None:
        for change, after, before in zip(changes, local.parameters, server, strict=True):
            change += after - before

    def train(num_rounds: int) -> Callable[[], Any]:
        def run() -> float:
            loss = torch.zeros((), device=local.device)
            for _ in range(num_rounds):
                changes = [torch.zeros_like(value) for value in server]
                for client in workload.cohort(generator):
                    start_from_server()
                    loss += local.train(int(client))
                    add_change(changes)
                for value, change in zip(server, changes, strict=True):
                    value += SERVER_LEARNING_RATE / workload.cohort_size * change
            return loss.item()  # waits for the device

        return run

    return train
