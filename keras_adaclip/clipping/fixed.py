"""A clipping norm that stays what it is.

Source: Abadi et al. 2016, "Deep learning with differential privacy", section 3.1.
"""

from typing import Any

import keras

from keras_adaclip.clipping.strategy import (
    ClippingStrategy,
    State,
    Tensor,
    factors_down_to,
    require_clip_norm,
)


@keras.saving.register_keras_serializable(package="keras_adaclip")
class FixedClipping(ClippingStrategy):
    """Clips every contribution to one given norm.

    A contribution `g` becomes `g * min(1, clip_norm / ||g||)`.

    Args:
        clip_norm: positive float, the largest Euclidean norm of a contribution, in the units of
            the gradient.

    Raises:
        TypeError: where `clip_norm` is not a number.
        ValueError: where it is not positive, or out of the range of float32 norms.

    Example:

    >>> FixedClipping(0.5).get_config()
    {'clip_norm': 0.5}

    Reference:
        Abadi et al. 2016, "Deep learning with differential privacy", algorithm 1.
    """

    def __init__(self, clip_norm: float) -> None:
        self.clip_norm = require_clip_norm("clip_norm", clip_norm)

    def initial_state(self) -> dict[str, float]:
        """The clipping norm alone."""
        return {"clip_norm": self.clip_norm}

    def clip_factors(self, state: State, norms: Tensor) -> Tensor:
        """`min(1, clip_norm / norm)`, of shape `(batch_size,)`."""
        return factors_down_to(state["clip_norm"], norms)

    def get_config(self) -> dict[str, Any]:
        """Every constructor argument under its own name."""
        return {"clip_norm": self.clip_norm}
