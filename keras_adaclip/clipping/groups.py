"""Groups of variables, each with a clipping norm of its own.

    contribution = (g_1, ..., g_K),  ||g_k|| <= C_k,  joint sensitivity sqrt(sum_k C_k^2)

Sources: McMahan et al. 2018, "Learning differentially private recurrent language models", section
2.3; Thakkar et al. 2019, "Differentially private learning with adaptive clipping" (version 1).
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

GroupsArgument = str | Callable[[Any], Hashable]
_NAMES = ("flat", "per_layer")


@dataclass(frozen=True)
class ParameterGroups:
    """Which group each variable belongs to.

    Args:
        names: the name of each group.
        assignment: for each variable, the number of its group.
        shapes: for each variable, its shape.
        is_flat: whether there is one group by choice, so that read-outs are single numbers.

    Example:

    >>> groups = ParameterGroups(("dense", "dense_1"), (0, 0, 1), ((3, 4), (4,), (4, 2)))
    >>> groups.num_groups, groups.sizes
    (2, (16, 8))
    """

    names: tuple[str, ...]
    assignment: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    is_flat: bool = False

    @property
    def num_groups(self) -> int:
        """The number of groups, K."""
        return len(self.names)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of coordinates in each group."""
        sizes = [0] * self.num_groups
        for number, shape in zip(self.assignment, self.shapes, strict=True):
            sizes[number] += math.prod(shape)
        return tuple(sizes)

    @classmethod
    def of(cls, groups: GroupsArgument, variables: Sequence[keras.Variable]) -> "ParameterGroups":
        """The groups that a user's `groups=` makes of variables.

        Args:
            groups: `"flat"`, `"per_layer"`, or a function that takes a variable and returns the
                name of its group. What it returns must not depend on the training data.
            variables: the trainable variables.

        Raises:
            TypeError: where the function returns what cannot be a key of a dict.
        """
        shapes = tuple(tuple(int(size) for size in variable.shape) for variable in variables)
        if groups == "flat":
            return cls(("all",), (0,) * len(shapes), shapes, is_flat=True)
        key_of = _layer_of if isinstance(groups, str) else groups
        numbers: dict[Hashable, int] = {}
        assignment = []
        for variable in variables:
            key = key_of(variable)
            if not isinstance(key, Hashable):
                raise TypeError(
                    "The function given as `groups` must return a name for each variable. "
                    f"Received: {key!r} for variable {variable.path!r}"
                )
            assignment.append(numbers.setdefault(key, len(numbers)))
        return cls(tuple(map(str, numbers)), tuple(assignment), shapes)

    @classmethod
    def single(cls, shapes: Sequence[Sequence[int]] = ()) -> "ParameterGroups":
        """One group of variables of these shapes.

        Args:
            shapes: of the variables.
        """
        return cls(("all",), (0,) * len(shapes), tuple(map(tuple, shapes)), is_flat=True)


def checked_groups(groups: Any) -> GroupsArgument:
    """Returns what a user gave as `groups`, a serialized function as the function.

    Raises:
        ValueError: where a name is unknown.
        TypeError: where it is neither a name nor a function.
    """
    if isinstance(groups, dict):
        groups = keras.saving.deserialize_keras_object(groups)
    if isinstance(groups, str):
        if groups not in _NAMES:
            raise ValueError(
                f"Argument `groups` must be one of {_NAMES} or a function of a variable. "
                f"Received: groups={groups!r}"
            )
        return groups
    if not callable(groups):
        raise TypeError(
            f"Argument `groups` must be one of {_NAMES} or a function that takes a variable and "
            f"returns the name of its group. Received: groups={groups!r}"
        )
    return groups


def serialized_groups(groups: GroupsArgument) -> Any:
    """What stands for `groups` in a config."""
    if isinstance(groups, str):
        return groups
    return keras.saving.serialize_keras_object(groups)


def _layer_of(variable: keras.Variable) -> str:
    """The path of the layer that owns the variable: all of the variable's path but its name."""
    path: str = variable.path
    return path.rpartition("/")[0] or path
