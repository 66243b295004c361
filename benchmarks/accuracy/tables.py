"""The comparison as Markdown, the paper's figures beside those measured here."""

import json
import statistics
from collections.abc import Callable

from .context import GRID_SEED, Context
from .data_sets import DATA_SETS, paper
from .driver import STAGES, Planned, Stage, planned
from .experiments import CHECKS, EXPERIMENTS, POWERS, check_run
from .methods import METHODS
from .runs import AVERAGED_STEPS, Run
from .tuning import Choice, choice, grid_runs

_MISSING = "–"


def report(context: Context, stages: tuple[Stage, ...] = STAGES) -> str:
    """All tables.

    Args:
        context: what the plans depend on, with the results.
        stages: the stages, whose seeds the means go over.
    """
    parts = [
        "# Clipping methods compared",
        f"Test accuracy in percent on {context.data_set}, mean ± standard deviation (runs). "
        f"Delta {DATA_SETS[context.data_set].delta:.3g}, Poisson sampling, "
        f"{context.accountant.upper()} accountant. *Paper*: {paper()['source']}. Nothing was spent "
        "on choosing hyperparameters, as in the paper.",
    ]
    asked = {stage.experiment for stage in stages}
    for name in ("paper", "tuned", "powers", "small"):
        if name in asked and EXPERIMENTS[name].methods_in(context):
            table = power_table if name == "powers" else method_table
            parts += [f"## {EXPERIMENTS[name].title}", table(context, name, stages)]
        if name == "tuned" and name in asked:
            parts += [
                "The same runs with the last weights, and with the moving average of those of "
                f"about the last {AVERAGED_STEPS} steps. Which of the two a method takes was "
                "chosen on held-out images, with its number of epochs.",
                weights_table(context, name, stages),
            ]
    if "checks" in asked:
        parts += [f"## {EXPERIMENTS['checks'].title}", checks_table(context, stages)]
    if "grid" in asked:
        parts += ["## What was tried for the tuned table", *grid_tables(context)]
    return "\n\n".join(parts) + "\n"


def method_table(context: Context, name: str, stages: tuple[Stage, ...] = STAGES) -> str:
    """A row for each method, two columns for each budget, and what was chosen in the tuned table.

    Args:
        context: what the plans depend on, with the results.
        name: a key of `EXPERIMENTS`.
        stages: the stages, whose seeds the means go over.
    """
    experiment = EXPERIMENTS[name]
    budgets = experiment.epsilons(DATA_SETS[context.data_set].epsilons)
    entries = _entries(context, name, stages)
    reference = paper()[context.data_set][experiment.reference]
    header = ["method", *(c for epsilon in sorted(budgets) for c in (f"ε = {epsilon:g}", "paper"))]
    header += ["learning rate, epochs, activation", "weights", "own settings"] * (name == "tuned")
    rows, means = [], {}
    for method in experiment.methods_in(context):
        chosen = choice(context, method) if name == "tuned" else None
        figure = chosen.figure if chosen else "accuracy"
        row = [METHODS[method].title]
        for epsilon in sorted(budgets):
            row.append(measured(context, entries(method, epsilon), figure))
            row.append(_reference(reference, epsilon, method))
        rows.append(row + (_settings(chosen) if name == "tuned" else []))
        if values := _accuracies(context, entries(method, budgets[0]), figure):
            means[method] = statistics.fmean(values)
    table = _markdown(header, rows)
    if not means:
        return table
    ranked = sorted(means, key=means.__getitem__, reverse=True)
    titles = ", ".join(METHODS[method].title for method in ranked)
    return f"{table}\n\nBest first at ε = {budgets[0]:g}: {titles}."


def weights_table(context: Context, name: str, stages: tuple[Stage, ...] = STAGES) -> str:
    """The runs of a `method_table`, with either weights; arguments as there."""
    experiment = EXPERIMENTS[name]
    budgets = sorted(experiment.epsilons(DATA_SETS[context.data_set].epsilons))
    entries = _entries(context, name, stages)
    header = ["method", *(c for epsilon in budgets for c in (f"ε = {epsilon:g}, last", "averaged"))]
    rows = [
        [
            METHODS[method].title,
            *(
                measured(context, entries(method, epsilon), figure)
                for epsilon in budgets
                for figure in ("accuracy", "accuracy_of_average")
            ),
        ]
        for method in experiment.methods_in(context)
    ]
    return _markdown(header, rows)


def _entries(
    context: Context, name: str, stages: tuple[Stage, ...]
) -> Callable[[str, float], list[Planned]]:
    """From a method and a budget to the planned runs of an experiment."""
    plan = planned(context, tuple(stage for stage in stages if stage.experiment == name))
    return lambda method, epsilon: [
        entry for entry in plan if (entry.method, entry.epsilon) == (method, epsilon)
    ]


