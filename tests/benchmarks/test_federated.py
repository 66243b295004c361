"""The benchmark of federated rounds: workloads, ways on this backend, plans and the report."""

import sys
from pathlib import Path

import keras
import pytest

import keras_adaclip as ka

FEDERATED = Path(ka.__file__).parents[1] / "benchmarks" / "federated"
if not FEDERATED.exists():
    pytest.skip("the benchmarks are not part of this installation", allow_module_level=True)
pytest.importorskip("matplotlib")
# The files are scripts, which import each other by their names. Two names are in both folders.
sys.path += [str(FEDERATED.parent / "speed"), str(FEDERATED)]

import rounds_report  # noqa: E402
import ways  # noqa: E402
from results import ResultsFile, machine  # noqa: E402
from workloads import Workload  # noqa: E402

BACKEND = keras.backend.backend()
on_one_backend = pytest.mark.skipif(BACKEND != "tensorflow", reason="once is enough")


@pytest.mark.parametrize("way", ["ours", "loop"])
def test_a_small_round_on_this_backend(way):
    framework = ways.load(BACKEND)
    # Two rounds of few clients: does it run? The loops return the sum of the clients' losses.
    loss = framework.build(Workload("linear", 3, 6), way)(2)()
    if way == "loop":
        assert 0.0 < loss / (2 * 3 * 3) < 10.0


def record(framework, workload=None, **times):
    """What `measure.py` prints; a number of milliseconds or an error for each way."""
    about = {"model": (workload or Workload("mlp")).name, "clock": "wall", "versions": {}}
    results = {
        way: {"error": value} if isinstance(value, str) else {"milliseconds": [value]}
        for way, value in times.items()
    }
    return {**about, "framework": framework, "times": results}


def some_records():
    memory = {"ours": {"base": 300.0, "peak": 50.0, "steady": None}}
    return [
        record("tensorflow", ours=30.0, loop="no kernel"),
        record("jax", ours=6.0, poisson=9.0, loop=12.0),
        record("jax", Workload("mlp", 50, 10_000), ours=6.5, loop=12.5),
        record("pfl", private=24.0, plain=20.0),
        {**record("jax"), "memory": memory},
    ]


@on_one_backend
def test_the_report_is_written_from_the_file(tmp_path, monkeypatch, capsys):
    results = ResultsFile(tmp_path / "results.json")
    results.machine, results.records = machine(), some_records()
    results.write()
    monkeypatch.setattr(sys, "argv", ["rounds_report.py", str(results.path)])
    rounds_report.main()
    assert capsys.readouterr().out.count("Written") == 2
    text = results.path.with_suffix(".md").read_text()
    assert "| 10,000 clients | –; – | 6.5; – |" in text
    assert "| TensorFlow | loop | mlp-50-1000 | no kernel |" in text
    assert results.path.with_suffix(".png").stat().st_size > 10_000
