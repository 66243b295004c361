"""The search that chooses each method's settings for the tuned table, the same for all."""

import json
import statistics
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from .context import GRID_SEED, Context, paper_run, paper_settings
from .data_sets import DATA_SETS
from .methods import METHODS, Knob, Settings
from .runs import Run, as_text

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
