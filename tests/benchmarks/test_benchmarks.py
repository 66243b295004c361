"""The benchmarks run on small work; `make test-all` alone runs this."""

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import keras_adaclip as ka

BENCHMARKS = Path(ka.__file__).parents[1] / "benchmarks"
if not BENCHMARKS.exists():
    pytest.skip("the benchmarks are not part of this installation", allow_module_level=True)
pytest.importorskip("matplotlib")
# The files are scripts, which import each other by their names. Two names are in both folders.
sys.path += [str(BENCHMARKS / "speed"), str(BENCHMARKS / "federated")]

import keras_ways  # noqa: E402
import turns  # noqa: E402
import ways  # noqa: E402
from suite import SUITE, Benchmark  # noqa: E402
from workloads import Workload  # noqa: E402

BACKEND = keras.backend.backend()
on_one_backend = pytest.mark.skipif(BACKEND != "tensorflow", reason="once is enough")


@on_one_backend
def test_a_smoke_run_of_the_comparison_of_accuracy(tmp_path):
    script = BENCHMARKS / "accuracy" / "compare.py"
    run = subprocess.run(
        [sys.executable, script, "--smoke", "--output", tmp_path],
        env={**os.environ, "PYTHONPATH": str(BENCHMARKS.parent)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert "4 of 4 runs are there, 0 failed" in run.stdout
    assert "| transfer (Lin) |" in (tmp_path / "tables.md").read_text()
    assert (tmp_path / "runs.csv").read_text().count("\n") == 1 + 4
    assert (tmp_path / "accuracy_tuned.png").read_bytes().startswith(b"\x89PNG")


def test_a_tiny_model_and_a_small_round_are_timed_on_this_backend():
    def build(keras):
        inputs = keras.Input((784,))
        return inputs, keras.layers.Dense(10)(inputs)

    tiny = Benchmark("tiny", "tiny", build, SUITE["mlp"].data, 8, 7850)
    options = turns.Options(1, 0.01, 4, 600.0, turns.time.perf_counter)
    times = turns.time_ways(keras_ways.framework(BACKEND), tiny, ["plain", "shuffle"], options)
    assert [result["steps"] for result in times.values()] == [4, 4]
    # Two rounds of few clients; the loop returns the sum of the clients' losses.
    framework, workload = ways.load(BACKEND), Workload("linear", 3, 6)
    framework.build(workload, "ours")(2)()
    assert 0.0 < framework.build(workload, "loop")(2)() / (2 * 3 * 3) < 10.0
