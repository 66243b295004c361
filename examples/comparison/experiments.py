"""The questions of the comparison, each one entry in `EXPERIMENTS`, and the runs they take."""

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

from .checks import CHECKS, Check
from .data_sets import DATA_SETS, paper
from .methods import METHODS, PAPER_METHODS, Knob, Settings, Transferred
from .results import Result
from .runs import Run, as_text

# The paper does not say how many epochs it ran. A rough trial with its other settings came closest
# to its figures around here, and twenty is what its figures 2 to 7 seem to span.
PAPER_EPOCHS = 20
PAPER_LEARNING_RATE = 1.0
POWERS = (0.3, 0.4, 0.5, 0.6)


class Cell(NamedTuple):
    """A point of the grid; `activation` is the number of one of the method's two."""

    learning_rate: float
    epochs: int
    activation: int


# The same for all methods. On a tie the earlier one wins.
GRID = tuple(Cell(*values) for values in product((1.0, 2.0, 4.0), (20,), (0, 1)))
GRID_SEED = 101
# Tried last, with what was best until then, and for either number with the last weights and with
# their moving average: every method gains or loses by it on its own. Each is tried where the one
# before was best. (Sixty gave two of them 0.1 points more and less than forty, which is within
# their spread over seeds, for half as much time again.)
LONGER_EPOCHS = (40,)
# The last choice is by the mean over these, as runs that differ in nothing else are up to half a
# point apart. Not the grid's: what won there had luck with its seed.
LAST_SEEDS = (102, 103)
# How far a search goes with one hyperparameter in one direction.
MOST_STEPS = 4


class Choice(NamedTuple):
    """What the tuned table takes of a method.

    Args:
        run: what was best, with the first of the last seeds.
        is_averaged: whether the moving average of the weights was better than the last ones.
    """

    run: Run
    is_averaged: bool

    @property
    def figure(self) -> str:
        """The accuracy of these weights, among the attributes of `Result`."""
        return "accuracy_of_average" if self.is_averaged else "accuracy"


@dataclass(frozen=True)
class Context:
    """What the plans depend on.

    Args:
        data_set: a key of `DATA_SETS`.
        accountant: `"pld"` or `"rdp"`.
        methods: keys of `METHODS`.
        transferred: for each network, what the greedy search found.
        results: the finished runs by their keys.
        grid: cells to choose from in the tuned table.
        has_variants: whether the tuned table also chooses the method's own hyperparameters.
        longer_epochs: numbers of epochs to try with the best of these, each while the one before
            was an improvement.
        last_seeds: over which the number of epochs and the weights are chosen.
        paper_epochs: number of epochs of the paper's table.
    """

    data_set: str = "fashion_mnist"
    accountant: str = "pld"
    methods: tuple[str, ...] = tuple(METHODS)
    transferred: Mapping[str, Transferred] = field(default_factory=dict)
    results: Mapping[tuple[str, ...], Result] = field(default_factory=dict)
    grid: tuple[Cell, ...] = GRID
    has_variants: bool = True
    longer_epochs: tuple[int, ...] = LONGER_EPOCHS
    last_seeds: tuple[int, ...] = LAST_SEEDS
    paper_epochs: int = PAPER_EPOCHS

    def result(self, run: Run) -> Result | None:
        """What a run gave, None where it has not been made."""
        return self.results.get(run.key)


@dataclass(frozen=True)
class Experiment:
    """A question.

    Args:
        title: what it is, in words.
        plan: from a context, a method, a budget and a seed, to the runs; there are none where
            they cannot be known yet.
        epsilons: from a data set's budgets to those of the experiment.
        network: a key of `NETWORKS`.
        reference: name of the paper's table, None where it has none.
        methods: keys of `METHODS`; None means all.
        has: whether it has runs of a method at a budget.
    """

    title: str
    plan: Callable[[Context, str, float, int], list[Run]]
    epsilons: Callable[[tuple[float, ...]], tuple[float, ...]] = lambda epsilons: epsilons
    network: str = "b1"
    reference: str | None = None
    methods: tuple[str, ...] | None = None
    has: Callable[[str, float], bool] = lambda method, epsilon: True

    def methods_in(self, context: Context) -> tuple[str, ...]:
        """The methods that both have, but those that lack a search on public data."""
        return tuple(
            method
            for method in context.methods
            if (self.methods is None or method in self.methods)
            and (self.network in context.transferred or not METHODS[method].needs_search)
        )


