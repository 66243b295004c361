"""The tiny app in Flower's simulation, and on a server and three nodes that are processes."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from keras import ops

from tests.integrations.flower.support import APP, tiny_app
from tests.integrations.flower.test_strategy import in_one_process

ROOT = Path(__file__).parents[3]
BIN = Path(sys.executable).parent
PATIENCE = 600.0

_SIMULATION = """
import sys
sys.path.insert(0, {app!r})
import tiny_app
from flwr.app import ConfigRecord
from flwr.simulation import run_simulation
config = {{"rounds": 4, "checkpoint": "", "released": "", "report": {report!r}, "timeout": 60.0}}
main = tiny_app.main
tiny_app.server = tiny_app.ServerApp()
@tiny_app.server.main()
def configured(grid, context):
    context.run_config.update(config)
    main(grid, context)
run_simulation(
    tiny_app.server,
    tiny_app.client,
    num_supernodes=3,
    backend_config={{"client_resources": {{"num_cpus": 1, "num_gpus": 0.0}}}},
)
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment(home):
    return {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }


class Deployment:
    """A server, three nodes and the runs of the tiny app, each a process.

    Args:
        folder: For logs and what the app writes.
    """

    def __init__(self, folder):
        self.folder = folder
        self.port = free_port()
        home = folder / "home"
        home.mkdir()
        address = f"127.0.0.1:{self.port}"
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n[superlink.here]\n'
            f'address = "{address}"\ninsecure = true\n'
        )
        self.environment = environment(home)
        self.processes = []
        self.nodes = {}
        self.start(
            "link", "flower-superlink", "--insecure", "--port", self.port,
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        self.wait(lambda: self._answers(), "the server")
        for number in range(3):
            self.start_node(number)

    def start(self, name, command, *arguments):
        with (self.folder / f"{name}.log").open("a") as log:
            process = subprocess.Popen(
                [BIN / command, *map(str, arguments)],
                stdout=log, stderr=log, env=self.environment, cwd=self.folder,
                start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def start_node(self, number):
        self.nodes[number] = self.start(
            f"node{number}", "flower-supernode", "--insecure",
            "--superlink", f"127.0.0.1:{self.port}", "--port", free_port(),
            "--node-config", f"number={number}",
        )  # fmt: skip

    def run(self, **config):
        """Submit a run of the app."""
        given = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        subprocess.run(
            [BIN / "flwr", "run", APP, "here", "--run-config", given],
            env=self.environment, check=True, timeout=120,
        )  # fmt: skip

    def kill_server(self):
        """Kill the process of the app's server, not Flower's."""
        found = subprocess.run(
            ["pgrep", "-f", "flwr-serverapp"], capture_output=True, text=True, check=False
        )
        own = [int(each) for each in found.stdout.split()]
        assert own
        for each in own:
            os.kill(each, signal.SIGKILL)

    def wait(self, condition, what):
        end = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > end:
                logs = {each.name: each.read_text()[-2000:] for each in self.folder.glob("*.log")}
                raise TimeoutError(f"{what} did not come: {logs}")
            time.sleep(0.2)

    def close(self):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _answers(self):
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture
def deployment(tmp_path):
    made = Deployment(tmp_path)
    yield made
    made.close()


def test_the_simulation_is_fit(tmp_path):
    report = tmp_path / "report.json"
    script = _SIMULATION.format(app=str(APP), report=str(report))
    subprocess.run(
        [sys.executable, "-c", script],
        env=environment(tmp_path), check=True, timeout=PATIENCE, cwd=tmp_path,
    )  # fmt: skip
    found, alone = json.loads(report.read_text()), in_one_process(4)
    for one, other in zip(found["weights"], alone.weights, strict=True):
        np.testing.assert_allclose(one, ops.convert_to_numpy(other), rtol=1e-5, atol=1e-5)
    assert found["steps"] == 4
    assert found["epsilon"] == pytest.approx(alone.privacy_spent(1e-2).epsilon)


def test_nodes_and_servers_that_are_killed(deployment):
    """One node is killed in the middle, and the server twice; the ledger has every round.

    After a server is killed, nodes go on asking for its messages for about a minute.
    """
    checkpoint = deployment.folder / "run.weights.h5"
    released = deployment.folder / "released"
    report = deployment.folder / "report.json"
    config = {
        "rounds": 8, "checkpoint": str(checkpoint), "released": str(released),
        "report": str(report), "timeout": 240.0,
    }  # fmt: skip

    def lines():
        return released.read_text().splitlines() if released.exists() else []

    for number, stop_at in enumerate((2, 4)):
        deployment.run(**config)
        deployment.wait(lambda stop_at=stop_at: len(lines()) >= stop_at, f"round {stop_at}")
        if number == 0:
            os.killpg(deployment.nodes[1].pid, signal.SIGKILL)
            deployment.start_node(1)
        deployment.kill_server()
    deployment.run(**config)
    deployment.wait(report.exists, "the last round")
    time.sleep(1.0)
    found = json.loads(report.read_text())
    assert found["steps"] == 8
    sent = {line.split()[0] for line in lines()}
    model = tiny_app().build_model()
    model.load_weights(checkpoint)
    # All weights that were sent but the first, which are public, were counted before.
    assert model.privacy_ledger.steps == 8 >= len(sent) - 1
    assert all(int(line.split()[1]) >= 1 for line in lines()[-3:])
    assert found["epsilon"] == pytest.approx(in_one_process(8).privacy_spent(1e-2).epsilon)
