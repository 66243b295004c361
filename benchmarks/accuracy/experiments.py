"""The questions of the comparison, each one entry in `EXPERIMENTS`, and the runs they take."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from .context import Context, paper_run
from .methods import METHODS, PAPER_METHODS
from .runs import Run, as_text
from .tuning import grid_runs, last_runs, tuned_runs, variant_runs

POWERS = (0.3, 0.4, 0.5, 0.6)


@dataclass(frozen=True)
class Experiment:
    """A question.

    Args:
        title: what it is, in words.
        plan: from a context, a method, a budget and a seed, to the runs; none if
            they cannot be known yet.
        epsilons: from a data set's budgets to those of the experiment.
        network: a key of `NETWORKS`.
        reference: name of the paper's table, or None.
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
        """The methods of both, without those that still need a search on public data."""
        return tuple(
            method
            for method in context.methods
            if (self.methods is None or method in self.methods)
            and (self.network in context.transferred or not METHODS[method].needs_search)
        )


@dataclass(frozen=True)
class Check:
    """What may explain an entry below the paper's: the entry, and the one change that tests it.

    Args:
        experiment: key of the entry's experiment in `EXPERIMENTS`.
        method: a key of `METHODS`.
        epsilon: the budget.
        about: the change, in words.
        changes: other values of fields of the run.
        settings: other values of the method's hyperparameters.
    """

    experiment: str
    method: str
    epsilon: float
    about: str
    changes: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, float] = field(default_factory=dict)


CHECKS = (
    Check("paper", "fixed", 2.7, "learning rate 8 instead of 1", {"learning_rate": 8.0}),
    Check("paper", "fixed", 2.7, "60 epochs instead of 20", {"epochs": 60}),
    Check("paper", "power", 2.7, "learning rate 8 instead of 1", {"learning_rate": 8.0}),
    Check("paper", "quantile", 2.7, "tanh instead of ReLU", {"activation": "tanh"}),
    Check("tuned", "tempered", 1.5, "norm 0.7 instead of 1.4", settings={"clip_norm": 0.7}),
    Check(
        "tuned",
        "adaclip",
        4.5,
        "variances between 1e-5 and 1e-3, not ten times larger",
        settings={"min_variance": 1e-5, "max_variance": 1e-3},
    ),
    Check("small", "fixed", 1.0, "learning rate 4 instead of 1", {"learning_rate": 4.0}),
)


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


def _paper_plan(network: str = "b1") -> Callable[[Context, str, float, int], list[Run]]:
    return lambda context, method, epsilon, seed: [
        paper_run(context, method, epsilon, seed, network)
    ]


EXPERIMENTS = {
    "paper": Experiment(
        "The paper's settings as written", _paper_plan(), reference="table2", methods=PAPER_METHODS
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