def paper_settings(context: Context, method: str, epsilon: float, network: str) -> Settings:
    """A method's hyperparameters in the paper's appendix D, or those that stand in for them."""
    given = paper()[context.data_set]["settings"][network][f"{epsilon:.1f}"]
    return METHODS[method].settings(given, context.transferred.get(network))


def paper_run(context: Context, method: str, epsilon: float, seed: int, network: str = "b1") -> Run:
    """A run with the paper's settings as written."""
    return Run(
        data_set=context.data_set,
        network=network,
        method=method,
        epsilon=epsilon,
        seed=seed,
        learning_rate=PAPER_LEARNING_RATE,
        epochs=context.paper_epochs,
        activation=METHODS[method].activations[0],
        hyperparameters=as_text(paper_settings(context, method, epsilon, network)),
        scored_on="test",
        accountant=context.accountant,
    )


def grid_runs(context: Context, method: str, epsilon: float, seed: int = GRID_SEED) -> list[Run]:
    """One run a cell of the grid, scored on held-out training images."""
    base = replace(paper_run(context, method, epsilon, seed), scored_on="validation")
    return [
        replace(
            base,
            learning_rate=cell.learning_rate,
            epochs=cell.epochs,
            activation=METHODS[method].activations[cell.activation],
        )
        for cell in context.grid
    ]


def variant_runs(context: Context, method: str, epsilon: float, seed: int = GRID_SEED) -> list[Run]:
    """With each activation, its best cell with other values of the method's hyperparameters.

    One after another: a step down, a step up, then on in the direction that helps, as long as it
    does; the next from what was best until then.
    """
    cells = grid_runs(context, method, epsilon, seed)
    if _best(context, cells) is None or not context.has_variants:
        return []
    tried: dict[Run, None] = {}
    for activation in METHODS[method].activations:
        best = _best(context, [run for run in cells if run.activation == activation])
        for knob in METHODS[method].knobs:
            if best is not None:
                followed = _followed(context, best, knob)
                tried |= dict.fromkeys(followed)
                best = _best(context, followed)
    return [run for run in tried if run not in cells]


def _followed(context: Context, start: Run, knob: Knob) -> list[Run]:
    """`start` and the runs to which following one of its hyperparameters has led so far."""
    settings = json.loads(start.hyperparameters)

    def at(steps: int) -> Run | None:
        turned = knob(settings, steps)
        return None if turned is None else replace(start, hyperparameters=as_text(turned))

    # On a tie the start wins.
    ladder = {0: start} | {steps: run for steps in (-1, 1) if (run := at(steps)) is not None}
    while (leader := _best(context, list(ladder.values()))) is not None:
        steps = next(steps for steps, run in ladder.items() if run == leader)
        further = steps + (1 if steps > 0 else -1)
        run = at(further) if 0 < abs(steps) < MOST_STEPS and further not in ladder else None
        if run is None:
            break
        ladder[further] = run
    return list(ladder.values())


def last_runs(context: Context, method: str, epsilon: float, seed: int = GRID_SEED) -> list[Run]:
    """What was best in the grid and among the variants, for more epochs as long as that helps."""
    return [run for runs in _ladder_of_epochs(context, method, epsilon, seed) for run in runs]


def choice(context: Context, method: str) -> Choice | None:
    """What was chosen for a method; None while runs of its search are missing."""
    epsilon = DATA_SETS[context.data_set].epsilons[0]
    candidates = [
        (Choice(runs[0], is_averaged), runs)
        for runs in _ladder_of_epochs(context, method, epsilon, GRID_SEED)
        for is_averaged in (False, True)
    ]
    means = [_mean(context, runs, candidate.figure) for candidate, runs in candidates]
    found = [mean for mean in means if mean is not None]
    if not candidates or len(found) < len(means):
        return None
    return candidates[found.index(max(found))][0]


def _ladder_of_epochs(context: Context, method: str, epsilon: float, seed: int) -> list[list[Run]]:
    """For each number of epochs that is tried, a run for each of the last seeds."""
    tried = grid_runs(context, method, epsilon, seed)
    if _best(context, tried) is None:
        return []
    best = _best(context, tried + variant_runs(context, method, epsilon, seed))
    if best is None:
        return []
    ladder: list[list[Run]] = []
    highest = 0.0
    for epochs in (best.epochs, *context.longer_epochs):
        runs = [replace(best, epochs=epochs, seed=last) for last in context.last_seeds]
        ladder.append(runs)
        means = [_mean(context, runs, figure) for figure in ("accuracy", "accuracy_of_average")]
        reached = max((mean for mean in means if mean is not None), default=0.0)
        if None in means or reached <= highest:
            break
        highest = reached
    return ladder


