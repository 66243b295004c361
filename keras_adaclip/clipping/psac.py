"""Normalization that gives short contributions no more weight than long ones.

    g_i  becomes  g_i * C / (||g_i|| + r / (||g_i|| + r))

Source: Xia et al. 2023, "Differentially private learning with per-sample adaptive clipping",
section 3 (DP-PSAC).
"""

import keras

from keras_adaclip.clipping.automatic import AutomaticClipping
from keras_adaclip.clipping.groups import Groups
from keras_adaclip.clipping.strategy import State, Tensor


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PSAC(AutomaticClipping):
    """Scale long contributions to just below one norm, and leave short ones short (DP-PSAC).

    Like `AutomaticClipping`, it has no threshold to tune: `clip_norm` only rescales the learning
    rate. `AutomaticClipping` multiplies the shortest contributions by up to
    `clip_norm / stabilizer`. Here the shortest ones are multiplied by `clip_norm`, and with a
    stabilizer r below 1 no factor is above `clip_norm / (2 * sqrt(r) - r)`.

    Args:
        clip_norm: positive float, the upper limit of the norms, in units of the gradient.
            With K groups it is the joint bound, `clip_norm / sqrt(K)` for each.
        stabilizer: positive float, the r of the formula.
        groups: `"flat"`, `"per_layer"`, or a function from a variable to its group's name.
        noise_allocation: `"global"`, `"proportional"` or `"optimal"`.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If an argument is not positive, or out of the range of float32 norms.

    Example:

    >>> import numpy as np
    >>> clipping = PSAC(stabilizer=0.01)
    >>> norms = np.array([[0.0], [0.1], [10.0]])
    >>> clipping.clip_factors({"clip_norm": 1.0}, norms).ravel().round(3)
    array([1.   , 5.238, 0.1  ])

    Reference:
        Xia et al. 2023, equation of DP-PSAC.
    """

    def __init__(
        self,
        clip_norm: float = 1.0,
        stabilizer: float = 0.1,
        groups: Groups = "flat",
        noise_allocation: str = "global",
    ) -> None:
        super().__init__(clip_norm, stabilizer, groups, noise_allocation)

    def clip_factors(self, state: State, norms: Tensor) -> Tensor:
        """Return `clip_norm / (norm + r / (norm + r))`, of shape `(batch_size, num_groups)`."""
        return state["clip_norm"] / (norms + self.stabilizer / (norms + self.stabilizer))
