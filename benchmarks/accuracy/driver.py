"""Makes the runs that are missing, the most valuable first, and says how long the rest takes."""

import math
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from .context import GRID_SEED, Context
from .data_sets import DATA_SETS
from .experiments import EXPERIMENTS
from .methods import METHODS, PAPER_METHODS
from .results import ResultsFile
from .runs import Run, Scale, train

# Beginning and end of a slice of an experiment's budgets.
ALL, FIRST, OTHERS = (None, None), (0, 1), (1, None)
_POLL_SECONDS = 5.0


@dataclass(frozen=True)
class Stage:
    """A part of an experiment that is worth having before the next stage begins.

    Args:
        experiment: a key of `EXPERIMENTS`.
        seeds: one run each, the first seed of every method before the second.
        budgets: which of the experiment's epsilons: `ALL`, `FIRST` or `OTHERS`.
        methods: only these of the experiment's.
    """

    experiment: str
    seeds: tuple[int, ...]
    budgets: tuple[int | None, int | None] = ALL
    methods: tuple[str, ...] = tuple(METHODS)


# In order of value.
STAGES = (
    Stage("grid", (GRID_SEED,)),
    Stage("variants", (GRID_SEED,)),
    Stage("epochs", (GRID_SEED,)),
    Stage("tuned", (1, 2, 3, 4, 5), FIRST),
    Stage("paper", (1, 2, 3, 4, 5), FIRST),
    Stage("tuned", (1, 2, 3), OTHERS, PAPER_METHODS),
    Stage("paper", (1, 2, 3), OTHERS),
    Stage("powers", (1, 2, 3)),
    Stage("small", (1, 2, 3)),
    Stage("checks", (1,), methods=("fixed", "power")),
    Stage("checks", (1, 2, 3), methods=("tempered", "quantile")),
    Stage("checks", (2,), methods=("adaclip",)),
)


@dataclass(frozen=True)
class Planned:
    """One run of a plan; `run` is None where an earlier stage has to choose its settings."""

    experiment: str
    method: str
    epsilon: float
    seed: int
    run: Run | None


def planned(context: Context, stages: tuple[Stage, ...] = STAGES) -> list[Planned]:
    """Every run of the stages, in order, each once; the slow methods come last beyond the paper's.

    Args:
        context: what the plans depend on.
        stages: the stages.
    """
    plan: dict[tuple[str, ...], Planned] = {}
    for entry in _all_planned(context, stages):
        key = entry.run.key if entry.run else tuple(map(str, vars(entry).values()))
        plan.setdefault(key, entry)
    return sorted(plan.values(), key=_is_put_off)


def _is_put_off(entry: Planned) -> bool:
    return METHODS[entry.method].is_slow and entry.experiment != "paper"


def _all_planned(context: Context, stages: tuple[Stage, ...]) -> Iterator[Planned]:
    left_out = {"variants"} if not context.has_variants else set()
    for stage in stages:
        if stage.experiment in left_out:
            continue
        experiment = EXPERIMENTS[stage.experiment]
        epsilons = experiment.epsilons(DATA_SETS[context.data_set].epsilons)[slice(*stage.budgets)]
        methods = [name for name in experiment.methods_in(context) if name in stage.methods]
        for epsilon, seed, method in product(epsilons, stage.seeds, methods):
            if not experiment.has(method, epsilon):
                continue
            for run in experiment.plan(context, method, epsilon, seed) or [None]:
                yield Planned(stage.experiment, method, epsilon, seed, run)


def work(
    context: Context,
    file: ResultsFile,
    scale: Scale,
    stages: tuple[Stage, ...] = STAGES,
    minutes: float = math.inf,
) -> bool:
    """Makes all runs of the stages that the file lacks; several processes may do so at once.

    Args:
        context: what the plans depend on; its results are read from the file.
        file: where results are kept.
        scale: on how much data.
        stages: the stages to work on.
        minutes: no run begins later than this.

    Returns:
        Whether nothing is missing in the end.
    """
    failed: set[tuple[str, ...]] = set()
    progress = _Progress()
    while True:
        context = replace(context, results=file.read())
        plan = planned(context, stages)
        missing = [entry for entry in plan if entry.run and entry.run.key not in context.results]
        todo = [entry for entry in missing if entry.run.key not in failed]
        if not todo:
            print(f"{len(plan) - len(missing)} of {len(plan)} runs are there, {len(failed)} failed")
            return not missing
        if progress.seconds > 60.0 * minutes:
            print(f"Stopped after {minutes:g} minutes; {len(missing)} runs are missing")
            return False
        for entry in todo:
            with file.claim(entry.run) as is_mine:
                if not is_mine:
                    continue
                try:
                    result = train(entry.run, scale)
                # One run that fails must not cost a night's others.
                except Exception:
                    traceback.print_exc()
                    failed.add(entry.run.key)
                    break
                file.append(entry.experiment, entry.run, result)
            results = file.read()
            print(
                f"[{progress.fraction(plan, results)}] {result['accuracy']:.2%} "
                f"in {result['seconds']:.0f} s | {entry.experiment}: {entry.run} | "
                f"{progress.time_left(plan, results)}",
                flush=True,
            )
            break
        else:
            time.sleep(_POLL_SECONDS)


class _Progress:
    """How much is done, and how long the rest will take at the pace so far."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._epochs_before: int | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def fraction(self, plan: list[Planned], results: dict) -> str:
        return f"{sum(_is_done(entry, results) for entry in plan)}/{len(plan)}"

    def time_left(self, plan: list[Planned], results: dict) -> str:
        done = sum(_epochs(entry) for entry in plan if _is_done(entry, results))
        left = sum(_epochs(entry) for entry in plan if not _is_done(entry, results))
        if self._epochs_before is None:
            # Whatever other processes do at the same time counts as well.
            latest = next(e for e in reversed(plan) if _is_done(e, results))
            self._epochs_before = done - _epochs(latest)
        minutes = round(self.seconds / max(1, done - self._epochs_before) * left / 60.0)
        return f"about {minutes // 60} h {minutes % 60:02d} min left"


def _is_done(entry: Planned, results: dict) -> bool:
    return entry.run is not None and entry.run.key in results


def _epochs(entry: Planned) -> int:
    """Those of a run that is not chosen yet are guessed."""
    return entry.run.epochs if entry.run else 24