def tuned_runs(context: Context, method: str, epsilon: float, seed: int) -> list[Run]:
    """The chosen settings on all training images, scored on the test images."""
    chosen = choice(context, method)
    if chosen is None:
        return []
    return [
        replace(
            chosen.run,
            epsilon=epsilon,
            seed=seed,
            scored_on="test",
            hyperparameters=as_text(_transposed(context, chosen.run, epsilon)),
        )
    ]


def power_runs(context: Context, method: str, epsilon: float, seed: int) -> list[Run]:
    """Table 1: power decay with several powers."""
    base = paper_run(context, method, epsilon, seed)
    settings = json.loads(base.hyperparameters)
    return [
        replace(base, hyperparameters=as_text({**settings, "power": power})) for power in POWERS
    ]


def check_run(context: Context, check: Check, seed: int) -> Run | None:
    """The run of a check; None where the entry that it changes is not chosen yet."""
    entries = EXPERIMENTS[check.experiment].plan(context, check.method, check.epsilon, seed)
    if not entries:
        return None
    settings = {**json.loads(entries[0].hyperparameters), **check.settings}
    return replace(entries[0], hyperparameters=as_text(settings), **check.changes)


def check_runs(context: Context, method: str, epsilon: float, seed: int) -> list[Run]:
    """The runs of all checks of a method at a budget."""
    checks = [check for check in CHECKS if (check.method, check.epsilon) == (method, epsilon)]
    runs = [check_run(context, check, seed) for check in checks]
    return [run for run in runs if run is not None]


def _best(context: Context, runs: list[Run]) -> Run | None:
    results = [context.result(run) for run in runs]
    if not runs or any(result is None for result in results):
        return None
    return max(zip(runs, results, strict=True), key=lambda pair: pair[1].accuracy)[0]


def _mean(context: Context, runs: list[Run], figure: str) -> float | None:
    """The mean of a figure of the results, None where one is missing."""
    values = [getattr(context.result(run), figure, None) for run in runs]
    return None if None in values else statistics.fmean(values)


def _transposed(context: Context, best: Run, epsilon: float) -> Settings:
    """The settings at another budget: the paper's there, changed as the choice changed them."""
    there = paper_settings(context, best.method, epsilon, best.network)
    before = paper_settings(context, best.method, best.epsilon, best.network)
    chosen, knobs = json.loads(best.hyperparameters), METHODS[best.method].knobs
    for moves in product(range(-MOST_STEPS, MOST_STEPS + 1), repeat=len(knobs)):
        if _turned(before, knobs, moves) == chosen:
            return _turned(there, knobs, moves) or there
    return there


def _turned(settings: Settings, knobs: tuple[Knob, ...], moves: tuple[int, ...]) -> Settings | None:
    for knob, steps in zip(knobs, moves, strict=True):
        turned = knob(settings, steps)
        if turned is None:
            return None
        settings = turned
    return settings


def _paper_plan(network: str = "b1") -> Callable[[Context, str, float, int], list[Run]]:
    return lambda context, method, epsilon, seed: [
        paper_run(context, method, epsilon, seed, network)
    ]


EXPERIMENTS = {
    "paper": Experiment(
        "The paper's settings as written",
        _paper_plan(),
        reference="table2",
        methods=PAPER_METHODS,
    ),
    "grid": Experiment("The grid", grid_runs, lambda epsilons: epsilons[:1]),
    "variants": Experiment("Its hyperparameters", variant_runs, lambda epsilons: epsilons[:1]),
    "epochs": Experiment("Epochs and weights", last_runs, lambda epsilons: epsilons[:1]),
    "tuned": Experiment("Each method tuned alike", tuned_runs, reference="table2"),
    "powers": Experiment(
        "Powers of the power decay",
        power_runs,
        lambda epsilons: epsilons[:1],
        reference="table1",
        methods=("power",),
    ),
    "small": Experiment(
        "The network of table B3",
        _paper_plan("b3"),
        lambda _: (1.0,),
        network="b3",
        reference="table3",
        methods=PAPER_METHODS,
    ),
    "checks": Experiment(
        "What explains entries below the paper's",
        check_runs,
        lambda _: tuple(sorted({check.epsilon for check in CHECKS})),
        has=lambda method, epsilon: any(
            (check.method, check.epsilon) == (method, epsilon) for check in CHECKS
        ),
    ),
}
