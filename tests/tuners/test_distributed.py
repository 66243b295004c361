"""Searches with one chief and two workers, as processes of this machine.

On one backend only: what keras-tuner's processes tell each other is the same on all three.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import keras
import pytest

from tests.tuners.distributed_processes import (
    NUM_TRIALS,
    REFUSED,
    ROLES,
    SEARCHES,
    SharedRegression,
)
from tests.tuners.hypermodels import planned

_ROOT = Path(__file__).parents[2]
_TIME_LIMIT = 180

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="the processes talk in the same way on each backend"
)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of the searches, all of whose processes have ended by themselves."""
    folder = tmp_path_factory.mktemp("distributed")
    environment = {name: value for name, value in os.environ.items() if "KERASTUNER" not in name}
    environment |= {"PYTHONPATH": str(_ROOT), "OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tuners.distributed_processes", str(folder)],
        cwd=_ROOT,
        env=environment,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output, _ = process.communicate(timeout=_TIME_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"Not all processes ended within {_TIME_LIMIT} s:\n{process.communicate()[0]}")
    assert process.returncode == 0, output
    return folder


def ran(folder):
    """The learning rates of the runs on each worker."""
    return {
        path.stem: [float(line) for line in path.read_text().split()]
        for path in folder.glob("*.ran")
    }


@pytest.mark.parametrize("name", SEARCHES)
def test_all_processes_end_and_share_the_trials(ended, name):
    folder = ended / name
    assert all((folder / f"{role}.json").exists() for role in ROLES)
    rates = ran(folder)
    assert sorted(rates) == ["worker0", "worker1"]
    assert min(map(len, rates.values())) >= 1
    assert sum(map(len, rates.values())) == NUM_TRIALS


@pytest.mark.parametrize("name", SEARCHES)
def test_the_chief_gives_the_best_model_with_its_ledger(ended, name):
    found = json.loads((ended / name / "chief.json").read_text())
    assert found["steps"] == planned().steps
    assert found["learning_rate"] in [
        rate for rates in ran(ended / name).values() for rate in rates
    ]


def test_of_a_private_search_the_best_run_alone_is_left(ended):
    folder = ended / "private_search"
    found = sorted(str(path.relative_to(folder)) for path in (folder / "p").rglob("*.*"))
    assert found == [
        "p/best/build_config.json",
        "p/best/checkpoint.weights.h5",
        "p/private_search.json",
    ]
    search = SEARCHES["private_search"](folder)
    assert isinstance(search.hypermodel, SharedRegression)
    assert search.best_model().privacy_ledger.steps == planned().steps
    (hp,) = search.get_best_hyperparameters()
    chief = json.loads((folder / "chief.json").read_text())
    assert hp.get("learning_rate") == chief["learning_rate"]


@pytest.mark.parametrize("name", REFUSED)
def test_a_run_that_spends_more_ends_all_processes(ended, name):
    for role in ROLES:
        assert (
            "would spend more" in json.loads((ended / name / f"{role}.json").read_text())["refused"]
        )
    assert sorted(path.name for path in (ended / name / "p").iterdir()) == [
        "private_search.json",
        "refused.json",
    ]
