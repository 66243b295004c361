"""The state of a clipping strategy as Keras variables: one clip norm for clipping, noise and logs.

The step reads the state before it clips and writes it after it has added the noise, so that
clipping, noise, schedule and read-outs always agree.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip.backend import keras_private
from keras_adaclip.clipping import Clipper, ClippingStrategy, ParameterGroups, Release

Tensor = Any


class ClipState:
    """The clipping norms and the other state of a strategy.

    Args:
        add_variable: a function that makes a variable from a name and an initial array.
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
        clip_norms = state.get("clip_norm")
        if not isinstance(clip_norms, np.ndarray) or clip_norms.shape != (groups.num_groups,):
            raise ValueError(
                f"`{type(strategy).__name__}.initial_state` must return a NumPy array of shape "
                f"(num_groups,) under 'clip_norm', here ({groups.num_groups},). "
                f"Received: clip_norm={clip_norms!r}"
            )
        self._shapes = {name: value.shape for name, value in state.items()}
        # Without groups, an entry with one value for each group is a scalar.
        self._variables = {
            name: add_variable(name, value[0] if self._is_single(name) else value)
            for name, value in state.items()
        }

    @property
    def variables(self) -> list[keras.Variable]:
        """All variables of the state."""
        return list(self._variables.values())

    @property
    def current(self) -> Clipper:
        """Strategy, groups and state as tensors, for the gradient code."""
        state = {
            name: ops.reshape(variable.value, (1,)) if self._is_single(name) else variable.value
            for name, variable in self._variables.items()
        }
        return Clipper(self._strategy, self._groups, state)

    def begin_run(self, step: int, steps_per_epoch: int | None) -> None:
        """Let the strategy set the state at the start of a run of steps.

        Args:
            step: number of steps taken so far.
            steps_per_epoch: number of steps in an epoch, None if unknown.
        """
        self.assign(self._strategy.begin_run(self.arrays(), step, steps_per_epoch))

    def update(self, release: Release) -> None:
        """Replace the state by that of the next step."""
        self.assign(self._strategy.update(self.current.state, release))

    def read(self, name: str) -> np.ndarray | None:
        """Return one entry of the state, None if there is none of that name.

        Raises:
            RuntimeError: In the middle of an epoch on JAX.
        """
        if name not in self._variables:
            return None
        if keras_private.is_empty(self._variables[name]):
            raise RuntimeError(
                f"`{name}` cannot be read in the middle of an epoch on JAX, where Keras holds the "
                "state of training apart from the variables. Read it when the epoch ends, or call "
                "`model.jax_state_sync()` first."
            )
        return self.arrays()[name]

    def read_of_step(self, step: int) -> np.ndarray:
        """Return the clipping norms to log for the latest step, counted from 0."""
        return np.asarray(self._strategy.clip_norm_of_step(self.arrays(), step))

    def _is_single(self, name: str) -> bool:
        """Return whether the variable is a scalar instead of an array with one entry."""
        return self._groups.is_flat and self._shapes[name] == (1,)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the state as arrays."""
        return {
            name: np.reshape(backend.array_of(variable), self._shapes[name])
            for name, variable in self._variables.items()
        }

    def assign(self, values: Mapping[str, Any]) -> None:
        """Assign new values to some variables of the state."""
        for name, value in values.items():
            self._variables[name].assign(value[0] if self._is_single(name) else value)
