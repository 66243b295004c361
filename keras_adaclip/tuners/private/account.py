"""The account of a private search: what a run may spend, and what the search spends.

    e(a) = max_h e_h(a)

bounds the Rényi divergence of a run at the order a, where e_h belongs to a run with the
hyperparameters h. Every value of h that the plan of a run depends on is planned before the search.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

import keras_tuner
from keras_tuner.engine import hyperparameters as kinds

from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    PrivacyPlan,
    PrivacyReport,
    PrivacySpent,
    RandomSelection,
    RunBounds,
    Sampling,
    check_delta,
    check_target_epsilon,
    least_noise_multiplier,
)
from keras_adaclip.noise import fresh_key
from keras_adaclip.optimizers import Run

_MAX_PLANS = 10_000


def check_plans(
    hypermodel: Any, base: Any, target_epsilon: float | None, delta: float | None
) -> None:
    """Checks that the cost of a run can be known before the search.

    Raises:
        TypeError: if there is neither `base` nor a method `privacy_plan`.
        ValueError: if arguments are missing, or contradict each other.
    """
    if base is None and not hasattr(hypermodel, "privacy_plan"):
        raise TypeError(
            "The cost of a run must be known before the first one. Give the hypermodel a method "
            "`privacy_plan(hp)` that returns the `Ledger` of a whole run, or give `base`, a ledger "
            f"that no run exceeds. Received: hypermodel={hypermodel!r}"
        )
    if delta is not None:
        check_delta(delta)
    if target_epsilon is None:
        return
    check_target_epsilon(target_epsilon)
    if delta is None or base is not None:
        raise ValueError(
            "Argument `target_epsilon` needs `delta`, and plans of the hypermodel instead of "
            f"`base`. Received: delta={delta}, base={base!r}"
        )


def base_bounds(base: Any) -> RunBounds:
    """The bound on a run that the argument `base` gives.

    Raises:
        TypeError: if it is not a ledger, a row or a plan.
    """
    if isinstance(base, PrivacyPlan):
        sampling = Sampling[base.sampling.upper()]
        row = LedgerRow.open(sampling, base.batch_size, base.num_examples, base.noise_multiplier)
        base = row.advance(base.steps)
    if isinstance(base, LedgerRow):
        base = Ledger((base,))
    if not isinstance(base, Ledger):
        raise TypeError(
            "Argument `base` must be a `Ledger`, a `LedgerRow` or a `PrivacyPlan`. "
            f"Received: base={base!r}"
        )
    return RunBounds((base,))


def planned_bounds(hypermodel: Any, space: keras_tuner.HyperParameters) -> RunBounds:
    """The plans of all runs that can be drawn from a search space.

    `privacy_plan` is called with hyperparameters that remember which of them it reads, and then
    with every value of those.

    Args:
        hypermodel: has a method `privacy_plan(hp)`.
        space: the search space.

    Returns:
        The plans, each once.

    Raises:
        TypeError: if a plan is not a `Ledger`.
        ValueError: if a plan depends on a number without a step, on too many values, or on a
            hyperparameter that the space does not have.
    """
    plans = []
    choices: list[dict[str, Any]] = [{}]
    while choices:
        choice = choices.pop()
        plan, branching = _plan(hypermodel, space, choice)
        if branching is None:
            plans.append(plan)
        else:
            choices += [{**choice, branching.name: value} for value in _all_values(branching)]
        if len(plans) + len(choices) > _MAX_PLANS:
            raise ValueError(
                f"`privacy_plan` of {type(hypermodel).__name__} depends on more than "
                f"{_MAX_PLANS:,} combinations of hyperparameters. Let it depend on fewer, or give "
                "`base`, a ledger that no run exceeds."
            )
    return RunBounds(tuple(plans))


def _plan(
    hypermodel: Any, space: keras_tuner.HyperParameters, choice: dict[str, Any]
) -> tuple[Ledger, kinds.HyperParameter | None]:
    """The plan with some values chosen, and a hyperparameter that it depends on besides."""
    values = active_values(space, lambda each: choice.get(each.name, each.default))
    hp = space.copy()
    hp.values = _ReadValues(values)
    plan = hypermodel.privacy_plan(hp)
    if len(hp.space) > len(space.space):
        new = ", ".join(repr(each.name) for each in hp.space[len(space.space) :])
        raise ValueError(
            f"`privacy_plan` of {type(hypermodel).__name__} reads {new}, which the search space "
            "does not have. Ask for it in `build` or `declare_hyperparameters` as well."
        )
    if not isinstance(plan, Ledger):
        raise TypeError(
            f"`privacy_plan` of {type(hypermodel).__name__} must return a "
            f"`keras_adaclip.accounting.Ledger`. Received: {plan!r}"
        )
    # Hyperparameters that decide whether another one is active come before it in the space.
    needed = hp.values.read
    for each in reversed(space.space):
        if each.name in needed:
            needed.update(condition.name for condition in each.conditions)
    for each in space.space:
        if each.name in needed and each.name not in choice and _is_active(each, values):
            return plan, each
    return plan, None


def active_values(
    space: keras_tuner.HyperParameters, value_of: Callable[[kinds.HyperParameter], Any]
) -> dict[str, Any]:
    """The values of the hyperparameters whose conditions hold.

    Args:
        space: the search space.
        value_of: gives the value of a hyperparameter.
    """
    values: dict[str, Any] = {}
    for each in space.space:
        if _is_active(each, values):
            values[each.name] = value_of(each)
    return values


def _is_active(hyperparameter: kinds.HyperParameter, values: dict[str, Any]) -> bool:
    return all(condition.is_active(values) for condition in hyperparameter.conditions)


def _all_values(hyperparameter: kinds.HyperParameter) -> list[Any]:
    """The values of a hyperparameter; of too many, as many as exceed the limit."""
    values = hyperparameter.values
    if isinstance(hyperparameter, kinds.Int):
        # keras-tuner lists ten samples of integers without a step.
        every = range(hyperparameter.min_value, hyperparameter.max_value + 1)
        values = every if hyperparameter.step is None else map(int, values)
    elif isinstance(hyperparameter, kinds.Float) and hyperparameter.step is None:
        raise ValueError(
            f"The cost of a run depends on {hyperparameter.name!r}, a number without a step, so "
            "its largest value is not known. Give the number a step, make it a `Choice`, or give "
            "`base`, a ledger that no run exceeds."
        )
    return list(itertools.islice(values, _MAX_PLANS + 1))


class _ReadValues(MutableMapping[str, Any]):
    """Values of hyperparameters, and the names of those that were read."""

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = dict(values)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        self.read.update(self._values)
        return iter(self._values)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __reduce__(self) -> tuple[Any, ...]:
        # Copies do not remember, so that a copy reads everything.
        return dict, (dict(self),)


@dataclasses.dataclass(frozen=True)
class SearchSpent(PrivacySpent):
    """The privacy of what a search releases; `str()` of it is a statement in words.

    Epsilon is that of the released run with its selection, by Rényi divergences. Steps are those
    of the longest run that can be drawn.

    Args:
        epsilon_of_one_run: epsilon of a run without a selection, by the same accountant.
    """

    epsilon_of_one_run: float = 0.0


@dataclasses.dataclass(frozen=True)
class SearchPrivacy:
    """The account of a search.

    Args:
        selection: the distribution of the number of runs.
        bounds: the largest cost of each run.
        num_trials: the number of runs if it is known; None if it is drawn in secret.
        validation_is_public: whether the data of the scores need no protection.
        keeps_losers: whether the losing runs stay on the disk.
    """

    selection: RandomSelection
    bounds: RunBounds
    num_trials: int | None = None
    validation_is_public: bool = False
    keeps_losers: bool = False

    def epsilon(self, delta: float) -> float:
        """Epsilon of everything that the search releases."""
        if self.num_trials is None:
            return self.bounds.selection_epsilon(self.selection, delta)
        return self.bounds.epsilon(delta, self.num_trials)

    def released_ledger(self) -> Ledger:
        """The ledger of the released model, which carries the cost of the search."""
        if self.num_trials is None:
            return self.bounds.selected(self.selection)
        return self.bounds.selected(None, self.num_trials)

    def spent(self, delta: float) -> SearchSpent:
        """The privacy of the released run, and epsilon of one run beside it."""
        spent = PrivacySpent.from_ledger(self.released_ledger(), delta, "rdp")
        values = {field.name: getattr(spent, field.name) for field in dataclasses.fields(spent)}
        values["selection"] = str(self)
        return SearchSpent(**values, epsilon_of_one_run=self.bounds.epsilon(delta))

    def report(self, delta: float, group_sizes: Sequence[int]) -> PrivacyReport:
        """The report of the search.

        Args:
            delta: delta of every epsilon.
            group_sizes: numbers of examples of one person for which epsilon of one run is given.
        """
        report = PrivacyReport.from_ledger(
            self.bounds.costliest(delta), delta, group_sizes=group_sizes, selection=self.selection
        )
        not_covered = report.not_covered
        if not self.validation_is_public:
            not_covered += ("The validation data, whose scores decided which run is released.",)
        if self.keeps_losers:
            not_covered += (
                "The losing runs, which private_diagnostics=True has kept, and their scores.",
            )
        return dataclasses.replace(
            report,
            tuning=str(self),
            epsilon_with_selection=self.epsilon(delta),
            not_covered=not_covered,
        )

    def __str__(self) -> str:
        """How the released run was selected, and by which data."""
        if self.num_trials is not None:
            text = (
                f"the best of {self.num_trials} runs, a number that is known, so that the "
                "guarantee of a random number of runs is gone: epsilon is that of all "
                f"{self.num_trials} runs together"
            )
        elif self.keeps_losers:
            text = (
                f"{self.selection}, while the losing runs and their scores are kept as well and "
                "tell the number: whoever sees them has the epsilon of all runs together"
            )
        else:
            text = f"{self.selection}, the number kept secret and nothing else released"
        if self.validation_is_public:
            return f"{text}; validation data are taken to be public"
        return f"{text}; the guarantee does not cover the validation data"


def calibrated(
    hypermodel: Any,
    space: keras_tuner.HyperParameters,
    selection: RandomSelection,
    num_trials: int | None,
    target_epsilon: float,
    delta: float,
) -> Any:
    """The hypermodel with the least noise that keeps the whole search within the target.

    Raises:
        ValueError: if no noise reaches the target.
    """

    def epsilon(noise_multiplier: float) -> float:
        bounds = planned_bounds(hypermodel.with_noise_multiplier(noise_multiplier), space)
        return SearchPrivacy(selection, bounds, num_trials).epsilon(delta)

    return hypermodel.with_noise_multiplier(least_noise_multiplier(epsilon, target_epsilon))


def carry(model: Any, ledger: Ledger, *, holds_own: bool = False) -> None:
    """Adds the cost of a search to a model's ledger.

    Args:
        model: a compiled private model.
        ledger: the cost of the search.
        holds_own: whether that cost contains what the model has spent so far.
    """
    own = model.optimizer.run
    included = {**own.included, own.identity: own.ledger} if holds_own else {}
    first, second = fresh_key().tolist()
    model.optimizer.include_run(Run(ledger, (first, second), included))
