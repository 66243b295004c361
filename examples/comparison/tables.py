"""The comparison as Markdown, the paper's figures beside those measured here."""

import json
import statistics

from .data_sets import DATA_SETS, paper
from .driver import STAGES, Planned, Stage, planned
from .experiments import EXPERIMENTS, GRID_SEED, POWERS, Context, chosen_run, grid_runs
from .methods import METHODS
from .runs import AVERAGED_STEPS

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
        "on choosing hyperparameters, as in the paper. Averaged weights: the moving average of the "
        f"last {AVERAGED_STEPS} steps or so of the same runs.",
    ]
    asked = {stage.experiment for stage in stages}
    for name in ("paper", "tuned", "powers", "small"):
        if name in asked and EXPERIMENTS[name].methods_in(context):
            table = power_table if name == "powers" else method_table
            parts += [f"## {EXPERIMENTS[name].title}", table(context, name, stages)]
    if "grid" in asked:
        parts += ["## What was tried for the tuned table", *grid_tables(context)]
    return "\n\n".join(parts) + "\n"


def method_table(context: Context, name: str, stages: tuple[Stage, ...] = STAGES) -> str:
    """A row for each method, two columns for each budget, three in the tuned table.

    Args:
        context: what the plans depend on, with the results.
        name: a key of `EXPERIMENTS`.
        stages: the stages, whose seeds the means go over.
    """
    experiment = EXPERIMENTS[name]
    epsilons = sorted(experiment.epsilons(DATA_SETS[context.data_set].epsilons))
    is_tuned = name == "tuned"
    header = ["method"]
    for epsilon in epsilons:
        header += [f"ε = {epsilon:g}", *(["averaged weights"] if is_tuned else []), "paper"]
    header += ["learning rate, epochs, activation", "own settings"] if is_tuned else []
    plan = planned(context, tuple(stage for stage in stages if stage.experiment == name))
    rows = []
    for method in experiment.methods_in(context):
        row = [METHODS[method].title]
        for epsilon in epsilons:
            entries = [e for e in plan if (e.method, e.epsilon) == (method, epsilon)]
            reference = paper()[context.data_set][experiment.reference]
            row.append(measured(context, entries))
            if is_tuned:
                row.append(measured(context, entries, "accuracy_of_average"))
            row.append(_reference(reference, epsilon, method))
        rows.append(row + (_choice(context, method) if is_tuned else []))
    first = experiment.epsilons(DATA_SETS[context.data_set].epsilons)[0]
    entries = [e for e in plan if e.epsilon == first]
    text = _markdown(header, rows)
    if order := _order(context, entries):
        text += f"\n\nBest first at ε = {first:g}: {order}."
    if is_tuned and (order := _order(context, entries, "accuracy_of_average")):
        text += f" With averaged weights: {order}."
    return text


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
    if context.longer_epochs:
        longer = ", ".join(map(str, context.longer_epochs))
        count += f", then more epochs with what was best until then, while that helps ({longer})"
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
    values = _accuracies(context, entries, figure)
    if not values:
        return _MISSING
    mean = statistics.fmean(values)
    if len(values) == 1:
        return f"{mean:.1f} (1)"
    return f"{_mean_and_deviation(mean, statistics.stdev(values))} ({len(values)})"


def _accuracies(context: Context, entries: list[Planned], figure: str) -> list[float]:
    results = [context.result(entry.run) for entry in entries if entry.run]
    values = [getattr(result, figure) for result in results if result]
    return [100.0 * value for value in values if value is not None]


def _order(context: Context, entries: list[Planned], figure: str = "accuracy") -> str:
    means = {}
    for method in {entry.method for entry in entries}:
        own = [entry for entry in entries if entry.method == method]
        values = _accuracies(context, own, figure)
        # Over the same runs whichever the figure is.
        if values and len(values) == len(_accuracies(context, own, "accuracy")):
            means[method] = statistics.fmean(values)
    ranked = sorted(means, key=means.__getitem__, reverse=True)
    return ", ".join(METHODS[method].title for method in ranked)


def _choice(context: Context, method: str) -> list[str]:
    run = chosen_run(context, method)
    if run is None:
        return [_MISSING, _MISSING]
    settings = json.loads(run.hyperparameters)
    settings.pop("values", None)
    own = ", ".join(f"{name} {value:g}" for name, value in settings.items())
    return [f"{run.learning_rate:g}, {run.epochs}, {run.activation}", own]


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
