"""The comparison's plans, choices, results file and tables, without any training."""

import json
import math
import os
import runpy
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_adaclip as ka

if not (Path(ka.__file__).parents[1] / "benchmarks" / "accuracy").exists():
    pytest.skip("the benchmarks are not part of this installation", allow_module_level=True)
if keras.backend.backend() != "tensorflow":
    pytest.skip("once is enough", allow_module_level=True)
pytest.importorskip("matplotlib")

from benchmarks.accuracy import (
    commands,
    data_sets,
    driver,
    experiments,
    figures,
    greedy,
    runs,
    tables,
    tuning,
)
from benchmarks.accuracy.context import GRID, GRID_SEED, Context, paper_run, paper_settings
from benchmarks.accuracy.experiments import CHECKS, EXPERIMENTS
from benchmarks.accuracy.methods import METHODS, PAPER_METHODS, Transferred
from benchmarks.accuracy.networks import ACTIVATIONS, NETWORKS, build
from benchmarks.accuracy.results import COLUMNS, Result, ResultsFile
from benchmarks.accuracy.runs import RESULTS, Scale, as_text
from examples.data import LabelledData

ROOT = Path(ka.__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "accuracy" / "compare.py"
FOUND = {network: Transferred((1.0, 0.7, 0.5), 1.1) for network in NETWORKS}
CONTEXT = Context(transferred=FOUND)
MEASURED = {
    "noise_multiplier": 1.2,
    "accuracy": 0.85,
    "epsilon_spent": 2.69,
    "seconds": 50.0,
    "accuracy_by_epoch": [0.6, 0.85],
    "threshold_by_epoch": [0.3, 0.3],
    "accuracy_of_average": 0.86,
    "computed_on": "jax, GPU",
}


def some_run(**changes):
    return replace(paper_run(CONTEXT, "fixed", 2.7, seed=1), **changes)


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


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_the_paper_s_settings_and_their_variants_build(method, network):
    epsilon = 1.0 if network == "b3" else 2.7
    settings = paper_settings(CONTEXT, method, epsilon, network)
    variants = [knob(settings, steps) for knob in METHODS[method].knobs for steps in (-1, 1)]
    assert len({as_text(values) for values in (settings, *variants)}) == len(variants) + 1
    for values in (settings, *variants):
        values = json.loads(as_text(values))
        assert isinstance(METHODS[method].build(values, 100), ka.clipping.ClippingStrategy)


def test_the_paper_s_figures_are_complete():
    paper = data_sets.paper()["fashion_mnist"]
    eight = set(PAPER_METHODS)
    assert set(METHODS) - eight == {"automatic", "mean_norm"}
    assert set(paper["table2"]) == {"1.5", "2.7", "4.5"}
    assert all(set(column) == eight for column in paper["table2"].values())
    assert set(paper["table3"]["1.0"]) == eight
    assert paper["table2"]["2.7"]["power"] == [87.7, 0.1]
    assert list(paper["table1"]["2.7"]) == [f"{power:g}" for power in experiments.POWERS]


@pytest.mark.parametrize(("network", "parameters"), [("b1", 152_618), ("b3", 281_034)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_networks(network, parameters, activation):
    model = build(network, activation)
    assert model.count_params() == parameters
    assert model.output_shape == (None, 10)


def test_tempered_tanh_is_tanh():
    x = keras.ops.linspace(-3.0, 3.0, 7)
    tempered = ACTIVATIONS["tempered(2, 2, 1)"]()(x)
    assert keras.ops.convert_to_numpy(tempered) == pytest.approx(
        keras.ops.convert_to_numpy(keras.ops.tanh(x)), abs=1e-6
    )


# Plans


def test_tuned_runs_wait_for_the_grid():
    before = Counter(e.experiment for e in driver.planned(CONTEXT) if e.run)
    assert before["grid"] == len(METHODS) * len(GRID)
    assert before["tuned"] == before["variants"] == before["epochs"] == 0
    # Were the first cell the best, some tuned runs would be the paper's, and made once.
    done = complete(
        CONTEXT, lambda run: 0.9 if run.activation == METHODS[run.method].activations[1] else 0.8
    )
    after = Counter(e.experiment for e in driver.planned(done))
    # Two activations, a step down and a step up.
    assert after["variants"] == 2 * 2 * sum(len(method.knobs) for method in METHODS.values())
    # Two seeds, for as many epochs as before and for more.
    assert after["epochs"] == 2 * 2 * len(METHODS)
    assert after["paper"] == len(PAPER_METHODS) * (5 + 2 * 3)
    assert after["tuned"] == 5 * len(METHODS) + 2 * 3 * len(PAPER_METHODS)
    # Three seeds of power 0.5 are runs of the paper's table already.
    assert after["powers"] == 3 * 3
    assert after["small"] == len(PAPER_METHODS) * 3


def test_no_run_is_planned_twice():
    runs = [e.run for e in driver.planned(complete(CONTEXT, lambda run: 0.8)) if e.run]
    assert len({run.key for run in runs}) == len(runs)


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


@pytest.mark.parametrize(
    ("best", "tried"),
    [(20, [20, 40]), (40, [20, 40, 60]), (60, [20, 40, 60, 80]), (80, [20, 40, 60, 80])],
)
def test_more_epochs_are_tried_as_long_as_they_help(best, tried):
    ladder = replace(CONTEXT, longer_epochs=(40, 60, 80))
    context = complete(ladder, lambda run: 0.8 - abs(run.epochs - best) / 1000)
    last = tuning.last_runs(context, "fixed", 2.7)
    assert [(run.epochs, run.seed) for run in last] == list(product(tried, (102, 103)))
    assert tuning.choice(context, "fixed").run.epochs == best


@pytest.mark.parametrize(
    ("averages", "epochs", "is_averaged"),
    [((0.79, 0.82), 40, True), ((0.83, 0.82), 20, True), ((0.79, 0.80), 40, False)],
)
def test_averaged_weights_are_chosen_where_they_are_better(averages, epochs, is_averaged):
    # By the mean over the last seeds: one of the two is misleading.
    misleading = {102: 0.05, 103: -0.05, GRID_SEED: 0.0}
    context = complete(CONTEXT, lambda run: 0.79 + run.epochs / 2000)
    for run in tuning.last_runs(context, "fixed", 2.7):
        average = averages[run.epochs // 20 - 1] + misleading[run.seed]
        context.results[run.key] = replace(context.result(run), accuracy_of_average=average)
    chosen = tuning.choice(context, "fixed")
    assert (chosen.run.epochs, chosen.is_averaged) == (epochs, is_averaged)
    assert chosen.figure == ("accuracy_of_average" if is_averaged else "accuracy")


def test_nothing_is_chosen_while_an_average_is_missing():
    context = complete(CONTEXT, lambda run: 0.8)
    run = tuning.last_runs(context, "fixed", 2.7)[-1]
    context.results[run.key] = replace(context.result(run), accuracy_of_average=None)
    assert tuning.choice(context, "fixed") is None
    assert tuning.tuned_runs(context, "fixed", 2.7, seed=1) == []


def test_a_hyperparameter_is_followed_as_far_as_it_helps():
    def accuracy_of(run):
        return 0.7 + 0.01 * json.loads(run.hyperparameters).get("clip_norm", 0.0)

    context = complete(replace(CONTEXT, methods=("fixed", "quantile")), accuracy_of)
    values = sorted(
        (json.loads(run.hyperparameters)["clip_norm"], run.activation)
        for run in tuning.variant_runs(context, "fixed", 2.7)
    )
    assert values == list(product((0.15, 0.6, 1.2, 2.4, 4.8), ("relu", "tanh")))
    (tuned,) = tuning.tuned_runs(context, "fixed", 4.5, seed=3)
    assert json.loads(tuned.hyperparameters) == {"clip_norm": 12.8}
    # Neither 0.5 nor 0.9 is better than 0.7, with either activation.
    assert len(tuning.variant_runs(context, "quantile", 2.7)) == 4


def test_a_second_hyperparameter_is_followed_from_the_best_value_of_the_first():
    def accuracy_of(run):
        settings = json.loads(run.hyperparameters)
        return 0.7 + 0.01 * settings["initial_value"] - 0.1 * settings["power"]

    context = complete(replace(CONTEXT, methods=("power",)), accuracy_of)
    settings = [
        tuple(json.loads(run.hyperparameters).values())
        for run in tuning.variant_runs(context, "power", 2.7)
    ]
    norms = [(norm, 0.5) for norm in (0.55, 2.2, 4.4, 8.8, 17.6)]
    powers = [(17.6, power) for power in (0.4, 0.6, 0.3, 0.2, 0.1)]
    assert settings == 2 * (norms + powers)
    (tuned,) = tuning.tuned_runs(context, "power", 4.5, seed=3)
    assert json.loads(tuned.hyperparameters) == {"initial_value": 17.6, "power": 0.1}


def test_a_tie_goes_to_the_earlier_cell():
    chosen = tuning.choice(complete(CONTEXT, lambda run: 0.8), "power").run
    assert (chosen.learning_rate, chosen.epochs, chosen.activation) == (1.0, 20, "relu")
    assert json.loads(chosen.hyperparameters) == {"initial_value": 1.1, "power": 0.5}


def test_reported_seeds_are_not_those_of_the_grid():
    runs = [e.run for e in driver.planned(complete(CONTEXT, lambda run: 0.8))]
    seeds = {kind: {r.seed for r in runs if r.scored_on == kind} for kind in ("test", "validation")}
    assert not seeds["test"] & seeds["validation"]


def test_methods_that_need_a_search_are_left_out_without_one():
    planned = {entry.method for entry in driver.planned(Context())}
    assert planned == set(METHODS) - {"transfer", "power"}


def test_stages_of_experiments_and_networks():
    assert {s.experiment for s in commands.stages(["paper"], None)} == {"paper"}
    assert {s.experiment for s in commands.stages(None, "b3")} == {"small"}
    with pytest.raises(ValueError, match="Unknown experiments"):
        commands.stages(["papers"], None)


# The results file


def test_rows_come_back(tmp_path):
    file = ResultsFile(tmp_path / "new")
    assert file.read() == {}
    runs = [some_run(), some_run(method="transfer", hyperparameters='{"values": [1.0, 0.5]}')]
    for run in runs:
        file.append("paper", run, MEASURED)
    assert file.path.read_text().count("\n") == 3
    assert list(file.read()) == [run.key for run in runs]
    assert file.read()[runs[1].key] == Result(
        0.85, 2.69, 50.0, (0.6, 0.85), (0.3, 0.3), 0.86, "jax, GPU"
    )
    assert set(RESULTS) == set(MEASURED)
    assert file.path.read_text().splitlines()[0] == ",".join(COLUMNS)


@pytest.mark.parametrize("kept", [1, 30, 90, -1])
def test_a_row_that_was_cut_off_is_made_again(tmp_path, kept):
    file = ResultsFile(tmp_path)
    file.append("paper", some_run(), MEASURED)
    complete_rows = file.path.read_bytes()
    file.append("paper", some_run(seed=2), MEASURED)
    row = file.path.read_bytes()[len(complete_rows) :]
    file.path.write_bytes(complete_rows + row[:kept])
    assert list(file.read()) == [some_run().key]
    file.append("paper", some_run(seed=2), MEASURED)
    assert file.path.read_bytes() == complete_rows + row


def test_a_file_with_fewer_columns_gets_the_others(tmp_path):
    file = ResultsFile(tmp_path)
    file.append("paper", some_run(), MEASURED)
    # The two that the first runs lacked: the average's accuracy, and what computed it, `"a, b"`.
    header, row = file.path.read_text().splitlines()
    lines = [header.rsplit(",", 2)[0] + "\n", row.rsplit(",", 3)[0] + "\n"]
    file.path.write_text("".join(lines))
    assert file.read()[some_run().key].accuracy_of_average is None
    file.append("paper", some_run(seed=2), MEASURED)
    averages = [result.accuracy_of_average for result in file.read().values()]
    assert averages == [None, 0.86]


def test_a_claim_excludes_others_and_ends(tmp_path):
    pytest.importorskip("fcntl")
    file, other = ResultsFile(tmp_path), ResultsFile(tmp_path)
    with file.claim(some_run()) as first, other.claim(some_run()) as second:
        assert (first, second) == (True, False)
        with other.claim(some_run(seed=2)) as third:
            assert third
    with other.claim(some_run()) as again:
        assert again
    file.append("paper", some_run(), MEASURED)
    with other.claim(some_run()) as finished:
        assert not finished


# The driver


@pytest.fixture
def trained(monkeypatch):
    """The runs that were trained, where training only notes them."""
    runs = []

    def train(run, scale):
        runs.append(run)
        return MEASURED

    monkeypatch.setattr(driver, "train", train)
    return runs


STAGES = (driver.Stage("paper", (1, 2), driver.FIRST), driver.Stage("grid", (101,)))
TWO = replace(CONTEXT, methods=("fixed", "power"))


def test_work_resumes(tmp_path, trained, capsys):
    file = ResultsFile(tmp_path)
    assert not driver.work(TWO, file, None, STAGES, minutes=-1.0)
    assert not trained
    first = paper_run(TWO, "power", 2.7, seed=1)
    file.append("paper", first, MEASURED)
    assert driver.work(TWO, file, None, STAGES)
    assert len(trained) == 3 + 2 * len(GRID)
    assert first not in trained
    assert [run.method for run in trained[:3]] == ["fixed", "fixed", "power"]
    assert "[16/16] 85.00%" in capsys.readouterr().out
    assert driver.work(TWO, file, None, STAGES)
    assert len(trained) == 3 + 2 * len(GRID)


def test_a_failing_run_leaves_the_others(tmp_path, trained, monkeypatch, capsys):
    note = driver.train

    def train(run, scale):
        if run.method == "fixed":
            raise RuntimeError("does not converge")
        return note(run, scale)

    monkeypatch.setattr(driver, "train", train)
    assert not driver.work(TWO, ResultsFile(tmp_path), None, STAGES[:1])
    assert [run.method for run in trained] == ["power", "power"]
    assert "2 failed" in capsys.readouterr().out


# Tables and figures


def test_tables_hold_means_beside_the_paper(tmp_path):
    context = complete(CONTEXT, lambda run: 0.8 + run.seed / 1000 + (run.method == "power") / 100)
    text = tables.report(context)
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines()}
    assert "| fixed (Abadi) | 80.2 ± 0.1 (3) | 82.7 ± 0.3 | 80.3 ± 0.2 (5) | 85.2 ± 0.2 |" in text
    # Chosen with averaged weights, by which each run has half a point more.
    assert "| AUTO-S (Bu) | – | – | 80.8 ± 0.2 (5) | – | – | – | 1, 20, relu | averaged |" in text
    assert "| AUTO-S (Bu) | – | – | 80.3 ± 0.2 (5) | 80.8 ± 0.2 (5) | – | – |" in text
    assert "| power decay (Lin) | 81.2 ± 0.1 (3) | 81.7 ± 0.1 (3) |" in text
    assert "Best first at ε = 2.7: power decay (Lin)," in text
    assert rows["ε = 2.7"].count("81.2 ± 0.1 (3)") == len(experiments.POWERS)
    assert rows["paper"] == "| paper | 86.4 ± 0.3 | 86.2 ± 0.2 | 87.1 ± 0.1 | 86.2 ± 0.2 |"
    paths = figures.draw(context, tmp_path)
    assert len(paths) == 6
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_a_run_leaves_the_average_of_its_weights():
    def weights(averaged_steps):
        keras.utils.set_random_seed(1)
        model = ka.PrivateSequential([keras.Input((2,)), keras.layers.Dense(2)])
        clipping = ka.clipping.FixedClipping(1.0)
        runs.compiled(model, clipping, 1.0, 0.0, 1, averaged_steps)
        x, y = np.eye(2, dtype="float32"), np.array([0, 1])
        seen = []
        keep = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append(model.get_weights()[0])
        )
        model.fit(x, y, batch_size=2, epochs=3, verbose=0, callbacks=[keep])
        return seen, model.get_weights()[0]

    seen, last = weights(None)
    np.testing.assert_array_equal(seen[-1], last)
    seen, average = weights(2)
    # Keras begins with the weights after the first step.
    expected = 0.5 * (0.5 * seen[0] + 0.5 * seen[1]) + 0.5 * seen[2]
    np.testing.assert_allclose(average, expected, rtol=1e-5)


def test_tables_without_results():
    text = tables.report(CONTEXT)
    assert "| power decay (Lin) | – | 84.7 ± 0.3 | – | 87.7 ± 0.1 |" in text
    assert "Best first" not in text
    one = {paper_run(CONTEXT, "fixed", 2.7, 1).key: result(0.851)}
    text = tables.report(replace(CONTEXT, results=one))
    assert "| 85.1 (1) | 85.2 ± 0.2 |" in text


def test_a_check_changes_what_it_names_and_nothing_else():
    for check in CHECKS:
        if check.experiment == "tuned":
            continue
        (entry,) = EXPERIMENTS[check.experiment].plan(CONTEXT, check.method, check.epsilon, 1)
        run = experiments.check_run(CONTEXT, check, 1)
        assert run == replace(entry, hyperparameters=run.hyperparameters, **check.changes)
        changed = {**json.loads(entry.hyperparameters), **check.settings}
        assert json.loads(run.hyperparameters) == changed
        assert run != entry


def test_a_check_waits_for_the_entry_that_it_changes():
    tuned = next(check for check in CHECKS if check.experiment == "tuned")
    assert experiments.check_run(CONTEXT, tuned, 1) is None


def test_checks_stand_beside_what_they_change():
    check = CHECKS[0]
    (entry,) = EXPERIMENTS[check.experiment].plan(CONTEXT, check.method, check.epsilon, 1)
    run = experiments.check_run(CONTEXT, check, 1)
    results = {entry.key: result(0.76), run.key: result(0.85)}
    text = tables.checks_table(replace(CONTEXT, results=results))
    row = next(line for line in text.splitlines() if check.about in line)
    assert "| 76.0 (1) | 85.0 (1) | 85.2 ± 0.2 |" in row


# The search on public data


def test_search_norms_and_what_is_loaded(tmp_path):
    norms = greedy.Search().norms
    assert norms[0] == 0.1
    assert all(b / a == pytest.approx(1.3, rel=0.01) for a, b in pairwise(norms))
    assert greedy.load(tmp_path) == {}
    path = greedy.schedule_path(tmp_path, "b1")
    ka.schedules.PiecewiseConstant([1.0, 0.5]).save(path)
    write_search(tmp_path, 0, [(1, 0.5), (1, 1.5), (1, 1.6), (2, 0.7)])
    assert greedy.load(tmp_path) == {"b1": Transferred((1.0, 0.5), 1.2)}


def write_search(folder, number, epochs):
    log = [{"epoch": epoch, "norm": norm} for epoch, norm in epochs]
    path = greedy._search_path(folder, "b1", number)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"log": log}))


