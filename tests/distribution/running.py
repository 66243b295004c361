"""Runs `program.py` in processes of its own, at the same time where there are several."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np

ROOT = Path(__file__).parents[2]
SECONDS = 150


def free_ports(count):
    """Ports that nothing listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def start(written, *, devices=1, kind="none", processes=1, scenarios, **further):
    """Starts all processes of a program, which write into a folder.

    Returns:
        A function that waits for them, and returns the results and the exit status of each.
    """
    ports = free_ports(processes)
    started = []
    for process in range(processes):
        options = {
            "backend": keras.backend.backend(),
            "devices": devices,
            "kind": kind,
            "processes": processes,
            "process": process,
            "ports": ports,
            "scenarios": scenarios,
            **further,
        }
        name = f"{kind}-{devices}-{process}-{'-'.join(scenarios)}"[:100]
        results, log = written / f"{name}.npz", written / f"{name}.log"
        line = [sys.executable, "-m", "tests.distribution.program", json.dumps(options), results]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("XLA_FLAGS", None)
        with log.open("w") as output:
            running = subprocess.Popen(
                line, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        started.append((running, results, log))

    def wait():
        found = []
        try:
            for running, results, log in started:
                status = running.wait(timeout=SECONDS)
                found.append((loaded(results, log, status), status, log.read_text()))
        finally:
            for running, *_ in started:
                running.kill()
                running.wait()
        return found

    return wait


def loaded(results, log, status):
    """The arrays of a process by scenario; empty where it ended otherwise than it should."""
    by_scenario = {}
    if status != 0:
        return by_scenario
    with np.load(results) as arrays:
        for key in arrays:
            scenario, name = key.split("/")
            by_scenario.setdefault(scenario, {})[name] = arrays[key]
    return by_scenario


def results_of(found):
    """What the processes told that `start`'s function has waited for, where all ended well."""
    for results, status, log in found:
        assert status == 0, log[-4000:]
        for scenario, arrays in results.items():
            assert "error" not in arrays, f"{scenario}: {arrays['error']}\n{log[-4000:]}"
    return [results for results, *_ in found]
