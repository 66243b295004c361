"""The benchmark of speed: plans, processes, results and the report, and one tiny model."""

import math
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

import bench  # noqa: E402
import environments  # noqa: E402
import keras_ways  # noqa: E402
import measure  # noqa: E402
import report  # noqa: E402
import tables  # noqa: E402
import turns  # noqa: E402
import workers  # noqa: E402
from framework import WAYS, Framework  # noqa: E402
from results import ResultsFile, machine  # noqa: E402
from suite import SUITE, Benchmark  # noqa: E402
from summary import Summary  # noqa: E402

on_one_backend = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="once is enough"
)
SETTINGS = workers.Settings(repeats=3, seconds=2.0, steps=60, limit=120.0, device="cpu", pin=True)


def record(model="cnn-256", framework="tensorflow", round_number=0, memory=None, **times):
    """What `measure.py` prints; a number of milliseconds or an error for each way."""
    results = {
        way: {"error": value} if isinstance(value, str) else {"milliseconds": [value]}
        for way, value in times.items()
    }
    about = {"model": model, "framework": framework, "round": round_number}
    about |= {"clock": "wall", "versions": {"python": "3.11.7"}}
    return {**about, "times": results} if memory is None else {**about, "memory": memory}


# ---- the suite ----------------------------------------------------------------------------------


@on_one_backend
@pytest.mark.parametrize("name", SUITE)
def test_models_have_the_size_that_peers_are_held_to(name):
    benchmark = SUITE[name]
    model = keras.Model(*benchmark.build(keras))
    benchmark.check_size(sum(math.prod(w.shape) for w in model.trainable_weights))
    x, y = benchmark.data(3)
    assert model(x).shape[0] == len(y) == 3


def test_another_size_is_refused():
    with pytest.raises(ValueError, match="num_trainable=7"):
        SUITE["mlp"].check_size(7)


# ---- one process --------------------------------------------------------------------------------


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


def test_turns_repeats_and_errors():
    log = []

    def build(benchmark, way):
        if way == "vmap":
            raise NotImplementedError("no rule\nfor this layer")
        seconds = {"plain": 0.01, "scan": 9.0}[way]

        def train(num_steps):
            return lambda: log.append((way, seconds * num_steps))

        return train

    options = turns.Options(3, 1.0, 60, 600.0, lambda: sum(seconds for _, seconds in log))
    times = turns.time_ways(Framework(build, ()), None, ["plain", "vmap", "scan"], options)
    assert times["vmap"] == {"error": "NotImplementedError: no rule"}
    assert times["plain"]["milliseconds"] == pytest.approx([10.0] * 3)
    assert times["plain"]["steps"] == 60
    # Slow ways run once, a single step.
    assert times["scan"]["milliseconds"] == pytest.approx([9000.0])
    assert [way for way, _ in log][-7:] == ["plain", "plain", "scan", *["plain"] * 4]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("\nshape (3,)\nis wrong"), "ValueError: shape (3,)"),
        (
            TypeError("in user code:\n\n  File x, line 3\n\n  TypeError: no loop\n"),
            "TypeError: no loop",
        ),
        (KeyboardInterrupt(), "KeyboardInterrupt: "),
    ],
)
def test_errors_are_told_in_one_line(error, line):
    assert turns.first_line(error) == line


def test_memory_is_told_or_the_error():
    arrays = []
    options = [lambda: arrays.append(bytearray(2**26)), lambda: 1 / 0]
    for step, key in zip(options, ("peak", "error"), strict=True):
        framework = Framework(lambda benchmark, way, s=step: lambda num_steps: s, ())
        assert key in turns.peak_memory(framework, None, "plain", 600.0)


@pytest.mark.parametrize(
    "arguments",
    [["cnn-256", "--ways", "ghost"], ["cnn-256", "--memory"], ["no-such-model"]],
)
def test_command_lines_that_are_refused(arguments, capsys):
    with pytest.raises(SystemExit):
        measure.parse_options([*arguments, "--framework", "jax"])
    assert "error" in capsys.readouterr().err


def test_processes_take_the_commands_that_are_made_for_them():
    for framework, ways in WAYS.items():
        for kind, chosen in (("times", ways), ("memory", ways[:1])):
            line = workers.command(Path("python"), framework, "lstm", chosen, kind, SETTINGS)
            options = measure.parse_options(line[line.index("lstm") :])
            assert options.ways == [*chosen]
            assert (options.memory, options.pin) == (kind == "memory", True)
            assert options.limit == 120.0


# ---- many processes -----------------------------------------------------------------------------


def test_a_process_that_dies_costs_one_way(monkeypatch):
    def script(python, framework, model, ways, kind, settings):
        lines = ["import json, os, sys"]
        if "slow" in ways:
            lines.append("print('way: fast\\nway: slow\\nTimeout (0:02:00)!', file=sys.stderr)")
            lines.append("sys.stderr.flush(); os._exit(1)")
        results = {way: {} for way in ways}
        lines.append(f"print(json.dumps({{'times': {results!r}}}))")
        return [sys.executable, "-c", "\n".join(lines)]

    monkeypatch.setattr(workers, "command", script)
    first, second = workers.run(Path(), "jax", "lstm", ["plain", "fast", "slow"], "times", SETTINGS)
    assert first["times"] == {"slow": {"error": "no step within 120 s"}}
    assert second["times"] == {"plain": {}, "fast": {}}


