"""Clipping in coordinates that are centred and scaled by earlier releases.

    w_i = (g_i - a) / b                      clipped to ||w_i|| <= 1
    g   = a + b (sum_i w_i + N(0, z^2 I)) / m
    v   = clamp((g - a)^2 - (b z / m)^2, min_variance, max_variance)
    a  <- beta1 a + (1 - beta1) g
    s^2 <- beta2 s^2 + (1 - beta2) v
    b   = sqrt(s sum_j s_j)

for each coordinate. With s_j the standard deviation of coordinate j, this scale makes the expected
squared norm of `w` one, at the least noise energy: minimize sum_j b_j^2 subject to
sum_j s_j^2 / b_j^2 = 1 gives b_j^2 = s_j sum_k s_k.

Source: Pichapati et al. 2019, "AdaCliP: adaptive clipping for private SGD", algorithm 2.
"""

import math
from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from keras_adaclip._checks import check_between, check_between_0_and_1
from keras_adaclip.clipping.groups import ParameterGroups
from keras_adaclip.clipping.strategy import ClippingStrategy, Release, State, Tensor

# The square of a larger centre is not finite in float32.
_LARGEST_CENTRE = 1e15
_VARIANCES = (1e-20, 1e20)


@keras.saving.register_keras_serializable(package="keras_adaclip")
class AdaClip(ClippingStrategy):
    """Clip each coordinate relative to its own mean and spread.

    Centre and scale are computed from earlier noised means alone, so they cost no privacy. A unit
    that is absent, padded or not finite adds zero in the new coordinates. Per-example
    gradients are written out, which takes memory of `batch_size` times the number of weights.

    Args:
        beta1: Float in [0, 1), decay rate of the centre.
        beta2: Float in [0, 1), decay rate of the variances.
        min_variance: Positive float, floor of a coordinate's variance in one step, in squared
            units of the gradient.
        max_variance: Positive float, its ceiling. The variances start at the geometric mean of
            the two.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If an argument is out of range.

    Guarantees:
        In the coordinates `(g - centre) / scale`, which are a function of earlier releases, one
        unit adds at most 1 (Euclidean), and the noise has standard deviation z in each of them.

    Example:

    >>> AdaClip(max_variance=1e-3, min_variance=1e-5).beta1
    0.9

    Reference:
        Pichapati et al. 2019, sections 3 and 4.
    """

    def __init__(
        self,
        beta1: float = 0.9,
        beta2: float = 0.99,
        min_variance: float = 1e-12,
        max_variance: float = 1.0,
    ) -> None:
        super().__init__()
        self.beta1 = check_between_0_and_1("beta1", beta1, with_0=True)
        self.beta2 = check_between_0_and_1("beta2", beta2, with_0=True)
        self.min_variance = check_between("min_variance", min_variance, *_VARIANCES)
        self.max_variance = check_between("max_variance", max_variance, *_VARIANCES)
        if self.min_variance > self.max_variance:
            raise ValueError(
                "Argument `min_variance` must not be above `max_variance`. "
                f"Received: min_variance={min_variance}, max_variance={max_variance}"
            )

    def initial_state(self, groups: ParameterGroups) -> dict[str, np.ndarray]:
        """Return the norm in the scaled coordinates, and centre and variance of each variable."""
        state = {"clip_norm": np.ones(1, np.float32)}
        variance = math.sqrt(self.min_variance * self.max_variance)
        for number, shape in enumerate(groups.shapes):
            state[f"centre_{number}"] = np.zeros(shape, np.float32)
            state[f"variance_{number}"] = np.full(shape, variance, np.float32)
        return state

    def coordinates(self, state: State, groups: ParameterGroups) -> list[tuple[Tensor, Tensor]]:
        """Return centre `a` and scale `b` of each variable."""
        return _coordinates(state, len(groups.shapes))

    def gradients(self, state: State, means: Sequence[Tensor]) -> list[Tensor]:
        """Return `a + b mean`, the noised means in the coordinates of the gradient."""
        pairs = _coordinates(state, len(means))
        return [centre + scale * mean for (centre, scale), mean in zip(pairs, means, strict=True)]

    def update(self, state: State, release: Release) -> State:
        """Move centres and variances towards the release."""
        pairs = _coordinates(state, len(release.means))
        gradients = self.gradients(state, release.means)
        updated = {"clip_norm": state["clip_norm"]}
        for number, ((centre, scale), gradient, stddev) in enumerate(
            zip(pairs, gradients, release.mean_stddevs, strict=True)
        ):
            moved = self.beta1 * centre + (1.0 - self.beta1) * gradient
            # The coordinates of the next step are finite, however large the noise was.
            updated[f"centre_{number}"] = ops.clip(moved, -_LARGEST_CENTRE, _LARGEST_CENTRE)
            # `g - a` is `b mean` with the old centre, which is independent of the noise in `g`. The
            # variance of that noise is subtracted.
            mean = release.means[number]
            spread = ops.square(scale) * (ops.square(mean) - ops.square(stddev))
            seen = ops.clip(spread, self.min_variance, self.max_variance)
            variance = state[f"variance_{number}"]
            updated[f"variance_{number}"] = self.beta2 * variance + (1.0 - self.beta2) * seen
        return updated


def _coordinates(state: State, num_variables: int) -> list[tuple[Tensor, Tensor]]:
    """Return centre and scale of each variable."""
    stddevs = [ops.sqrt(state[f"variance_{number}"]) for number in range(num_variables)]
    sums = [ops.sum(stddev) for stddev in stddevs]
    total = sum(sums[1:], sums[0])
    return [
        (state[f"centre_{number}"], ops.sqrt(stddev * total))
        for number, stddev in enumerate(stddevs)
    ]
