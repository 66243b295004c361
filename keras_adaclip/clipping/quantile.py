"""A clipping norm that follows a quantile of the norms, privately.

Each unit also adds a bit: whether its norm is at most C. The noised mean of the bits moves C:

    b = (sum_i (bit_i - 1/2) + N(0, count_noise_stddev^2)) / m + 1/2
    geometric:  C <- C exp(-eta (b - gamma))        linear:  C <- C - eta (b - gamma)

Each group has its own bits and its own norm.

Sources: Andrew et al. 2021, "Differentially private learning with adaptive clipping", section
2.1; Thakkar et al. 2019, "Differentially private learning with adaptive clipping" (version 1).
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip._checks import check_between, check_choice, check_positive, optional
from keras_adaclip.clipping.groups import CLIP_NORM_RANGE, Groups, ParameterGroups, check_clip_norm
from keras_adaclip.clipping.strategy import AdaptiveClipping, Release, State, Tensor


@keras.saving.register_keras_serializable(package="keras_adaclip")
class QuantileClipping(AdaptiveClipping):
    """Clip to a private running estimate of a quantile of the contribution norms.

    The bits cost privacy, which is paid for out of the noise multiplier that the accountant sees:
    with total `z`, count noise `s` and K groups the sum is noised with
    `(z^-2 - K (2 s)^-2)^(-1/2)`, because adding or removing a unit moves each sum of
    `bit - 1/2` by 1/2.

    Args:
        target_quantile: Float in [0, 1], the share of contributions that stays unclipped.
        initial_clip_norm: Positive float, the norm of the first step, in units of the gradient;
            with K groups each begins with `initial_clip_norm / sqrt(K)`.
        learning_rate: Positive float, how fast the norm moves.
        count_noise_stddev: Positive float, the standard deviation of the noise on the sum of the
            bits, in units; None means the expected number of units divided by 20.
        update: `"geometric"` or `"linear"`.
        min_clip_norm: Positive float, lower bound of the norm; None means 1e-10, the
            smallest norm that float32 can clip to, for the geometric update and 1e-6 for the
            linear one. With groups, it is the bound of each. Without a bound the norm sinks as most
            examples fit, and cuts off the others (Zhao et al. 2025).
        max_clip_norm: Positive float, upper bound of the norm; None means 1e15.
        groups: `"flat"`, `"per_layer"`, or a function from a variable to its group's name.
        noise_allocation: `"global"`, `"proportional"` or `"optimal"`.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If an argument is out of range; at the start of training, if the count noise
            is too small to pay for the bits.

    Guarantees:
        The sum and the bits of one step together are one Gaussian mechanism with the total noise
        multiplier, under addition or removal of one unit. The clipping norms are therefore
        private outputs; the raw bits and norms are not.

    Example:

    >>> clipping = QuantileClipping(target_quantile=0.7)
    >>> sum_noise_multiplier, count_noise = clipping.noise_split(1.0, expected_units=256)
    >>> round(sum_noise_multiplier, 6), count_noise
    (1.000764, 12.8)

    Reference:
        Andrew et al. 2021, section 2.1 and algorithm 1.
    """

    _stddev_argument = "count_noise_stddev"

    def __init__(
        self,
        target_quantile: float = 0.5,
        initial_clip_norm: float = 0.1,
        learning_rate: float = 0.2,
        count_noise_stddev: float | None = None,
        update: str = "geometric",
        min_clip_norm: float | None = None,
        max_clip_norm: float | None = None,
        groups: Groups = "flat",
        noise_allocation: str = "global",
    ) -> None:
        super().__init__(groups, noise_allocation)
        self.target_quantile = check_between("target_quantile", target_quantile, 0.0, 1.0)
        self.initial_clip_norm = check_clip_norm("initial_clip_norm", initial_clip_norm)
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.count_noise_stddev = optional(check_positive, "count_noise_stddev", count_noise_stddev)
        self.update_rule = check_choice("update", update, ("geometric", "linear"))
        self.min_clip_norm = optional(check_clip_norm, "min_clip_norm", min_clip_norm)
        self.max_clip_norm = optional(check_clip_norm, "max_clip_norm", max_clip_norm)
        # The lower bound is above zero, from which no factor leads back.
        smallest, largest = CLIP_NORM_RANGE
        default = smallest if self.update_rule == "geometric" else 1e-6
        self._lowest = self.min_clip_norm or min(default, self.initial_clip_norm)
        self._highest = self.max_clip_norm or largest
        if not self._lowest <= self.initial_clip_norm <= self._highest:
            raise ValueError(
                "Argument `initial_clip_norm` must lie between `min_clip_norm` and "
                f"`max_clip_norm`. Received: initial_clip_norm={initial_clip_norm}, "
                f"min_clip_norm={min_clip_norm}, max_clip_norm={max_clip_norm}"
            )

    def initial_state(self, groups: ParameterGroups) -> dict[str, np.ndarray]:
        """Return the norms, and the noised shares of unclipped units in the latest step."""
        clip_norms = groups.split_evenly(self.initial_clip_norm)
        clip_norms = np.clip(clip_norms, np.float32(self._lowest), np.float32(self._highest))
        shares = np.zeros(groups.num_groups, np.float32)
        return {"clip_norm": clip_norms, "unclipped_fraction": shares}

    def statistics(self, state: State, norms: Tensor, finite: Tensor) -> Tensor:
        """Return `bit - 1/2`; the bit is 1 if the norm is finite and at most `clip_norm`."""
        unclipped = ops.logical_and(norms <= state["clip_norm"], finite[:, None])
        return ops.where(unclipped, 0.5, -0.5)

    def update(self, state: State, release: Release) -> State:
        """Move the norms by the noised shares of unclipped units."""
        unclipped_fraction = release.statistics / release.expected_units + 0.5
        excess = self.learning_rate * (unclipped_fraction - self.target_quantile)
        if self.update_rule == "geometric":
            clip_norm = state["clip_norm"] * ops.exp(-excess)
        else:
            clip_norm = state["clip_norm"] - excess
        return {
            "clip_norm": ops.clip(clip_norm, self._lowest, self._highest),
            "unclipped_fraction": unclipped_fraction,
        }

    def _argument(self, name: str) -> Any:
        """Return a constructor argument."""
        # `update` is also a method.
        return self.update_rule if name == "update" else super()._argument(name)
