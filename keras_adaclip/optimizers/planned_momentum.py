"""Momentum whose step size is planned from the number of steps and the noise of each.

    r <- g / s                                   the gradient in units of its noise
    e <- b e + (1 - b) mean(r^2)                 one number a variable, corrected for its start
    step = a sqrt(3 / T) (1 - t / T) / sqrt(1 + max(e - 1, 0) / 4)
    v <- m v - (1 - m) step r
    w <- w + v

with T the planned steps, t the steps done, s the standard deviation of the noise on the gradient, m
the momentum, and a the `noise_walk`. The squares of sqrt(3 / T) (1 - t / T) sum to about one. So
where noise is most of a gradient, e is about 1, and the noise of all steps together moves each
coordinate by a standard deviation of about a. The signal, which has one direction, moves the
weights as far as its share of the gradients allows. Where it is most of the gradient, e is large
and steps are shorter: in each variable by its own e, since the layers of a network may differ
widely. With `pretrained`, a is at most a tenth of the size of each variable.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip._checks import check_between_0_and_1, check_integer, check_nonnegative, optional
from keras_adaclip._configurable import printed

Tensor = Any

# Measured (docs/guides/untuned.md): the walk that served networks of 1,000 to two million weights
# best falls with about the fourth root of their number. The disturbances of successive layers add
# up, and more than four of them need a shorter one.
_WALK_OF_ONE_WEIGHT, _MOST_WALK, _FULL_WALK_LAYERS = 3.4, 0.5, 4
_SHARE_OF_SIGNAL, _ENERGY_DECAY = 0.25, 0.99
# Measured with pretrained weights (the same page).
_SHARE_OF_SIZE = 0.1


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PlannedMomentum(keras.optimizers.SGD):
    """Lets the noise of a planned number of steps move each weight by a planned distance.

    `AutoDPOptimizer` uses it. There is no learning rate to tune: the step follows from the number
    of steps and from the noise on the gradients, which a `DPOptimizer` knows, and falls linearly to
    zero.

    Args:
        noise_walk: Float >= 0, the standard deviation of what the noise of all steps adds to a
            weight; None for `3.4 * num_weights ** -0.25`, at most 0.5, with the number of
            trainable weights; with more than four kernels (trainable variables of two or more
            axes, other than biases), times the square root of 4 over their number. It is the
            learning rate in Keras's terms, and may be set by hand, but not to a schedule.
        momentum: Float in (0, 1), the decay of the average of gradients.
        pretrained: Whether weights go on with a task for which they have been trained before. Then
            the walk of each variable is at most 0.1 times the root mean square of its values before
            the first step. A variable of zeros alone (the bias of a new layer, a matrix of LoRA)
            shows that the task is new, and the walk remains what it is.
        name: Name of the optimizer.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If an argument is out of range.

    Example:

    >>> PlannedMomentum(0.2).get_config()["noise_walk"]
    0.2
    """

    def __init__(
        self,
        noise_walk: float | None = None,
        momentum: float = 0.9,
        name: str | None = None,
        *,
        pretrained: bool = False,
    ) -> None:
        walk = optional(check_nonnegative, "noise_walk", noise_walk)
        super().__init__(
            _WALK_OF_ONE_WEIGHT if walk is None else walk,
            check_between_0_and_1("momentum", momentum),
            name=name,
        )
        if not isinstance(pretrained, bool):
            raise TypeError(
                f"Argument `pretrained` must be a bool. Received: pretrained={pretrained!r}"
            )
        self.pretrained = pretrained
        # Until `build` knows the number of weights; None if a walk was given.
        self._default_walk = None if walk is not None else self._walk()
        self._is_begun = False

    @property
    def learning_rate(self) -> Any:
        """The walk, which may be set to another number."""
        return keras.optimizers.SGD.learning_rate.fget(self)

    @learning_rate.setter
    def learning_rate(self, learning_rate: Any) -> None:
        if callable(learning_rate):
            raise ValueError(
                "`PlannedMomentum` takes no schedule: its steps fall to zero by themselves. Set a "
                "number, or choose another optimizer, such as `AutoDPOptimizer(..., "
                f"optimizer=keras.optimizers.Adam(schedule))`. Received: {learning_rate!r}"
            )
        keras.optimizers.SGD.learning_rate.fset(self, learning_rate)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Create the averages and the plan.

        Args:
            variables: The trainable variables.
        """
        if self.built:
            return
        super().build(variables)
        if self.get_config()["noise_walk"] is None:
            num_weights = max(sum(math.prod(variable.shape) for variable in variables), 1)
            num_kernels = sum(
                len(variable.shape) > 1 and "bias" not in variable.name for variable in variables
            )
            walk = min(_WALK_OF_ONE_WEIGHT * num_weights**-0.25, _MOST_WALK)
            walk *= min(_FULL_WALK_LAYERS / max(num_kernels, 1), 1.0) ** 0.5
            self.learning_rate = walk
            self._default_walk = self._walk()
        own: dict[str, Any] = {"shape": (), "aggregation": "only_first_replica"}
        self._first_step = self.add_variable(dtype="int32", name="first_step", **own)
        self._num_steps = self.add_variable(
            dtype="int32", initializer="ones", name="num_steps", **own
        )
        own["shape"] = (len(variables),)
        self._energies = self.add_variable(dtype="float32", name="energies", **own)
        if self.pretrained:
            self._most_walks = self.add_variable(dtype="float32", name="most_walks", **own)

    def begin(self, num_steps: int) -> None:
        """Plan the next steps.

        A plan that has as many steps left goes on. Call it after `build`.

        Args:
            num_steps: Number of steps until the step size is zero.
        """
        num_steps = check_integer("num_steps", num_steps, minimum=1)
        first, planned, done = map(
            int, map(backend.array_of, (self._first_step, self._num_steps, self.iterations))
        )
        self._is_begun = True
        if self.pretrained and done == 0:
            # Not in `build`: Keras builds a model that is loaded before it has its weights.
            self._most_walks.assign(_most_walks(self._trainable_variables))
        if done > first and first + planned - done == num_steps:
            return
        self._num_steps.assign(np.int32(num_steps))
        # An array of its own: JAX gives the memory of each variable to the step.
        self._first_step.assign(np.int32(done))
        for variable in (*self.momentums, self._energies):
            variable.assign(np.zeros(variable.shape, "float32"))

    def apply_noised(
        self,
        gradients: Sequence[Tensor],
        stddevs: Sequence[Tensor],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Move all variables.

        Args:
            gradients: The noised gradients, the same on all replicas.
            stddevs: The standard deviation of the noise on each.
            trainable_variables: The variables; None for those of `build`.

        Raises:
            ValueError: If there is no plan.
        """
        if not self._is_begun:
            raise ValueError(
                "`PlannedMomentum` has no plan. A `fit` of a private model begins one; in a "
                "training loop of your own, call `begin(num_steps)` first."
            )
        units = [each / stddev for each, stddev in zip(gradients, stddevs, strict=True)]
        rates = self._rates(ops.stack([ops.mean(ops.square(each)) for each in units]))
        scaled = [rates[number] * each for number, each in enumerate(units)]
        super().apply(backend.shares_of_replica(scaled), trainable_variables)

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Tensor) -> None:
        """Move one variable; `apply_noised` calls it.

        Args:
            gradient: The gradient in units of its noise, times the step over the walk.
            variable: The variable.
            learning_rate: The walk.
        """
        velocity = self.momentums[self._get_variable_index(variable)]
        step = ops.cast(learning_rate * gradient, variable.dtype)
        moved = self.momentum * velocity.value - step
        self.assign(velocity, moved)
        self.assign_add(variable, moved)

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        """Refuse: the noise of the gradients must be known.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            "`PlannedMomentum` needs the noise of each gradient, which only a `DPOptimizer` knows: "
            "give it `DPOptimizer(PlannedMomentum(), ...)`, or choose another optimizer."
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        value = self._walk()
        walk = None if value == self._default_walk else float(str(np.float32(value)))
        config = {"noise_walk": walk, "momentum": self.momentum, "name": self.name}
        return {**config, "pretrained": self.pretrained}

    def __repr__(self) -> str:
        return printed(self, self.get_config())

    def _walk(self) -> float:
        """Return the walk."""
        return float(backend.array_of(self.learning_rate))

    def _rates(self, mean_squares: Tensor) -> Tensor:
        """Return (1 - m) step / a of each variable, and remember the mean squares."""
        first_step = ops.cast(self._first_step.value, self.iterations.dtype)
        done = ops.cast(self.iterations.value - first_step, "float32")
        num_steps = ops.cast(self._num_steps.value, "float32")
        left = ops.maximum(1.0 - done / num_steps, 0.0) * ops.sqrt(3.0 / num_steps)
        energies = _ENERGY_DECAY * self._energies.value + (1.0 - _ENERGY_DECAY) * mean_squares
        self._energies.assign(energies)
        of_signal = energies / (1.0 - _ENERGY_DECAY ** (done + 1.0)) - 1.0
        shares = ops.sqrt(1.0 + _SHARE_OF_SIGNAL * ops.maximum(of_signal, 0.0))
        rates = (1.0 - self.momentum) * left / shares
        if not self.pretrained:
            return rates
        walk = ops.maximum(ops.cast(self.learning_rate, "float32"), 1e-12)
        return rates * ops.minimum(self._most_walks.value / walk, 1.0)


def _most_walks(variables: Sequence[keras.Variable]) -> np.ndarray:
    """Return how far noise may move each variable, by the size of its weights.

    Args:
        variables: The trainable variables with their first values.
    """
    arrays = (np.asarray(backend.array_of(variable), np.float64) for variable in variables)
    sizes = np.array([np.sqrt(np.mean(np.square(array))) for array in arrays], "float32")
    return _SHARE_OF_SIZE * sizes if sizes.all() else np.full_like(sizes, np.inf)
