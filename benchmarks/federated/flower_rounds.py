"""Flower: its simulation, with clients in a process of Ray's, and its fixed clipping with noise.

A simulation runs in a thread. Between the rounds of two measurements it waits, in the evaluation
that Flower calls after each round.
"""

import functools
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

import speed_path  # noqa: F401
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from framework import Framework, Train
from process_tree import peak_resident_bytes, processor_seconds
from torch_loop import LocalTraining
from torch_networks import network
from workloads import CLIP_NORM, NOISE_MULTIPLIER, Workload

_STOP = -1
_WITHOUT_END = 10**9
_PATIENCE = 1200.0  # seconds


class _StoppedError(Exception):
    """Ends a simulation."""


def framework(name: str) -> Framework:
    """What the measurements need.

    Args:
        name: not used, there is one only.
    """
    del name
    logging.getLogger("flwr").setLevel(logging.ERROR)
    return Framework(
        build=build,
        packages=("flwr", "ray", "torch", "numpy"),
        limit_threads=lambda: torch.set_num_threads(1),
        memory=peak_resident_bytes,
        clock=processor_seconds,
        close=stop_all,
    )


@functools.cache
def _local_training(workload: Workload) -> LocalTraining:
    """In a process of Ray's: made once, for all clients that train there."""
    torch.set_num_threads(1)
    return LocalTraining(workload)


def client_app(workload: Workload) -> ClientApp:
    """What trains on a client's examples.

    Args:
        workload: what a round trains.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        local = _local_training(workload)
        local.module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        loss = local.train(int(context.node_config["partition-id"])).item()
        content = {
            "arrays": ArrayRecord(local.module.state_dict()),
            "metrics": MetricRecord({"loss": loss, "num-examples": workload.num_examples}),
        }
        return Message(content=RecordDict(content), reply_to=message)

    return app


class Simulation:
    """A simulation that runs as many rounds as it is told and waits for more.

    Args:
        workload: what a round trains.
    """

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._asked: queue.Queue[int] = queue.Queue()
        self._done: queue.Queue[BaseException | None] = queue.Queue()
        self._remaining = 0
        self._thread = threading.Thread(target=self._simulate, daemon=True)

    def rounds(self, num_rounds: int) -> None:
        """Runs rounds and waits for them.

        Args:
            num_rounds: how many.
        """
        if not self._thread.is_alive():
            self._thread.start()
        self._asked.put(num_rounds)
        error = self._done.get(timeout=_PATIENCE)
        if error is not None:
            raise error

    def stop(self) -> None:
        """Ends the simulation, and Ray with it."""
        if self._thread.is_alive():
            self._asked.put(_STOP)
            self._thread.join()

    def _simulate(self) -> None:
        try:
            run_simulation(
                self._server_app(),
                client_app(self._workload),
                num_supernodes=self._workload.num_clients,
                backend_config={
                    "init_args": {"num_cpus": 1, "num_gpus": 0, "log_to_driver": False},
                    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                },
            )
        except _StoppedError:
            return
        except BaseException as error:
            self._done.put(error)

    def _server_app(self) -> ServerApp:
        workload, app = self._workload, ServerApp()

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            plain = FedAvg(
                fraction_train=workload.cohort_size / workload.num_clients,
                fraction_evaluate=0.0,
                min_available_nodes=workload.num_clients,
            )
            strategy = DifferentialPrivacyServerSideFixedClipping(
                plain, NOISE_MULTIPLIER, CLIP_NORM, workload.cohort_size
            )
            arrays = ArrayRecord(network(workload).state_dict())
            strategy.start(grid, arrays, _WITHOUT_END, evaluate_fn=self._after_round)

        return app

    def _after_round(self, number: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Called before the first round and after each."""
        if number:
            self._remaining -= 1
            if not self._remaining:
                self._done.put(None)
        if not self._remaining:
            self._remaining = self._asked.get()
            if self._remaining == _STOP:
                raise _StoppedError
        return None


_running: list[Simulation] = []


def build(workload: Workload, way: str) -> Train:
    """How to run rounds of a simulation.

    Args:
        workload: what a round trains.
        way: "private".
    """
    del way
    simulation = Simulation(workload)
    _running.append(simulation)
    simulation.rounds(1)  # Ray and the nodes start before the limit of a round counts

    def train(num_rounds: int) -> Callable[[], Any]:
        return lambda: simulation.rounds(num_rounds)

    return train


def stop_all() -> None:
    """Ends what still runs."""
    for simulation in _running:
        simulation.stop()