def test_searches_are_averaged_epoch_by_epoch(tmp_path, monkeypatch):
    """Each goes on from the first of its first epochs, and none is made twice."""
    made = []

    def one_search(settings, public, scale, noise_multiplier, number):
        made.append(number)
        return [{"epoch": 1, "norm": 1.0}, {"epoch": 2, "norm": 0.5}]

    monkeypatch.setattr(greedy, "_one_search", one_search)
    write_search(tmp_path, 0, [(1, 4.0), (1, 100.0), (2, 0.5)])
    settings = greedy.Search(num_searches=3)
    public = LabelledData(*(np.zeros((8, 1)) for _ in range(4)), source="eight")
    path = greedy.schedule_path(tmp_path, "b1")
    greedy.search(settings, public, tmp_path, Scale(batch_size=4), "fashion_mnist")
    assert made == [1, 2]
    values = ka.schedules.PiecewiseConstant.load(path).values
    assert values == pytest.approx([4.0 ** (1 / 3), 0.5], rel=1e-3)


def test_time_left_counts_what_is_not_chosen_yet():
    entry = driver.Planned("tuned", "fixed", 2.7, 1, None)
    done = driver.Planned("paper", "fixed", 2.7, 1, some_run(epochs=10))
    progress = driver._Progress()
    progress._started -= 100.0
    text = progress.time_left([done, *[entry] * 10], {some_run(epochs=10).key: result(0.8)})
    assert text == "about 0 h 40 min left"
    assert math.isinf(commands.run.__defaults__[-1])


@pytest.mark.parametrize(("arguments", "folder"), [([], "benchmarks"), (["--smoke"], "build")])
def test_a_smoke_run_does_not_write_among_the_results(arguments, folder, monkeypatch):
    monkeypatch.setattr("sys.argv", [str(SCRIPT), *arguments])
    options = runpy.run_path(str(SCRIPT))["parse_options"]()
    assert options.output.relative_to(ROOT).parts[0] == folder


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
    for name in ("thresholds_paper", "accuracy_paper", "thresholds_tuned", "accuracy_tuned"):
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
