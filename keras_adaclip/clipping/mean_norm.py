"""A clipping norm that follows the private mean of the norms.

    R = k C_t
    mean = R (sum_i (min(||g_i||, R) / R - 1/2) + N(0, s^2)) / m + R / 2
    C_(t+1) = factor * mean,  kept positive

Source: van der Veen et al. 2018, "Three tools for practical differential privacy", section 3.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip.clipping import paid_statistics
from keras_adaclip.clipping._validation import (
    LARGEST_CLIP_NORM,
    SMALLEST_CLIP_NORM,
    optional,
    require_clip_norm,
    require_positive,
)
from keras_adaclip.clipping.groups import GroupsArgument, ParameterGroups
from keras_adaclip.clipping.joint_norm import split_evenly
from keras_adaclip.clipping.strategy import (
    ClippingStrategy,
    Release,
    State,
    Tensor,
    factors_down_to,
)


@keras.saving.register_keras_serializable(package="keras_adaclip")
class MeanNormClipping(ClippingStrategy):
    """Clips to the private mean norm of the previous batch.

    The mean costs privacy, paid for out of the one noise multiplier that the accountant sees:
    norms are cut off at `R = norm_bound_factor * clip_norm`, so that a unit moves
    `norm / R - 1/2` by 1/2, and with total `z` and noise `s` the sum is noised with
    `(z^-2 - K (2 s)^-2)^(-1/2)` for K groups.

    Args:
        initial_clip_norm: positive float, the norm of the first step, in units of the gradient;
            with K groups each begins with `initial_clip_norm / sqrt(K)`.
        factor: positive float, the clipping norm in units of the mean norm.
        norm_bound_factor: float above 1, at most 1e6, the cut-off R in units of the clipping norm;
            the norm grows by at most `factor * norm_bound_factor` a step.
        mean_noise_stddev: positive float, the standard deviation of the noise on the sum of the
            norms, in units of R; None means the expected number of units divided by 20.
        groups: `"flat"`, `"per_layer"`, or a function from a variable to its group's name.
        noise_allocation: `"global"`, `"proportional"` or `"optimal"`.

    Raises:
        TypeError: where an argument is not a number.
        ValueError: where an argument is out of range; at the start of training, where the noise
            on the mean is too small to pay for it.

    Guarantees:
        The sum and the mean norm of one step together are one Gaussian mechanism with the total
        noise multiplier, under addition or removal of one unit.

    Example:

    >>> of_sum, of_mean = MeanNormClipping().noise_split(1.0, expected_units=256)
    >>> round(of_sum, 6), of_mean
    (1.000764, 12.8)

    Reference:
        van der Veen et al. 2018, section 3.
    """

    def __init__(
        self,
        initial_clip_norm: float = 1.0,
        factor: float = 1.0,
        norm_bound_factor: float = 4.0,
        mean_noise_stddev: float | None = None,
        groups: GroupsArgument = "flat",
        noise_allocation: str = "global",
    ) -> None:
        super().__init__(groups, noise_allocation)
        self.initial_clip_norm = require_clip_norm("initial_clip_norm", initial_clip_norm)
        self.factor = require_positive("factor", factor)
        self.norm_bound_factor = require_positive("norm_bound_factor", norm_bound_factor)
        if not 1.0 < self.norm_bound_factor <= 1e6:
            raise ValueError(
                "Argument `norm_bound_factor` must be above 1, or the clipping norm could never "
                f"grow, and at most 1e6. Received: norm_bound_factor={norm_bound_factor!r}"
            )
        self.mean_noise_stddev = optional(require_positive, "mean_noise_stddev", mean_noise_stddev)

    def initial_state(self, groups: ParameterGroups) -> dict[str, np.ndarray]:
        """The norm of each group."""
        return {"clip_norm": split_evenly(self.initial_clip_norm, groups)}

    def clip_factors(self, state: State, norms: Tensor) -> Tensor:
        """`min(1, clip_norm / norm)`, of shape `(batch_size, num_groups)`."""
        return factors_down_to(state["clip_norm"], norms)

    def num_statistics(self, num_groups: int) -> int:
        """One norm for each group."""
        return num_groups

    def statistics(self, state: State, norms: Tensor, finite: Tensor) -> Tensor:
        """`min(norm, R) / R - 1/2`; 1/2 for a unit that is not finite."""
        shares = norms / (self.norm_bound_factor * state["clip_norm"])
        return ops.where(finite[:, None], ops.minimum(shares, 1.0), 1.0) - 0.5

    def noise_split(
        self, noise_multiplier: float, expected_units: float, num_groups: int = 1
    ) -> tuple[float, float]:
        """Noise multiplier of the sum and standard deviation of the noise on the mean's sum."""
        if noise_multiplier == 0.0:
            return 0.0, self.mean_noise_stddev or 0.0
        stddev = float(self.mean_noise_stddev or expected_units / 20.0)
        of_sum = paid_statistics.split(
            noise_multiplier, stddev, num_groups, type(self).__name__, "mean_noise_stddev"
        )
        return of_sum, stddev

    def update(self, state: State, release: Release) -> State:
        """The private mean norm times `factor`."""
        bound = self.norm_bound_factor * state["clip_norm"]
        mean = bound * (release.statistics / release.expected_units + 0.5)
        clip_norm = ops.clip(self.factor * mean, SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM)
        return {"clip_norm": clip_norm}

    def get_config(self) -> dict[str, Any]:
        """Every constructor argument under its own name."""
        return {
            "initial_clip_norm": self.initial_clip_norm,
            "factor": self.factor,
            "norm_bound_factor": self.norm_bound_factor,
            "mean_noise_stddev": self.mean_noise_stddev,
            **self._group_config(),
        }
