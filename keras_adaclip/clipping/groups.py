"""Groups of variables, each with its own clipping norm.

    contribution = (g_1, ..., g_K),  ||g_k|| <= C_k,  joint sensitivity sqrt(sum_k C_k^2)

Sources: McMahan et al. 2018, "Learning differentially private recurrent language models", section
2.3; Thakkar et al. 2019, "Differentially private learning with adaptive clipping" (version 1).
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from keras_adaclip._checks import check_between

# The square of a smaller norm vanishes in float32, and a norm that reads 0 is never clipped; the
# square of a larger one overflows. Between the two, norms and noise can be trusted.
CLIP_NORM_RANGE = SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM = 1e-10, 1e15

Groups = str | Callable[[Any], Hashable]
_NAMES = ("flat", "per_layer")


@dataclass(frozen=True)
class ParameterGroups:
    """The group of each variable.

    Args:
        names: The name of each group.
        assignment: For each variable, the number of its group.
        shapes: For each variable, its shape.

    Example:

    >>> groups = ParameterGroups(("dense", "dense_1"), (0, 0, 1), ((3, 4), (4,), (4, 2)))
    >>> groups.num_groups, groups.sizes
    (2, (16, 8))
    """

    names: tuple[str, ...]
    assignment: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]

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
    def of(cls, groups: Groups, variables: Sequence[keras.Variable]) -> "ParameterGroups":
        """Return the groups of variables for a `groups` argument.

        Args:
            groups: `"flat"`, `"per_layer"`, or a function from a variable to the name of its
                group. The names must not depend on the training data.
            variables: The trainable variables.

        Raises:
            TypeError: If the function returns a value that is not hashable.
        """
        if groups == "flat":
            return cls.single([variable.shape for variable in variables])
        key_of = _layer_of if isinstance(groups, str) else groups
        numbers: dict[Hashable, int] = {}
        assignment = []
        for variable in variables:
            assignment.append(numbers.setdefault(key_of(variable), len(numbers)))
        shapes = tuple(tuple(map(int, variable.shape)) for variable in variables)
        return cls(tuple(map(str, numbers)), tuple(assignment), shapes)

    @classmethod
    def single(cls, shapes: Sequence[Sequence[int]] = ()) -> "ParameterGroups":
        """Return one group of variables.

        Args:
            shapes: The shape of each variable.
        """
        tuples = tuple(tuple(map(int, shape)) for shape in shapes)
        return cls(("all",), (0,) * len(tuples), tuples)

    def split_evenly(self, clip_norm: float) -> np.ndarray:
        """Return equal norms whose joint norm is `clip_norm`: `C_k = C / sqrt(K)`.

        Args:
            clip_norm: The joint norm C.

        Returns:
            A float32 array of shape `(num_groups,)`.

        Example:

        >>> ParameterGroups(("a", "b", "c", "d"), (), ()).split_evenly(1.0)
        array([0.5, 0.5, 0.5, 0.5], dtype=float32)
        """
        share = clip_norm / self.num_groups**0.5
        return np.full(self.num_groups, np.clip(share, *CLIP_NORM_RANGE), np.float32)


def check_clip_norm(name: str, value: Any) -> float:
    """Return a clipping norm as a float in the range of float32 norms."""
    return check_between(name, value, *CLIP_NORM_RANGE)


def check_groups(groups: Any) -> Groups:
    """Return a `groups` argument, deserialized if it is a config.

    Raises:
        ValueError: If a name is unknown.
        TypeError: If it is neither a name nor a function.
    """
    if isinstance(groups, dict):
        groups = keras.saving.deserialize_keras_object(groups)
    if (isinstance(groups, str) and groups in _NAMES) or callable(groups):
        return groups
    kind = ValueError if isinstance(groups, str) else TypeError
    raise kind(
        f"Argument `groups` must be one of {_NAMES} or a function that takes a variable and "
        f"returns the name of its group. Received: groups={groups!r}"
    )


def _layer_of(variable: keras.Variable) -> str:
    """Return the path of the layer that owns a variable."""
    path: str = variable.path
    return path.rpartition("/")[0] or path
