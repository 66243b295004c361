"""Momentum whose step is planned from the number of steps and the sizes of the initial weights.

    m <- b1 m + (1 - b1) g
    v <- b2 v + (1 - b2) mean(g^2)                   one number for each variable
    w <- w - a s sqrt(3 / T) (1 - t / T) m / sqrt(v)      (m and v corrected for their start)

with T the planned steps, t the steps done, s the root mean square of the initial weights, and a the
`noise_walk`. Where noise is most of a gradient, g / sqrt(v) has unit variance, and the squares of
sqrt(3 / T) (1 - t / T) sum to about one: at the end, the noise of all steps together has moved each
coordinate by a standard deviation of about a * s (a tenth more in 200 steps, since the corrected
averages give the first gradients more weight). The signal, which has one direction, moves the
weights as far as its share of the gradients allows.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from keras_adaclip import backend
from keras_adaclip._checks import check_between_0_and_1, check_integer, check_positive
from keras_adaclip._configurable import printed

Tensor = Any

# Biases begin with zeros, and gains with ones: neither is a size that they should move by.
_SIZE_OF_VECTORS = 0.1
_LEAST_ENERGY = 1e-30


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PlannedMomentum(keras.optimizers.Optimizer):
    """Moves each variable, over a planned number of steps, by a planned multiple of its size.

    `AutoDPOptimizer` uses it. There is no learning rate to tune: the step follows from the number
    of steps and from the sizes of the initial weights, is divided by the size of the gradients,
    and falls linearly to zero.

    Args:
        noise_walk: positive float, the standard deviation of what the noise of all steps adds to a
            weight, over the root mean square of the initial weights of its variable. (For vectors,
            such as biases, over 0.1.)
        momentum: float in (0, 1), the decay of the average of gradients.
        energy_decay: float in (0, 1), the decay of the average of mean squared gradients.
        name: name of the optimizer.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If an argument is out of range.

    Example:

    >>> PlannedMomentum().get_config()["noise_walk"]
    3.0
    """

    DEFAULT_WALK: ClassVar[float] = 3.0

    def __init__(
        self,
        noise_walk: float = DEFAULT_WALK,
        momentum: float = 0.9,
        energy_decay: float = 0.99,
        name: str | None = None,
    ) -> None:
        super().__init__(learning_rate=check_positive("noise_walk", noise_walk), name=name)
        self.momentum = check_between_0_and_1("momentum", momentum)
        self.energy_decay = check_between_0_and_1("energy_decay", energy_decay)
        self._is_begun = False

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Create the averages and the plan.

        Args:
            variables: the trainable variables.
        """
        if self.built:
            return
        super().build(variables)
        self._first_step = self.add_variable((), "zeros", dtype="int32", name="first_step")
        self._num_steps = self.add_variable((), "ones", dtype="int32", name="num_steps")
        self._averages = self.add_optimizer_variables(variables, "average")
        scalars = {"shape": (), "dtype": "float32"}
        self._energies = [self.add_variable(**scalars, name="energy") for _ in variables]
        self._sizes = [self.add_variable(**scalars, name="size") for _ in variables]

    def begin(self, num_steps: int) -> None:
        """Plan the next steps: their number, and before the first of all, the weights' sizes.

        A plan that has as many steps left goes on. Call it after `build`.

        Args:
            num_steps: number of steps until the step size is zero.
        """
        num_steps = check_integer("num_steps", num_steps, minimum=1)
        first, planned, done = map(
            int, map(backend.array_of, (self._first_step, self._num_steps, self.iterations))
        )
        self._is_begun = True
        if done > first and first + planned - done == num_steps:
            return
        self._num_steps.assign(np.int32(num_steps))
        # Arrays of its own: JAX gives the memory of each variable to the step.
        self._first_step.assign(np.int32(done))
        for variable in (*self._averages, *self._energies):
            if variable is not None:
                variable.assign(np.zeros(variable.shape, "float32"))
        if done == 0:
            self._measure()

    def apply(
        self,
        grads: Sequence[Tensor | None],
        trainable_variables: Sequence[keras.Variable] | None = None,
    ) -> None:
        """Move all variables.

        Args:
            grads: the noised gradients. Over several replicas, the parts that add up to them.
            trainable_variables: the variables.

        Raises:
            ValueError: If there is no plan.
        """
        if not self._is_begun:
            raise ValueError(
                "`PlannedMomentum` has no plan. A `fit` of a private model begins one; in a "
                "training loop of your own, call `begin(num_steps)` first."
            )
        self._rate = self._rate_of_step()
        super().apply(grads, trainable_variables)

    def update_step(
        self, gradient: Tensor, variable: keras.Variable, learning_rate: Tensor
    ) -> None:
        """Move one variable.

        Args:
            gradient: its noised gradient.
            variable: the variable.
            learning_rate: the noise walk, of which `apply` has made the rate of the step.
        """
        number = self._get_variable_index(variable)
        average, energy = self._averages[number], self._energies[number]
        gradient = ops.cast(gradient, "float32")
        mean = _mixed(ops.cast(average.value, "float32"), gradient, self.momentum)
        mean_square = _mixed(energy.value, ops.mean(ops.square(gradient)), self.energy_decay)
        self.assign(average, mean)
        self.assign(energy, mean_square)
        step = self._rate * self._sizes[number].value / ops.sqrt(mean_square + _LEAST_ENERGY)
        self.assign_sub(variable, step * mean)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        return {
            "noise_walk": float(backend.array_of(self._learning_rate)),
            "momentum": self.momentum,
            "energy_decay": self.energy_decay,
            "name": self.name,
        }

    def __repr__(self) -> str:
        return printed(self, self.get_config())

    def _rate_of_step(self) -> Tensor:
        """Return a sqrt(3 / T) (1 - t / T) and the corrections, which all variables share."""
        first_step = ops.cast(self._first_step.value, self.iterations.dtype)
        done = ops.cast(self.iterations.value - first_step, "float32")
        num_steps = ops.cast(self._num_steps.value, "float32")
        left = ops.maximum(1.0 - done / num_steps, 0.0) * ops.sqrt(3.0 / num_steps)
        corrections = ops.sqrt(1.0 - self.energy_decay ** (done + 1.0)) / (
            1.0 - self.momentum ** (done + 1.0)
        )
        return ops.cast(self.learning_rate, "float32") * left * corrections

    def _measure(self) -> None:
        """Take the sizes of the weights as they are."""
        for size, variable in zip(self._sizes, self._trainable_variables, strict=True):
            size.assign(np.float32(_size_of(backend.array_of(variable))))


def _mixed(average: Tensor, value: Tensor, decay: float) -> Tensor:
    """Return the next value of an exponential average."""
    return decay * average + (1.0 - decay) * value


def _size_of(weights: np.ndarray) -> float:
    """Return the root mean square of initial weights, or what it should be for zeros.

    Args:
        weights: the value of a variable.
    """
    if weights.ndim < 2:
        return _SIZE_OF_VECTORS
    size = float(np.sqrt(np.mean(np.square(weights, dtype=np.float64))))
    if size > 0.0:
        return size
    # The variance of Glorot's initializer.
    fans = (weights.shape[-1] + weights.shape[-2]) * math.prod(weights.shape[:-2])
    return math.sqrt(2.0 / fans)
