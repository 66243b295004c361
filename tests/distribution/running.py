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
SECONDS = 1200


def free_ports(count):
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start(written, *, devices=1, kind="none", processes=1, scenarios, **further):
    """Start all processes of a program, which write into the folder `written`.

    Returns:
        A function that waits for them, and returns results, exit status and log of each.
    """
    started, options = [], {"devices": devices, "kind": kind, "processes": processes, **further}
    options |= {"backend": keras.backend.backend(), "scenarios": scenarios}
    options |= {"ports": free_ports(processes)}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("XLA_FLAGS", None)
    for process in range(processes):
        results, log = (written / f"{kind}-{devices}-{process}.{each}" for each in ("npz", "log"))
        told = json.dumps({**options, "process": process})
        line = [sys.executable, "-m", "tests.distribution.program", told, results]
        with log.open("w") as output:
            to_log = {"stdout": output, "stderr": subprocess.STDOUT}
            running = subprocess.Popen(line, cwd=ROOT, env=environment, **to_log)
        started.append((running, results, log))

    def wait():
        found = []
        try:
            for running, results, log in started:
                status = running.wait(timeout=SECONDS)
                found.append((loaded(results) if status == 0 else {}, status, log.read_text()))
        finally:
            for running, *_ in started:
                running.kill()
                running.wait()
        return found

    return wait


def loaded(results):
    by_scenario = {}
    with np.load(results) as arrays:
        for key in arrays:
            scenario, name = key.split("/")
            by_scenario.setdefault(scenario, {})[name] = arrays[key]
    return by_scenario


def results_of(found):
    """Return the results of the processes that `start`'s function has waited for."""
    for results, status, log in found:
        assert status == 0, log[-4000:]
        for scenario, arrays in results.items():
            assert "error" not in arrays, f"{scenario}: {arrays['error']}\n{log[-4000:]}"
    return [results for results, *_ in found]


def assert_one_run(alone, found):
    """Compare a run over several devices or processes with one over a single one."""
    scale = np.abs(alone["weights"]).max()
    np.testing.assert_allclose(found["weights"], alone["weights"], atol=1e-5 * scale)
    np.testing.assert_allclose(found["clip_norm"], alone["clip_norm"], rtol=1e-5)
    assert (found["steps"], found["epsilon"]) == (alone["steps"], alone["epsilon"])


def assert_noise_as_accounted(found):
    """The standard deviation of so many draws is known to 1 in 100: five of these."""
    changes = found["changes"]
    assert (changes.size, found["steps"]) == (4 * 41 * 30, 4)
    assert abs(np.std(changes) - 1.0) < 5.0 / np.sqrt(2.0 * changes.size)
    assert abs(np.mean(changes)) < 5.0 / np.sqrt(changes.size)