@pytest.mark.parametrize(
    ("code", "said", "reason"),
    [
        (1, "way: a\nTimeout (0:02:00)!\nThread 1", "no step within 120 s"),
        (-9, "", "killed, probably for memory"),
        (-11, "", "died of signal 11"),
        (1, "Traceback\nImportError: no module\n", "ImportError: no module"),
        (3, "", "exit status 3"),
    ],
)
def test_reasons_of_deaths(code, said, reason):
    assert workers.reason_of_death(code, said, 120.0) == reason


def test_measuring_goes_on_where_it_stopped(monkeypatch, tmp_path, capsys):
    started = []

    def run(python, framework, model, ways, kind, settings):
        started.append((framework, kind, *ways))
        values = {way: "no rule" if way == "vectorized" else 2.0 for way in ways}
        yield record(model, framework, **values)

    monkeypatch.setattr(bench, "run", run)
    results = ResultsFile(tmp_path / "results.json")
    results.add(record("mlp", "jax", 0, plain=1.0, shuffle=2.0))
    arguments = ["--models", "mlp", "--backends", "jax", "--environments", str(tmp_path)]
    arguments += ["--rounds", "2", "--no-memory"]
    bench.measure_all(bench.parse_options([*arguments, "--dry-run"]), results)
    assert not started
    bench.measure_all(bench.parse_options(arguments), ResultsFile(results.path))
    # A plain step is always there to compare with, and what failed is not tried again.
    assert started == [
        ("jax", "times", "poisson", "vectorized", "plain"),
        ("jax", "times", "plain", "shuffle", "poisson"),
    ]
    assert "left out: opacus" in capsys.readouterr().out
    started.clear()
    bench.measure_all(bench.parse_options(arguments), ResultsFile(results.path))
    assert not started


def test_environments_are_made_with_torch_first(monkeypatch, tmp_path):
    monkeypatch.setenv("TORCH_PIP_FLAGS", "--index-url https://example.org/cpu")
    _, torch, opacus = environments.commands(tmp_path, "opacus")
    assert torch[0] == str(tmp_path / "opacus" / "bin" / "python")
    assert torch[-3:] == ["--index-url", "https://example.org/cpu", "torch==2.13.0"]
    assert "--index-url" not in opacus
    assert "jax[cuda12]" in environments.commands(tmp_path, "jax-privacy", "gpu")[-1]
    assert not environments.is_made(tmp_path, "opacus")


# ---- the report ---------------------------------------------------------------------------------


def some_records():
    slow = {"model-xla": 200.0}
    ours = {"plain": 30.0, "shuffle": 33.0, "plain-xla": 20.0, "shuffle-xla": 26.0}
    return [
        record(round_number=0, **ours, vectorized="not | available"),
        record(round_number=1, **(ours | {"shuffle-xla": 28.0})),
        record(round_number=2, **(ours | {"plain-xla": 25.0})),
        record(framework="jax", plain=40.0, shuffle=50.0, poisson=52.0),
        record(framework="tensorflow-privacy", plain=20.0, fast="no rule", **slow),
        record(framework="opacus", plain=10.0, ghost=25.0, hooks=90.0),
        record(
            round_number=None,
            memory={
                "plain-xla": {"base": 300.0, "peak": 50.0, "steady": 40.0},
                "shuffle-xla": {"base": 300.0, "peak": 60.0, "steady": None},
            },
        ),
    ]


def test_the_faster_of_xla_and_none_is_compared_within_a_process():
    summary = Summary(some_records())
    assert summary.chosen("cnn-256", "tensorflow", "plain") == "plain-xla"
    assert summary.milliseconds("cnn-256", "tensorflow", "shuffle") == 26.0
    assert summary.ratio("cnn-256", "tensorflow", "shuffle") == pytest.approx(1.3)
    assert summary.memory_ratio("cnn-256", "tensorflow", "shuffle") == pytest.approx(1.2)
    assert summary.memory_ratio("cnn-256", "tensorflow", "shuffle", "steady") is None
    assert summary.fastest("cnn-256", summary.peers).framework == "opacus"
    assert summary.fastest("cnn-256", ["jax"]).way == "shuffle"


@on_one_backend
def test_the_report_is_written_from_the_file(tmp_path, monkeypatch, capsys):
    path = tmp_path / "results.json"
    results = ResultsFile(path)
    results.machine = machine()
    results.records = some_records()
    results.write()
    monkeypatch.setattr(sys, "argv", ["report.py", str(path)])
    report.main()
    assert capsys.readouterr().out.count("Written") == 2
    text = path.with_suffix(".md").read_text()
    assert "| Fashion-MNIST CNN, 256 | 1.30 | – | – | 1.25 | 1.30 | – |" in text
    assert "| **geometric mean** | **1.30** |" in text
    assert "25.0 (2.5x)" in text
    assert "TensorFlow shuffle, 26.0 | Opacus ghost, 25.0 | 0.96 | 7.69 | – |" in text
    assert "| TensorFlow | vectorized | cnn-256 | not \\| available |" in text
    assert path.with_suffix(".png").stat().st_size > 10_000


def test_tables_have_dashes_for_what_is_missing():
    assert tables.table(["a", "b"], [["1", tables.number(None, 2)]]).endswith("| 1 | – |")
