"""The comparison's plans, choices, results file and tables, without any training."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import keras
import pytest

import keras_adaclip as ka

if not (Path(ka.__file__).parents[1] / "benchmarks" / "accuracy").exists():
    pytest.skip("the benchmarks are not part of this installation", allow_module_level=True)
if keras.backend.backend() != "tensorflow":
    pytest.skip("once is enough", allow_module_level=True)
pytest.importorskip("matplotlib")

from benchmarks.accuracy import driver, figures, tables, tuning
from benchmarks.accuracy.context import GRID, Context, paper_run, paper_settings
from benchmarks.accuracy.methods import METHODS, Transferred
from benchmarks.accuracy.networks import NETWORKS
from benchmarks.accuracy.results import Result, ResultsFile
from benchmarks.accuracy.runs import as_text

ROOT = Path(ka.__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "accuracy" / "compare.py"
FOUND = {network: Transferred((1.0, 0.7, 0.5), 1.1) for network in NETWORKS}
CONTEXT = Context(transferred=FOUND)
MEASURED = {"noise_multiplier": 1.2, "accuracy": 0.85, "accuracy_of_average": 0.86}
MEASURED |= {"epsilon_spent": 2.69, "seconds": 50.0, "computed_on": "jax, GPU"}
MEASURED |= {"accuracy_by_epoch": [0.6, 0.85], "threshold_by_epoch": [0.3, 0.3]}


def result(accuracy):
    return Result(accuracy, 2.69, 50.0, (0.5, accuracy), (0.3, 0.3), accuracy + 0.005)


def complete(context, accuracy_of):
    """Results for every run that can be planned, until no more can."""
    results = {}
    while True:
        context = replace(context, results=results)
        new = [e.run for e in driver.planned(context) if e.run and e.run.key not in results]
        if not new:
            return context
        results = {**results, **{run.key: result(accuracy_of(run)) for run in new}}


@pytest.mark.parametrize("method", METHODS)
def test_the_paper_s_settings_and_their_variants_build(method):
    settings = paper_settings(CONTEXT, method, 2.7, "b1")
    variants = [knob(settings, steps) for knob in METHODS[method].knobs for steps in (-1, 1)]
    assert len({as_text(values) for values in (settings, *variants)}) == len(variants) + 1
    for values in (settings, *variants):
        values = json.loads(as_text(values))
        assert isinstance(METHODS[method].build(values, 100), ka.clipping.ClippingStrategy)


def test_runs_are_planned_once_and_reported_seeds_are_not_those_of_the_grid():
    runs = [e.run for e in driver.planned(complete(CONTEXT, lambda run: 0.8)) if e.run]
    assert len({run.key for run in runs}) == len(runs)
    seeds = {kind: {r.seed for r in runs if r.scored_on == kind} for kind in ("test", "validation")}
    assert not seeds["test"] & seeds["validation"]


def test_the_choice_is_the_best_on_validation_and_is_carried_to_other_budgets():
    def accuracy_of(run):
        if run.scored_on == "test":
            return 0.99
        is_cell = (run.learning_rate, run.activation) == (4.0, "tanh")
        is_variant = json.loads(run.hyperparameters).get("clip_norm") == 0.6
        return 0.7 + 0.1 * is_cell + 0.05 * is_variant + 0.01 * (run.epochs == 40)

    context = complete(CONTEXT, accuracy_of)
    chosen = tuning.choice(context, "fixed").run
    assert (chosen.learning_rate, chosen.epochs, chosen.activation) == (4.0, 40, "tanh")
    assert json.loads(chosen.hyperparameters) == {"clip_norm": 0.6}
    (tuned,) = tuning.tuned_runs(context, "fixed", 4.5, seed=3)
    assert json.loads(tuned.hyperparameters) == {"clip_norm": 1.6}
    assert (tuned.seed, tuned.scored_on, tuned.learning_rate) == (3, "test", 4.0)


def test_work_resumes(tmp_path, monkeypatch):
    stages = (driver.Stage("paper", (1, 2), driver.FIRST), driver.Stage("grid", (101,)))
    context, file, trained = replace(CONTEXT, methods=("fixed", "power")), ResultsFile(tmp_path), []
    monkeypatch.setattr(driver, "train", lambda run, scale: trained.append(run) or MEASURED)
    assert not driver.work(context, file, None, stages, minutes=-1.0)
    assert not trained
    first = paper_run(context, "power", 2.7, seed=1)
    file.append("paper", first, MEASURED)
    for _ in range(2):
        assert driver.work(context, file, None, stages)
        assert len(trained) == 3 + 2 * len(GRID)
    assert first not in trained


def test_tables_hold_means_beside_the_paper(tmp_path):
    context = complete(CONTEXT, lambda run: 0.8 + run.seed / 1000 + (run.method == "power") / 100)
    text = tables.report(context)
    assert "| fixed (Abadi) | 80.2 ± 0.1 (3) | 82.7 ± 0.3 | 80.3 ± 0.2 (5) | 85.2 ± 0.2 |" in text
    assert "Best first at ε = 2.7: power decay (Lin)," in text
    paths = figures.draw(context, tmp_path)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_a_smoke_run(tmp_path):
    run = subprocess.run(
        [sys.executable, SCRIPT, "--smoke", "--output", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
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