def power_table(context: Context, name: str, stages: tuple[Stage, ...] = STAGES) -> str:
    """A column for each power; arguments as of `method_table`."""
    experiment = EXPERIMENTS[name]
    epsilon = experiment.epsilons(DATA_SETS[context.data_set].epsilons)[0]
    plan = planned(context, tuple(stage for stage in stages if stage.experiment == name))
    reference = paper()[context.data_set][experiment.reference][f"{epsilon:.1f}"]
    here, there = [f"ε = {epsilon:g}"], ["paper"]
    for power in POWERS:
        entries = [e for e in plan if e.run and json.loads(e.run.hyperparameters)["power"] == power]
        here.append(measured(context, entries))
        there.append(_mean_and_deviation(*reference[f"{power:g}"]))
    return _markdown(["", *(f"a = {power:g}" for power in POWERS)], [here, there])


def checks_table(context: Context, stages: tuple[Stage, ...] = STAGES) -> str:
    """A row for each check, with the entry that it changes, over the check's seeds."""
    header = ["entry", "changed", "before", "after", "paper"]
    rows = []
    for check in CHECKS:
        seeds = {
            seed
            for stage in stages
            if stage.experiment == "checks" and check.method in stage.methods
            for seed in stage.seeds
        }
        chosen = choice(context, check.method) if check.experiment == "tuned" else None
        figure = chosen.figure if chosen else "accuracy"
        experiment = EXPERIMENTS[check.experiment]
        before, after = [], []
        for seed in sorted(seeds):
            before += experiment.plan(context, check.method, check.epsilon, seed)
            after += [run for run in [check_run(context, check, seed)] if run]
        reference = paper()[context.data_set][experiment.reference]
        rows.append(
            [
                f"{METHODS[check.method].title}, ε = {check.epsilon:g}: {experiment.title.lower()}",
                check.about,
                _measured_runs(context, before, figure),
                _measured_runs(context, after, figure),
                _reference(reference, check.epsilon, check.method),
            ]
        )
    return _markdown(header, rows)


def grid_tables(context: Context) -> list[str]:
    """Validation accuracy of every cell for every method, and how many runs that took."""
    epsilon = DATA_SETS[context.data_set].epsilons[0]
    header = ["method"] + [
        f"{cell.learning_rate:g}, {cell.epochs}, {'ab'[cell.activation]}" for cell in context.grid
    ]
    rows = []
    for method in EXPERIMENTS["grid"].methods_in(context):
        results = [context.result(run) for run in grid_runs(context, method, epsilon)]
        rows.append([METHODS[method].title, *(_percent(r.accuracy) if r else "–" for r in results)])
    count = f"{len(context.grid)} cells for each method"
    if context.has_variants:
        count += (
            ", then in the best cell of each activation the method's hyperparameters in turn, a "
            "step lower, a step higher, and on in the direction that helps"
        )
    seeds = ", ".join(map(str, context.last_seeds))
    epochs = "".join(f" or {epochs}" for epochs in context.longer_epochs)
    count += (
        f"; in the end, by the mean over seeds {seeds}, {context.grid[0].epochs}{epochs} epochs "
        "and last or averaged weights"
    )
    return [
        f"One run each at ε = {epsilon:g}, seed {GRID_SEED}, "
        f"{DATA_SETS[context.data_set].num_held_out:,} training images held out, on which the "
        f"accuracies here are measured: {count}. Columns: learning rate, epochs, activation; a is "
        "ReLU and b tanh, but for the tempered sigmoid a is (1.58, 3, 0.71) and b (2, 2, 1), "
        "which is tanh.",
        _markdown(header, rows),
    ]


def measured(context: Context, entries: list[Planned], figure: str = "accuracy") -> str:
    """Mean, standard deviation and number of the runs that are there.

    Args:
        context: what the plans depend on, with the results.
        entries: the runs.
        figure: the accuracy among the attributes of `Result`.
    """
    return _measured_runs(context, [entry.run for entry in entries if entry.run], figure)


def _measured_runs(context: Context, runs: list[Run], figure: str) -> str:
    values = _percentages(context, runs, figure)
    if not values:
        return _MISSING
    mean = statistics.fmean(values)
    if len(values) == 1:
        return f"{mean:.1f} (1)"
    return f"{_mean_and_deviation(mean, statistics.stdev(values))} ({len(values)})"


def _accuracies(context: Context, entries: list[Planned], figure: str) -> list[float]:
    return _percentages(context, [entry.run for entry in entries if entry.run], figure)


def _percentages(context: Context, runs: list[Run], figure: str) -> list[float]:
    results = [context.result(run) for run in runs]
    values = [getattr(result, figure) for result in results if result]
    return [100.0 * value for value in values if value is not None]


def _settings(chosen: Choice | None) -> list[str]:
    if chosen is None:
        return [_MISSING] * 3
    settings = json.loads(chosen.run.hyperparameters)
    settings.pop("values", None)
    own = ", ".join(f"{name} {value:g}" for name, value in settings.items())
    return [
        f"{chosen.run.learning_rate:g}, {chosen.run.epochs}, {chosen.run.activation}",
        "averaged" if chosen.is_averaged else "last",
        own,
    ]


def _reference(reference: dict, epsilon: float, method: str) -> str:
    figures = reference.get(f"{epsilon:.1f}", {}).get(method)
    return _mean_and_deviation(*figures) if figures else _MISSING


def _mean_and_deviation(mean: float, deviation: float) -> str:
    return f"{mean:.1f} ± {deviation:.1f}"


def _percent(accuracy: float) -> str:
    return f"{100.0 * accuracy:.1f}"


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
