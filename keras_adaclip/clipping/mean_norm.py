"""A clipping norm that follows the private mean of the norms.

    R = k C_t
    mean = R (sum_i (min(||g_i||, R) / R - 1/2) + N(0, s^2)) / m + R / 2
    C_(t+1) = factor * mean,  kept positive

Source: van der Veen et al. 2018, "Three tools for practical differential privacy", section 3.
"""

import keras
import numpy as np
from keras import ops

from keras_adaclip._checks import check_positive, optional
from keras_adaclip.clipping.groups import CLIP_NORM_RANGE, Groups, ParameterGroups, check_clip_norm
from keras_adaclip.clipping.strategy import AdaptiveClipping, Release, State, Tensor


@keras.saving.register_keras_serializable(package="keras_adaclip")
class MeanNormClipping(AdaptiveClipping):
    """Clip to the private mean norm of the previous batch.

    The mean costs privacy, which is paid for out of the noise multiplier that the accountant sees:
    norms are cut off at `R = norm_bound_factor * clip_norm`, so that adding or removing a unit
    moves the sum of `norm / R - 1/2` by at most 1/2. With total `z`, noise `s` and K groups the sum
    of contributions is noised with `(z^-2 - K (2 s)^-2)^(-1/2)`.

    Args:
        initial_clip_norm: Positive float, the norm of the first step, in units of the gradient;
            with K groups each begins with `initial_clip_norm / sqrt(K)`.
        factor: Positive float, the clipping norm in units of the mean norm.
        norm_bound_factor: Float above 1, at most 1e6, the cut-off R in units of the clipping norm;
            the norm grows by at most `factor * norm_bound_factor` a step.
        mean_noise_stddev: Positive float, the standard deviation of the noise on the sum of the
            norms, in units of R; None means the expected number of units divided by 20.
        groups: `"flat"`, `"per_layer"`, or a function from a variable to its group's name.
        noise_allocation: `"global"`, `"proportional"` or `"optimal"`.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If an argument is out of range; at the start of training, if the noise on the
            mean is too small to pay for it.

    Guarantees:
        The sum and the mean norm of one step together are one Gaussian mechanism with the total
        noise multiplier, under addition or removal of one unit.

    Example:

    >>> clipping = MeanNormClipping()
    >>> sum_noise_multiplier, mean_noise = clipping.noise_split(1.0, expected_units=256)
    >>> round(sum_noise_multiplier, 6), mean_noise
    (1.000764, 12.8)

    Reference:
        van der Veen et al. 2018, section 3.
    """

    _stddev_argument = "mean_noise_stddev"

    def __init__(
        self,
        initial_clip_norm: float = 1.0,
        factor: float = 1.0,
        norm_bound_factor: float = 4.0,
        mean_noise_stddev: float | None = None,
        groups: Groups = "flat",
        noise_allocation: str = "global",
    ) -> None:
        super().__init__(groups, noise_allocation)
        self.initial_clip_norm = check_clip_norm("initial_clip_norm", initial_clip_norm)
        self.factor = check_positive("factor", factor)
        self.norm_bound_factor = check_positive("norm_bound_factor", norm_bound_factor)
        if not 1.0 < self.norm_bound_factor <= 1e6:
            raise ValueError(
                "Argument `norm_bound_factor` must be above 1, or the clipping norm could never "
                f"grow, and at most 1e6. Received: norm_bound_factor={norm_bound_factor!r}"
            )
        self.mean_noise_stddev = optional(check_positive, "mean_noise_stddev", mean_noise_stddev)

    def initial_state(self, groups: ParameterGroups) -> dict[str, np.ndarray]:
        """Return the norm of each group."""
        return {"clip_norm": groups.split_evenly(self.initial_clip_norm)}

    def statistics(self, state: State, norms: Tensor, finite: Tensor) -> Tensor:
        """Return `min(norm, R) / R - 1/2`; 1/2 for a unit that is not finite."""
        shares = norms / (self.norm_bound_factor * state["clip_norm"])
        return ops.where(finite[:, None], ops.minimum(shares, 1.0), 1.0) - 0.5

    def update(self, state: State, release: Release) -> State:
        """Return the private mean norm times `factor`."""
        bound = self.norm_bound_factor * state["clip_norm"]
        mean = bound * (release.statistics / release.expected_units + 0.5)
        clip_norm = ops.clip(self.factor * mean, *CLIP_NORM_RANGE)
        return {"clip_norm": clip_norm}
