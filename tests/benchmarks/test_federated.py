"""The benchmark of federated rounds: workloads, ways on this backend, plans and the report."""

import importlib.util
import math
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
from workloads import MODELS, Workload  # noqa: E402


def script(name):
    """A script that has a namesake in the benchmark of steps."""
    spec = importlib.util.spec_from_file_location(f"federated_{name}", FEDERATED / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bench, measure = script("bench"), script("measure")
BACKEND = keras.backend.backend()
on_one_backend = pytest.mark.skipif(BACKEND != "tensorflow", reason="once is enough")


# ---- workloads ----------------------------------------------------------------------------------


@on_one_backend
@pytest.mark.parametrize("name", MODELS)
def test_models_have_the_size_that_all_are_held_to(name):
    workload = Workload(name, num_clients=2)
    model = keras.Model(*workload.about.build(keras))
    workload.check_size(sum(math.prod(w.shape) for w in model.trainable_weights))
    x, y = workload.client(0)
    assert model(x).shape[0] == len(y) == 60
    with pytest.raises(ValueError, match="num_trainable=7"):
        workload.check_size(7)


# ---- ways ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["ours", "loop"])
def test_a_small_round_on_this_backend(way):
    framework = ways.load(BACKEND)
    # Two rounds of few clients: does it run? The loops return the sum of the clients' losses.
    loss = framework.build(Workload("linear", 3, 6), way)(2)()
    if way == "loop":
        assert 0.0 < loss / (2 * 3 * 3) < 10.0


# ---- plans and processes ------------------------------------------------------------------------


# ---- the report ---------------------------------------------------------------------------------


def record(framework, workload, memory=None, **times):
    """What `measure.py` prints; a number of milliseconds or an error for each way."""
    about = {"model": workload.name, "framework": framework, "clock": "wall", "versions": {}}
    if memory is not None:
        return {**about, "memory": memory}
    results = {
        way: {"error": value} if isinstance(value, str) else {"milliseconds": [value]}
        for way, value in times.items()
    }
    return {**about, "times": results}


def some_records():
    small, many = Workload("mlp"), Workload("mlp", 50, 10_000)
    return [
        record("tensorflow", small, ours=30.0, loop="no kernel"),
        record("jax", small, ours=6.0, poisson=9.0, loop=12.0),
        record("jax", many, ours=6.5, loop=12.5),
        record("pfl", small, private=24.0, plain=20.0),
        record("jax", small, memory={"ours": {"base": 300.0, "peak": 50.0, "steady": None}}),
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
