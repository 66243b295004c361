"""Every run that a search may draw, as its hypermodel plans it.

The plans are found by asking for them: `privacy_plan` is called with hyperparameters that remember
which of them it reads, and then with every value that each of those can take.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

import keras_tuner
from keras_tuner.engine import hyperparameters as kinds

from keras_adaclip.accounting import Ledger, RunBounds

_MOST_PLANS = 10_000
_MOST_VALUES = 10_000


@runtime_checkable
class PlannedHyperModel(Protocol):
    """A hypermodel that can say beforehand what a run will spend."""

    def build(self, hp: keras_tuner.HyperParameters) -> Any:
        """The compiled private model."""

    def privacy_plan(self, hp: keras_tuner.HyperParameters) -> Ledger:
        """The ledger of a whole run with these hyperparameters, of which it may read any."""


@runtime_checkable
class CalibratedHyperModel(PlannedHyperModel, Protocol):
    """A hypermodel whose noise can be set from outside."""

    def with_noise_multiplier(self, noise_multiplier: float) -> "CalibratedHyperModel":
        """Such a hypermodel, all of whose runs have this noise multiplier."""


def planned_bounds(hypermodel: PlannedHyperModel, space: keras_tuner.HyperParameters) -> RunBounds:
    """The plans of all runs that may be drawn from a search space.

    Args:
        hypermodel: what plans them.
        space: the search space.

    Returns:
        The plans, each once.

    Raises:
        TypeError: where a plan is no `Ledger`.
        ValueError: where a plan depends on a number without a step, of which there are too many
            values, or on a hyperparameter that the space does not have.
    """
    plans: dict[Ledger, None] = {}
    num_plans = 0
    open_choices: list[dict[str, Any]] = [{}]
    while open_choices:
        choice = open_choices.pop()
        plan, branching = _plan_of(hypermodel, space, choice)
        if branching is None:
            num_plans += 1
            plans[plan] = None
        else:
            values = _all_values(branching)
            open_choices += [{**choice, branching.name: value} for value in values]
        if num_plans + len(open_choices) > _MOST_PLANS:
            raise ValueError(
                f"`privacy_plan` of {type(hypermodel).__name__} depends on more than "
                f"{_MOST_PLANS:,} combinations of hyperparameters. Let it depend on fewer, or give "
                "`base`, a ledger that no run exceeds."
            )
    return RunBounds(tuple(plans))


def _plan_of(
    hypermodel: PlannedHyperModel, space: keras_tuner.HyperParameters, choice: dict[str, Any]
) -> tuple[Ledger, kinds.HyperParameter | None]:
    """The plan with some values chosen, and what else it depends on, if anything."""
    hp = space.copy()
    hp.values = _RememberedValues(_active_values(space, choice))
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
            f"`keras_adaclip.accounting.Ledger`. Received: a {type(plan).__name__}"
        )
    for name in _with_parents(hp.values.read, space):
        if name not in choice and dict.__contains__(hp.values, name):
            return plan, _active(space, name, hp.values)
    return plan, None


def _active_values(space: keras_tuner.HyperParameters, choice: dict[str, Any]) -> dict[str, Any]:
    """Values of the active hyperparameters: those chosen, and the first one of each other."""
    hp = keras_tuner.HyperParameters()
    for each in space.space:
        hp.merge([each])
        if hp.is_active(each):
            hp.values[each.name] = choice.get(each.name, each.default)
    return dict(hp.values)


def _active(
    space: keras_tuner.HyperParameters, name: str, values: dict[str, Any]
) -> kinds.HyperParameter:
    """The hyperparameter of this name whose conditions hold."""
    return next(
        each
        for each in space.space
        if each.name == name and all(condition.is_active(values) for condition in each.conditions)
    )


def _with_parents(names: Iterable[str], space: keras_tuner.HyperParameters) -> list[str]:
    """The names, each after those that decide whether it is active at all."""
    found: dict[str, None] = {}
    for name in names:
        for each in space.space:
            if each.name == name:
                found.update(dict.fromkeys(condition.name for condition in each.conditions))
        found[name] = None
    return list(found)


def _all_values(hyperparameter: kinds.HyperParameter) -> list[Any]:
    if isinstance(hyperparameter, kinds.Int) and hyperparameter.step is None:
        values: Iterable[Any] = range(hyperparameter.min_value, hyperparameter.max_value + 1)
    elif isinstance(hyperparameter, kinds.Int):
        values = map(int, hyperparameter.values)
    elif isinstance(hyperparameter, kinds.Float) and hyperparameter.step is None:
        raise ValueError(
            f"What a run spends depends on {hyperparameter.name!r}, a number without a step: the "
            "largest cost among all its values is not known. Give it a step, make it a "
            "`Choice`, or give `base`, a ledger that no run exceeds."
        )
    else:
        values = hyperparameter.values
    found = []
    for value in values:
        found.append(value)
        if len(found) > _MOST_VALUES:
            raise ValueError(
                f"What a run spends depends on {hyperparameter.name!r}, which has more than "
                f"{_MOST_VALUES:,} values. Give it a larger step."
            )
    return found


class _RememberedValues(dict[str, Any]):
    """Values of hyperparameters that remember which of them were asked for, in order."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.read: dict[str, None] = {}

    def __getitem__(self, name: str) -> Any:
        self.read[name] = None
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.read[str(name)] = None
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read[name] = None
        return super().get(name, default)

    def __iter__(self) -> Iterator[str]:
        self._read_all()
        return super().__iter__()

    def keys(self) -> Any:
        self._read_all()
        return super().keys()

    def values(self) -> Any:
        self._read_all()
        return super().values()

    def items(self) -> Any:
        self._read_all()
        return super().items()

    def copy(self) -> Any:
        self._read_all()
        return super().copy()

    def _read_all(self) -> None:
        self.read.update(dict.fromkeys(super().keys()))
