"""A clipping norm that follows what contributions leave unused of it, at no cost of privacy.

A clipped contribution of norm n leaves C - n of the clipping norm C. It fills slots 1 to K:

    v_j = (C / sqrt(K)) min(max(K (1 - n / C) - (j - 1), 0), 1)

so that n^2 + v_1^2 + ... + v_K^2 <= C^2: contribution and slots together are no longer than a
contribution alone may be. The noised means s_j of v_j sqrt(K) / C, of which only the first and the
last are used, move C:

    r = min(max(s_K / C, 0), 1)
    C <- C exp(eta ((1 + r) / 2 - s_1))

s_1 is a smooth share of unclipped contributions, and s_K one of those that are shorter than C / K.

Source: Zou et al. 2026, "SlaClip: gradient norm slacks can be indicator for adaptive clipping in
DP-SGD" (ICML), equations 6 to 11 and 28 to 30, as its authors' code states them.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_adaclip._checks import check_integer, check_positive
from keras_adaclip.clipping.groups import CLIP_NORM_RANGE, ParameterGroups, check_clip_norm
from keras_adaclip.clipping.strategy import ClippingStrategy, Release, State, Tensor


@keras.saving.register_keras_serializable(package="keras_adaclip")
class SlaClip(ClippingStrategy):
    """Clip to a norm that follows how much of it the contributions leave unused.

    The norm falls where most contributions are far shorter, and rises where most are clipped. Norms
    far below 1 rise again, so that it does not sink as a median does.

    Args:
        initial_clip_norm: positive float, the norm of the first step, in units of the gradient.
        num_slots: integer from 2, the K of the formula. The noise on a mean is
            `noise_multiplier * sqrt(K) / expected_units`; the authors recommend at most
            `(expected_units / (5.15 * noise_multiplier)) ** (2 / 3)`.
        learning_rate: positive float, how fast the norm moves.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If an argument is out of range.

    Guarantees:
        Contribution and slots of one unit together have at most the clipping norm, so that the sums
        of both are one Gaussian mechanism with the total noise multiplier: the sum of contributions
        has no more noise than that of a fixed norm. Under addition or removal of one unit.

    Example:

    >>> clipping = SlaClip(num_slots=16)
    >>> clipping.noise_split(1.5, expected_units=256)
    (1.5, 6.0)

    Reference:
        Zou et al. 2026, section 4.
    """

    statistic_bound = 1.0
    statistics_fit_the_norm = True

    def __init__(
        self, initial_clip_norm: float = 1.0, num_slots: int = 10, learning_rate: float = 0.2
    ) -> None:
        super().__init__()
        self.initial_clip_norm = check_clip_norm("initial_clip_norm", initial_clip_norm)
        self.num_slots = check_integer("num_slots", num_slots, minimum=2)
        self.learning_rate = check_positive("learning_rate", learning_rate)

    def initial_state(self, groups: ParameterGroups) -> dict[str, np.ndarray]:
        """Return the norm."""
        return {"clip_norm": groups.split_evenly(self.initial_clip_norm)}

    def num_statistics(self, num_groups: int) -> int:
        """Return two: the first slot and the last."""
        return 2

    def statistics(self, state: State, norms: Tensor, finite: Tensor) -> Tensor:
        """Return how full the first and the last slot are, between 0 and 1."""
        filled = self.num_slots * (1.0 - norms / state["clip_norm"])
        slots = ops.concatenate([filled, filled - (self.num_slots - 1.0)], axis=1)
        return ops.where(finite[:, None], ops.clip(slots, 0.0, 1.0), 0.0)

    def noise_split(
        self, noise_multiplier: float, expected_units: float, num_groups: int = 1
    ) -> tuple[float, float]:
        """Return the total for the sum, and the same noise in units of a slot."""
        return noise_multiplier, noise_multiplier * math.sqrt(self.num_slots)

    def update(self, state: State, release: Release) -> State:
        """Move the norm by the noised means of the two slots."""
        means, clip_norm = release.statistics / release.expected_units, state["clip_norm"]
        target = 0.5 + 0.5 * ops.clip(means[1] / clip_norm, 0.0, 1.0)
        clip_norm = clip_norm * ops.exp(self.learning_rate * (target - means[0]))
        return {"clip_norm": ops.clip(clip_norm, *CLIP_NORM_RANGE)}
