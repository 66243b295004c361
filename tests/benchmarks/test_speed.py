"""The benchmark of speed: plans, processes, results and the report, and one tiny model."""

import sys
from pathlib import Path

import keras
import pytest

import keras_adaclip as ka

SPEED = Path(ka.__file__).parents[1] / "benchmarks" / "speed"
if not SPEED.exists():
    pytest.skip("the benchmarks are not part of this installation", allow_module_level=True)
pytest.importorskip("matplotlib")
sys.path.append(str(SPEED))  # its files are scripts, which import each other by their names

import keras_ways  # noqa: E402
import measure  # noqa: E402
import report  # noqa: E402
import turns  # noqa: E402
import workers  # noqa: E402
from framework import WAYS  # noqa: E402
from results import PROCESSOR, WALL, ResultsFile, machine  # noqa: E402
from suite import SUITE, Benchmark  # noqa: E402

on_one_backend = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="once is enough"
)
SETTINGS = workers.Settings(
    repeats=3, seconds=2.0, steps=60, limit=120.0, process_limit=None, device="cpu"
)


def record(
    model="cnn-256", framework="tensorflow", round_number=0, memory=None, clock=PROCESSOR, **times
):
    """What `measure.py` prints; a number of milliseconds or an error for each way."""
    results = {
        way: {"error": value} if isinstance(value, str) else {"milliseconds": [value]}
        for way, value in times.items()
    }
    about = {"model": model, "framework": framework, "round": round_number}
    about |= {"clock": clock, "versions": {"python": "3.11.7"}}
    return {**about, "times": results} if memory is None else {**about, "memory": memory}


def tiny_benchmark():
    def build(keras):
        inputs = keras.Input((784,))
        return inputs, keras.layers.Dense(10)(inputs)

    return Benchmark("tiny", "tiny", build, SUITE["mlp"].data, 8, 7850)


def test_a_tiny_model_is_timed_on_this_backend():
    framework = keras_ways.framework(keras.backend.backend())
    options = turns.Options(1, 0.01, 4, 600.0, turns.time.perf_counter)
    times = turns.time_ways(framework, tiny_benchmark(), ["plain", "shuffle"], options)
    for result in times.values():
        assert result["steps"] == 4
        assert len(result["milliseconds"]) == 1
    seconds = turns.first_seconds(framework, tiny_benchmark(), "shuffle", 600.0)
    assert seconds["first"] > 0.0
    assert seconds["second"] > 0.0


def test_processes_take_the_commands_that_are_made_for_them():
    for framework, ways in WAYS.items():
        line = workers.command(Path("python"), framework, "lstm", ways[:1], "memory", SETTINGS)
        options = measure.parse_options(line[line.index("lstm") :])
        assert options.ways == [*ways[:1]]
        assert (options.memory, options.pin, options.limit) == (True, True, 120.0)
        line = workers.command(Path("python"), framework, "lstm", ways[:1], "wall", SETTINGS)
        assert not measure.parse_options(line[line.index("lstm") :]).pin


def test_a_failure_on_one_core_says_nothing_of_all_cores(tmp_path):
    results = ResultsFile(tmp_path / "results.json")
    results.records = [record(plain=1.0, poisson="slow"), record(clock=WALL, shuffle="broken")]
    assert results.measured("processor", "cnn-256", "tensorflow", 0) == {"plain", "poisson"}
    assert results.measured("wall", "cnn-256", "tensorflow", 0) == {"shuffle"}
    assert results.failed("wall", "cnn-256", "tensorflow") == {"shuffle"}
    assert results.failed("processor", "cnn-256", "tensorflow") == {"poisson", "shuffle"}


def some_records():
    ours = {"plain": 30.0, "shuffle": 33.0, "plain-xla": 20.0, "shuffle-xla": 26.0}
    peak = {"base": 300.0, "peak": 50.0, "steady": None}
    return [
        record(round_number=0, **ours, poisson="not | available"),
        record(round_number=1, **(ours | {"shuffle-xla": 28.0})),
        record(round_number=2, **(ours | {"plain-xla": 25.0})),
        record(framework="opacus", plain=10.0, ghost=25.0, hooks=90.0),
        record(round_number=None, memory={"plain-xla": peak, "shuffle-xla": peak}),
    ]


@on_one_backend
def test_the_report_is_written_from_the_file(tmp_path, monkeypatch, capsys):
    path = tmp_path / "results.json"
    results = ResultsFile(path)
    results.machine, results.records = machine(), some_records()
    results.write()
    monkeypatch.setattr(sys, "argv", ["report.py", str(path)])
    report.main()
    assert capsys.readouterr().out.count("Written") == 2
    text = path.with_suffix(".md").read_text()
    assert text.count("Not measured yet") == 2  # wall time, and first fits
    assert "| Fashion-MNIST CNN, 256 | 1.30 |" in text
    assert "25.0 (2.5x)" in text
    assert (
        "| TensorFlow | poisson | processor time, one core | cnn-256 | not \\| available |" in text
    )
    assert path.with_suffix(".png").stat().st_size > 10_000


@on_one_backend
def test_the_report_has_wall_time_first(tmp_path):
    path = tmp_path / "results.json"
    results = ResultsFile(path)
    starts = {"plain": {"first": 1.0, "second": 0.25}, "shuffle": {"first": 3.0, "second": 0.5}}
    about = {"model": "cnn-256", "framework": "tensorflow", "clock": WALL, "round": 0}
    results.machine = machine()
    results.records = [
        *some_records(),
        record(clock=WALL, plain=10.0, shuffle=15.0),
        {**about, "start": starts},
    ]
    report.write(results, path)
    text = path.with_suffix(".md").read_text()
    assert "Not measured yet" not in text
    wall, processor = (text.index(f"| Fashion-MNIST CNN, 256 | {r} |") for r in ("1.50", "1.30"))
    assert text.index("## Wall time") < wall < text.index("## Processor time") < processor
    assert "| Fashion-MNIST CNN, 256 | 1.00 / 3.00 |" in text
    assert "| Fashion-MNIST CNN, 256 | +0.25 |" in text
