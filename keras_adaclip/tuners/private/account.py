"""The bound on the cost of a run, and the privacy of what a search releases.

    e(a) = max_h e_h(a)

bounds the Rényi divergence of a run at order a, where e_h belongs to a run with the hyperparameters
h. Every value of h that the plan of a run depends on is planned before the search.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import keras_tuner
from keras_tuner.engine import hyperparameters as kinds

from keras_adaclip.accounting import Ledger, LedgerRow, PrivacySpent, RunBounds

_MAX_PLANS = 10_000


@dataclasses.dataclass(frozen=True)
class SearchSpent(PrivacySpent):
    """The privacy of what a search releases; `str()` of it is a statement in words.

    Epsilon is that of the released run with its selection, by Rényi divergences. Steps are those
    of the longest run that can be drawn.

    Args:
        epsilon_of_one_run: Epsilon of a run without a selection, by the same accountant.
    """

    epsilon_of_one_run: float = 0.0


def base_bounds(base: Any) -> RunBounds:
    """Return the bound on a run that the argument `base` gives.

    Raises:
        TypeError: If it is neither a ledger nor a row of one.
    """
    if isinstance(base, LedgerRow):
        base = Ledger((base,))
    if not isinstance(base, Ledger):
        raise TypeError(
            f"Argument `base` must be a `Ledger` or a `LedgerRow`. Received: base={base!r}"
        )
    return RunBounds((base,))


def planned_bounds(hypermodel: Any, space: keras_tuner.HyperParameters) -> RunBounds:
    """Return the plans of all runs that can be drawn from a search space, each once.

    `privacy_plan` is called with hyperparameters that remember which of them it reads, and then
    with every value of those.

    Args:
        hypermodel: A hypermodel with a method `privacy_plan(hp)`.
        space: The search space.

    Raises:
        TypeError: If a plan is not a `Ledger`.
        ValueError: If a plan depends on a number without a step, on too many values, or on a
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
    """Return the plan with some values chosen, and another hyperparameter that it depends on."""
    values = active_values(space, lambda each: choice.get(each.name, each.default))
    hp = space.copy()
    hp.values = _ReadValues(values)
    plan = hypermodel.privacy_plan(hp)
    if new := new_names(hp, space):
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
        if each.name in needed and each.name not in choice and each.name in values:
            return plan, each
    return plan, None


def new_names(hp: keras_tuner.HyperParameters, space: keras_tuner.HyperParameters) -> str:
    """Return the names of hyperparameters that a copy of the space has in addition."""
    return ", ".join(repr(each.name) for each in hp.space[len(space.space) :])


def active_values(
    space: keras_tuner.HyperParameters, value_of: Callable[[kinds.HyperParameter], Any]
) -> dict[str, Any]:
    """Return the values of the hyperparameters whose conditions hold.

    Args:
        space: The search space.
        value_of: A function that gives the value of a hyperparameter.
    """
    values: dict[str, Any] = {}
    for each in space.space:
        if all(condition.is_active(values) for condition in each.conditions):
            values[each.name] = value_of(each)
    return values


def _all_values(hyperparameter: kinds.HyperParameter) -> list[Any]:
    """Return the values of a hyperparameter, up to one more than the limit."""
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
    """Values of hyperparameters that remember the names of those that were read."""

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
        # Copies do not remember, so making one reads everything.
        return dict, (dict(self),)
