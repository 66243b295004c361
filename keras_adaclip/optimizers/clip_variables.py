"""The state of a clipping strategy as Keras variables: one clip norm for clipping, noise and logs.

The step reads the state before it clips and writes it after it has noised, so that clipping,
noise, schedule and read-outs can never disagree.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.clipping import ClippingStrategy, CurrentClipping, ParameterGroups, Release

Tensor = Any


class ClipVariables:
    """Thresholds, and whatever else a strategy remembers.

    Args:
        add_variable: makes a variable from a name and an initial array.
        strategy: the clipping strategy.
        groups: the groups of the trainable variables.
    """

    def __init__(
        self,
        add_variable: Callable[[str, np.ndarray], keras.Variable],
        strategy: ClippingStrategy,
        groups: ParameterGroups,
    ) -> None:
        self._strategy = strategy
        self._groups = groups
        state = strategy.initial_state(groups)
        _check_clip_norms(strategy, groups, state)
        self._shapes = {name: value.shape for name, value in state.items()}
        # Without groups, what has one value a group is a plain number.
        self._variables = {
            name: add_variable(name, value[0] if self._is_single(name) else value)
            for name, value in state.items()
        }

    @property
    def variables(self) -> list[keras.Variable]:
        """All of them."""
        return list(self._variables.values())

    @property
    def current(self) -> CurrentClipping:
        """Strategy, groups and state as tensors, for the gradient code."""
        state = {
            name: ops.reshape(variable.value, (1,)) if self._is_single(name) else variable.value
            for name, variable in self._variables.items()
        }
        return CurrentClipping(self._strategy, self._groups, state)

    def begin_run(self, step: int, steps_per_epoch: int | None) -> None:
        """Tells the strategy that a run of steps begins.

        Args:
            step: the number of steps taken so far.
            steps_per_epoch: steps in an epoch, None where unknown.
        """
        state = {name: self._array(name) for name in self._variables}
        self._assign(self._strategy.begin_run(state, step, steps_per_epoch))

    def update(self, release: Release) -> None:
        """Moves on to the state of the next step.

        Args:
            release: what this step released.
        """
        self._assign(self._strategy.update(self.current.state, release))

    def read(self, name: str) -> np.ndarray | None:
        """One entry of the state, None where there is none of that name.

        Raises:
            RuntimeError: in the middle of an epoch on JAX.
        """
        if name not in self._variables:
            return None
        variable = self._variables[name]
        if keras_private.is_empty(variable):
            raise RuntimeError(
                f"`{name}` cannot be read in the middle of an epoch on JAX, where Keras holds the "
                "state of training apart from the variables. Read it when the epoch ends, or call "
                "`model.jax_state_sync()` first."
            )
        return self._array(name)

    def read_of_step(self, step: int) -> np.ndarray:
        """The clipping norms that stand in logs for the latest step.

        Args:
            step: the number of the latest step, from 0.
        """
        state = {name: self._array(name) for name in self._variables}
        return np.asarray(self._strategy.clip_norm_of_step(state, step))

    def _is_single(self, name: str) -> bool:
        return self._groups.is_flat and self._shapes[name] == (1,)

    def _array(self, name: str) -> np.ndarray:
        value = backend.array_of(self._variables[name])
        return np.reshape(value, self._shapes[name])

    def _assign(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self._variables[name].assign(value[0] if self._is_single(name) else value)


def _check_clip_norms(
    strategy: ClippingStrategy, groups: ParameterGroups, state: Mapping[str, Any]
) -> None:
    """Raises where a strategy's initial state has not one clipping norm for each group."""
    clip_norms = state.get("clip_norm")
    if not isinstance(clip_norms, np.ndarray) or clip_norms.shape != (groups.num_groups,):
        raise ValueError(
            f"`{type(strategy).__name__}.initial_state` must return a NumPy array of shape "
            f"(num_groups,) under 'clip_norm', here ({groups.num_groups},). "
            f"Received: clip_norm={clip_norms!r}"
        )
