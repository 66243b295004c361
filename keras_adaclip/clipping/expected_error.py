"""A clipping norm that balances the noise against what clipping cuts off, privately.

The expected squared error of a clipped and noised mean is at most

    E(C) = a C^2 + mean_i max(||g_i|| - C, 0)^2,    a C^2 = energy of the noise in the mean

and is least where the mean excess max(||g_i|| - C, 0) is a C. A private mean excess e moves C
there:

    R = 2 (1 + a) C
    e = R (sum_i (min(max(||g_i|| - C, 0) / R, 1) - 1/2) + N(0, s^2)) / m + R / 2
    C <- C exp(eta (e / C - a) / (a + R s / (C m))),  at most 3 eta in the exponent

The exponent is in units of what can be told apart: of the noise of e, and of a.

Source: Wei et al. 2025, "DC-SGD: differentially private SGD with dynamic clipping through gradient
norm distribution estimation", whose DC-SGD-E minimizes the same error over a private histogram of
the norms. Its derivative needs a single statistic.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_adaclip._checks import check_positive, optional
from keras_adaclip.clipping.groups import CLIP_NORM_RANGE, Groups, ParameterGroups, check_clip_norm
from keras_adaclip.clipping.strategy import AdaptiveClipping, Release, State, Tensor

_BOUND_FACTOR, _MOST_NOISE, _LONGEST_MOVE = 2.0, 1e12, 3.0


@keras.saving.register_keras_serializable(package="keras_adaclip")
class ExpectedErrorClipping(AdaptiveClipping):
    """Clip to the norm with the least expected error of the noised mean.

    A larger norm brings more noise, a smaller one cuts off more. Which of them weighs more depends
    on noise multiplier, batch size and number of weights; the strategy knows the energy of the
    noise, and follows the private mean of what is cut off.

    The mean costs privacy, which is paid for out of the noise multiplier that the accountant sees:
    adding or removing a unit moves each sum by at most 1/2. With total `z`, noise `s` and K groups
    the sum of contributions is noised with `(z^-2 - K (2 s)^-2)^(-1/2)`.

    Args:
        initial_clip_norm: Positive float, the norm of the first step, in units of the gradient;
            with K groups each begins with `initial_clip_norm / sqrt(K)`.
        learning_rate: Positive float, how fast the norm moves.
        excess_noise_stddev: Positive float, the standard deviation of the noise on the sum of the
            excesses, in units of R; None means the expected number of units divided by 20.
        groups: `"flat"`, `"per_layer"`, or a function from a variable to its group's name.
        noise_allocation: `"global"`, `"proportional"` or `"optimal"`.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If an argument is out of range; at the start of training, if the noise on the
            mean is too small to pay for it.

    Guarantees:
        The sum and the mean excess of one step together are one Gaussian mechanism with the total
        noise multiplier, under addition or removal of one unit.

    Example:

    >>> clipping = ExpectedErrorClipping()
    >>> sum_noise_multiplier, excess_noise = clipping.noise_split(1.0, expected_units=256)
    >>> round(sum_noise_multiplier, 6), excess_noise
    (1.000764, 12.8)

    Reference:
        Wei et al. 2025, the error that DC-SGD-E minimizes.
    """

    _stddev_argument = "excess_noise_stddev"

    def __init__(
        self,
        initial_clip_norm: float = 1.0,
        learning_rate: float = 0.2,
        excess_noise_stddev: float | None = None,
        groups: Groups = "flat",
        noise_allocation: str = "global",
    ) -> None:
        super().__init__(groups, noise_allocation)
        self.initial_clip_norm = check_clip_norm("initial_clip_norm", initial_clip_norm)
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.excess_noise_stddev = optional(
            check_positive, "excess_noise_stddev", excess_noise_stddev
        )

    def initial_state(self, groups: ParameterGroups) -> dict[str, np.ndarray]:
        """Return norms, energies of the noise over squared norms, and each variable's size."""
        sizes = np.zeros((groups.num_groups, len(groups.shapes)), np.float32)
        for number, shape in enumerate(groups.shapes):
            sizes[groups.assignment[number], number] = math.prod(shape)
        return {
            "clip_norm": groups.split_evenly(self.initial_clip_norm),
            # Of the noise in the latest step; the first step does not know it.
            "relative_noise": np.zeros(groups.num_groups, np.float32),
            "sizes": sizes,
        }

    def statistics(self, state: State, norms: Tensor, finite: Tensor) -> Tensor:
        """Return `min(excess / R, 1) - 1/2`; 1/2 for a unit that is not finite."""
        excesses = ops.maximum(norms - state["clip_norm"], 0.0)
        shares = ops.minimum(excesses / self._bound(state), 1.0)
        return ops.where(finite[:, None], shares, 1.0) - 0.5

    def update(self, state: State, release: Release) -> State:
        """Move the norms to where the private mean excess is that of the least error."""
        clip_norm, expected_units = state["clip_norm"], release.expected_units
        bound = _BOUND_FACTOR * (1.0 + state["relative_noise"])
        mean_excess = bound * (release.statistics / expected_units + 0.5)
        stddev = self.excess_noise_stddev
        of_mean = bound * (0.05 if stddev is None else stddev / expected_units)
        variances = ops.square(ops.stack(list(release.mean_stddevs)) / ops.max(clip_norm))
        energies = ops.matmul(state["sizes"], variances[:, None])[:, 0]
        relative_noise = energies * ops.square(ops.max(clip_norm) / clip_norm)
        relative_noise = ops.minimum(relative_noise, _MOST_NOISE)
        move = (mean_excess - relative_noise) / (relative_noise + of_mean)
        move = self.learning_rate * ops.clip(move, -_LONGEST_MOVE, _LONGEST_MOVE)
        return {
            "clip_norm": ops.clip(clip_norm * ops.exp(move), *CLIP_NORM_RANGE),
            "relative_noise": relative_noise,
            "sizes": state["sizes"],
        }

    def _bound(self, state: State) -> Tensor:
        """Return R, at which excesses are cut off, for each group."""
        return _BOUND_FACTOR * (1.0 + state["relative_noise"]) * state["clip_norm"]
