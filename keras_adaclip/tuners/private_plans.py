"""The bound on the cost of a run of a private search, from the plans of its hypermodel.

    e(a) = max_h e_h(a)

bounds the Rényi divergence of a run at order a, where e_h belongs to a run with the hyperparameters
h. Every value of h that the plan of a run depends on is planned before the search.
"""

import dataclasses
import itertools
from collections.abc import Iterator, MutableMapping
from typing import Any

import keras_tuner
from keras_tuner.engine import hyperparameters as kinds

from keras_adaclip.accounting import Ledger, PrivacySpent, RunBounds

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


def planned_bounds(hypermodel: Any, space: keras_tuner.HyperParameters) -> RunBounds:
    """Return the plans of all runs that can be drawn from a search space, each once.

    `privacy_plan` is called with hyperparameters that have no values at first. When it reads one,
    it is called again with every value of that one.

    Args:
        hypermodel: A hypermodel with a method `privacy_plan(hp)`.
        space: The search space.

    Raises:
        TypeError: If a plan is not a `Ledger`.
        ValueError: If a plan depends on a number without a step, on too many values, or on a
            hyperparameter that the space does not have.
    """
    plans: list[Ledger] = []
    waiting: list[dict[str, Any]] = [{}]
    while waiting:
        chosen = waiting.pop()
        hp = space.copy()
        hp.values = _ChosenValues(space, chosen)
        try:
            plan = hypermodel.privacy_plan(hp)
        except _ReadBeforeChosenError as error:
            name = error.hyperparameter.name
            waiting += [{**chosen, name: value} for value in _all_values(error.hyperparameter)]
        else:
            if new := new_names(hp, space):
                raise ValueError(
                    f"`privacy_plan` of {type(hypermodel).__name__} reads {new}, which the search "
                    "space does not have. Ask for it in `build` or `declare_hyperparameters` too."
                )
            plans.append(plan)
        if len(plans) + len(waiting) > _MAX_PLANS:
            raise ValueError(
                f"`privacy_plan` of {type(hypermodel).__name__} depends on more than "
                f"{_MAX_PLANS:,} combinations of hyperparameters. Let it depend on fewer, or give "
                "`base`, a ledger that no run exceeds."
            )
    return RunBounds(tuple(plans))


def new_names(hp: keras_tuner.HyperParameters, space: keras_tuner.HyperParameters) -> str:
    """Return the names of hyperparameters that a copy of the space has in addition."""
    return ", ".join(repr(each.name) for each in hp.space[len(space.space) :])


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


class _ReadBeforeChosenError(BaseException):
    """A plan has read a hyperparameter without a value; no `except Exception` keeps this."""

    def __init__(self, hyperparameter: kinds.HyperParameter) -> None:
        super().__init__(hyperparameter.name)
        self.hyperparameter = hyperparameter


class _ChosenValues(MutableMapping[str, Any]):
    """Values of the hyperparameters of a space, which raise if one that is not chosen is read.

    Args:
        space: The search space.
        chosen: The values chosen so far, by name.
    """

    def __init__(self, space: keras_tuner.HyperParameters, chosen: dict[str, Any]) -> None:
        self._space = space
        self._chosen = dict(chosen)

    def __getitem__(self, name: str) -> Any:
        for each in self._space.space:
            # A condition reads the values of other hyperparameters, which are chosen first.
            is_new = each.name == name and name not in self._chosen
            if is_new and all(condition.is_active(self) for condition in each.conditions):
                raise _ReadBeforeChosenError(each)
        return self._chosen[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._chosen[name] = value

    def __delitem__(self, name: str) -> None:
        del self._chosen[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in {each.name for each in self._space.space} if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
