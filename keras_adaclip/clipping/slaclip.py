"""A clipping norm that follows what contributions leave unused of it, at no cost of privacy.

A clipped contribution of norm n leaves C - n of the clipping norm C. It fills slots 1 to K:

    v_j = (C / sqrt(K)) min(max(K (1 - n / C) - (j - 1), 0), 1)

so that n^2 + v_1^2 + ... + v_K^2 <= C^2: contribution and slots together are no longer than a
contribution alone may be. Only the first slot and the last are used. The noised means s_j of
v_j sqrt(K) / C move C:

    r = min(max(s_K / C, -1), 1)
    C <- C exp(eta ((1 + r) / 2 - s_1))

s_1 is a smooth share of unclipped contributions, and s_K one of those that are shorter than C / K.

Source: Zou et al. 2026, "SlaClip: gradient norm slacks can be indicator for adaptive clipping in
DP-SGD" (ICML), and the code of its authors, github.com/ZsyRock/SlaClip. Appendix C of the paper
cuts r off at zero, which lets noise raise C.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_adaclip._checks import check_integer, check_positive
from keras_adaclip.clipping.groups import CLIP_NORM_RANGE, ParameterGroups, check_clip_norm
from keras_adaclip.clipping.strategy import ClippingStrategy, Release, State, Tensor

# So that the rounding of a slot never lets it pass its bound.
_ROUNDING = 1.0 - 1e-6


@keras.saving.register_keras_serializable(package="keras_adaclip")
class SlaClip(ClippingStrategy):
    """Clip to a norm that follows how much of it the contributions leave unused.

    The norm rises where most contributions are clipped. Above 1 it falls where most are far
    shorter. Below 1 it hardly falls, so that it does not sink as a median does: the rule compares a
    share with the norm itself, and depends on the scale of the loss. Where contributions are far
    below 1, begin with a small norm.

    Args:
        initial_clip_norm: Positive float, the norm of the first step, in units of the gradient.
        num_slots: Integer from 2, the K of the formula. The noise on each of the means is
            `noise_multiplier * sqrt(K) / expected_units`; the authors recommend at most
            `(expected_units / (5.15 * noise_multiplier)) ** (2 / 3)`.
        learning_rate: Positive float, how fast the norm moves.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If an argument is out of range.

    Guarantees:
        Contribution and slots of one unit together are no longer than the clipping norm, and both
        get the same noise. The sums of both are one Gaussian mechanism with the total noise
        multiplier, under addition or removal of one unit, and the sum of contributions has no more
        noise than that of a fixed norm.

    Example:

    >>> clipping = SlaClip(num_slots=16)
    >>> clipping.noise_split(1.5, expected_units=256)
    (1.5, 1.5)

    Reference:
        Zou et al. 2026, and the code of its authors.
    """

    statistic_bound = 0.5**0.5
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
        """Return how full the first and the last slot are, over `C`: up to `1 / sqrt(K)`."""
        filled = self.num_slots * (1.0 - norms / state["clip_norm"])
        slots = ops.concatenate([filled, filled - (self.num_slots - 1.0)], axis=1)
        slots = ops.clip(slots, 0.0, 1.0) * (_ROUNDING / math.sqrt(self.num_slots))
        return ops.where(finite[:, None], slots, 0.0)

    def noise_split(
        self, noise_multiplier: float, expected_units: float, num_groups: int = 1
    ) -> tuple[float, float]:
        """Return the total for the sum, and the same noise for the slots."""
        return noise_multiplier, noise_multiplier

    def update(self, state: State, release: Release) -> State:
        """Move the norm by the noised means of the two slots."""
        means = release.statistics * (math.sqrt(self.num_slots) / release.expected_units)
        clip_norm = state["clip_norm"]
        target = 0.5 + 0.5 * ops.clip(means[1] / clip_norm, -1.0, 1.0)
        clip_norm = clip_norm * ops.exp(self.learning_rate * (target - means[0]))
        return {"clip_norm": ops.clip(clip_norm, *CLIP_NORM_RANGE)}
