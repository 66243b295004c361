"""A clipping norm that follows a quantile of the norms, privately.

Each unit also adds a bit, whether its norm is at most C; the noised mean of the bits moves C:

    b = (sum_i (bit_i - 1/2) + N(0, count_noise_stddev^2)) / m + 1/2
    geometric:  C <- C exp(-eta (b - gamma))        linear:  C <- C - eta (b - gamma)

Sources: Andrew et al. 2021, "Differentially private learning with adaptive clipping", section
2.1; Thakkar et al. 2019, "Differentially private learning with adaptive clipping" (version 1).
"""

import warnings
from typing import Any

import keras
from keras import ops

from keras_adaclip.clipping.strategy import (
    LARGEST_CLIP_NORM,
    SMALLEST_CLIP_NORM,
    ClippingStrategy,
    State,
    Tensor,
    factors_down_to,
    require_clip_norm,
    require_number,
    require_positive,
)


@keras.saving.register_keras_serializable(package="keras_adaclip")
class QuantileClipping(ClippingStrategy):
    """Clips to a private running estimate of a quantile of the contribution norms.

    The bits cost privacy, paid for out of the one noise multiplier that the accountant sees:
    with total `z` and count noise `s` the sum is noised with `(z^-2 - (2 s)^-2)^(-1/2)`, since
    `bit - 1/2` moves by 1/2 when a unit comes or goes.

    Args:
        target_quantile: float in [0, 1], the share of contributions that stays unclipped.
        initial_clip_norm: positive float, the norm of the first step, in units of the gradient.
        learning_rate: positive float, how fast the norm moves.
        count_noise_stddev: positive float, the standard deviation of the noise on the sum of the
            bits, in units; None means the expected number of units divided by 20.
        update: `"geometric"` or `"linear"`.
        min_clip_norm: positive float, the norm never falls below it; None means 1e-10, the
            smallest norm that float32 can clip to, for the geometric update and 1e-6 for the
            linear one.
        max_clip_norm: positive float, the norm never rises above it; None means 1e15.

    Raises:
        TypeError: where an argument is not a number.
        ValueError: where an argument is out of range; at the start of training, where the count
            noise is too small to pay for the bits.

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

    num_statistics = 1

    def __init__(
        self,
        target_quantile: float = 0.5,
        initial_clip_norm: float = 0.1,
        learning_rate: float = 0.2,
        count_noise_stddev: float | None = None,
        update: str = "geometric",
        min_clip_norm: float | None = None,
        max_clip_norm: float | None = None,
    ) -> None:
        self.target_quantile = require_number("target_quantile", target_quantile)
        if not 0.0 <= self.target_quantile <= 1.0:
            raise ValueError(
                "Argument `target_quantile` must lie between 0 and 1. "
                f"Received: target_quantile={target_quantile!r}"
            )
        if update not in ("geometric", "linear"):
            raise ValueError(
                f"Argument `update` must be 'geometric' or 'linear'. Received: update={update!r}"
            )
        self.initial_clip_norm = require_clip_norm("initial_clip_norm", initial_clip_norm)
        self.learning_rate = require_positive("learning_rate", learning_rate)
        self.count_noise_stddev = (
            None
            if count_noise_stddev is None
            else require_positive("count_noise_stddev", count_noise_stddev)
        )
        self.update_rule = update
        self.min_clip_norm = _optional_norm("min_clip_norm", min_clip_norm)
        self.max_clip_norm = _optional_norm("max_clip_norm", max_clip_norm)
        if not self._lowest <= self.initial_clip_norm <= self._highest:
            raise ValueError(
                "Argument `initial_clip_norm` must lie between `min_clip_norm` and "
                f"`max_clip_norm`. Received: initial_clip_norm={initial_clip_norm}, "
                f"min_clip_norm={min_clip_norm}, max_clip_norm={max_clip_norm}"
            )

    @property
    def _lowest(self) -> float:
        """Float32 must not reach zero, from which no factor leads back."""
        default = SMALLEST_CLIP_NORM if self.update_rule == "geometric" else 1e-6
        return self.min_clip_norm or min(default, self.initial_clip_norm)

    @property
    def _highest(self) -> float:
        return self.max_clip_norm or LARGEST_CLIP_NORM

    def initial_state(self) -> dict[str, float]:
        """The norm, and the noised share of unclipped units in the latest step."""
        return {"clip_norm": self.initial_clip_norm, "unclipped_fraction": 0.0}

    def clip_factors(self, state: State, norms: Tensor) -> Tensor:
        """`min(1, clip_norm / norm)`, of shape `(batch_size,)`."""
        return factors_down_to(state["clip_norm"], norms)

    def statistics(self, state: State, norms: Tensor, finite: Tensor) -> Tensor:
        """`bit - 1/2`, the bit being 1 where a finite norm is at most `clip_norm`."""
        unclipped = ops.logical_and(norms <= state["clip_norm"], finite)
        return ops.expand_dims(ops.where(unclipped, 0.5, -0.5), -1)

    def noise_split(self, noise_multiplier: float, expected_units: float) -> tuple[float, float]:
        """Noise multiplier of the sum and standard deviation of the count noise."""
        if noise_multiplier == 0.0:
            return 0.0, self.count_noise_stddev or 0.0
        stddev = self.count_noise_stddev or expected_units / 20.0
        if noise_multiplier >= 2.0 * stddev:
            raise ValueError(
                f"The noise multiplier {noise_multiplier:g} leaves nothing for the bits of "
                f"`QuantileClipping`, whose count noise has standard deviation {stddev:g}: the "
                "noise multiplier must be smaller than 2 * count_noise_stddev. Raise "
                "`count_noise_stddev` above "
                f"{noise_multiplier / 2.0:g}, or the batch size above {10 * noise_multiplier:g} "
                "where `count_noise_stddev` is None. "
                f"Received: noise_multiplier={noise_multiplier}, "
                f"count_noise_stddev={self.count_noise_stddev}"
            )
        of_sum = (noise_multiplier**-2 - (2.0 * stddev) ** -2) ** -0.5
        if of_sum >= 2.0 * noise_multiplier:
            warnings.warn(
                f"The bits of `QuantileClipping` take much of the budget: the sum is noised with "
                f"{of_sum:.3g} instead of {noise_multiplier:.3g}. Raise `count_noise_stddev` "
                f"(now {stddev:g}).",
                stacklevel=2,
            )
        return of_sum, stddev

    def update(self, state: State, statistics: Tensor, expected_units: Tensor) -> State:
        """Moves the norm by the noised share of unclipped units."""
        unclipped_fraction = statistics[0] / expected_units + 0.5
        excess = self.learning_rate * (unclipped_fraction - self.target_quantile)
        if self.update_rule == "geometric":
            clip_norm = state["clip_norm"] * ops.exp(-excess)
        else:
            clip_norm = state["clip_norm"] - excess
        return {
            "clip_norm": ops.clip(clip_norm, self._lowest, self._highest),
            "unclipped_fraction": unclipped_fraction,
        }

    def get_config(self) -> dict[str, Any]:
        """Every constructor argument under its own name."""
        return {
            "target_quantile": self.target_quantile,
            "initial_clip_norm": self.initial_clip_norm,
            "learning_rate": self.learning_rate,
            "count_noise_stddev": self.count_noise_stddev,
            "update": self.update_rule,
            "min_clip_norm": self.min_clip_norm,
            "max_clip_norm": self.max_clip_norm,
        }


def _optional_norm(name: str, value: float | None) -> float | None:
    return None if value is None else require_clip_norm(name, value)
