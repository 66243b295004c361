"""Normalization instead of clipping.

    AUTO-S      g_i  becomes  g_i * C / (||g_i|| + gamma)
    DP-PSAC     g_i  becomes  g_i * C / (||g_i|| + r / (||g_i|| + r))

DP-PSAC gives short contributions no more weight than long ones.

Sources: Bu et al. 2023, "Automatic clipping: differentially private deep learning made easier and
stronger", section 3 (AUTO-S); Xia et al. 2023, "Differentially private learning with per-sample
adaptive clipping", section 3 (DP-PSAC).
"""

import keras
import numpy as np

from keras_adaclip.clipping.groups import Groups, ParameterGroups, check_clip_norm
from keras_adaclip.clipping.strategy import ClippingStrategy, State, Tensor


@keras.saving.register_keras_serializable(package="keras_adaclip")
class AutomaticClipping(ClippingStrategy):
    """Scale every contribution, long or short, to just below one norm (AUTO-S).

    There is no threshold to tune: `clip_norm` scales sum and noise alike, and so only rescales
    the learning rate (with Adam, it changes nothing). The stabilizer keeps very short
    contributions from growing to full length.

    Args:
        clip_norm: Positive float, the upper limit of the norms, in units of the gradient.
            With K groups it is the joint bound, `clip_norm / sqrt(K)` for each.
        stabilizer: Positive float, added to each norm before dividing by it.
        groups: `"flat"`, `"per_layer"`, or a function from a variable to its group's name.
        noise_allocation: `"global"`, `"proportional"` or `"optimal"`.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If an argument is not positive, or out of the range of float32 norms.

    Example:

    >>> AutomaticClipping().stabilizer
    0.01

    Reference:
        Bu et al. 2023, "Automatic clipping", equation of AUTO-S.
    """

    is_constant = True

    def __init__(
        self,
        clip_norm: float = 1.0,
        stabilizer: float = 0.01,
        groups: Groups = "flat",
        noise_allocation: str = "global",
    ) -> None:
        super().__init__(groups, noise_allocation)
        self.clip_norm = check_clip_norm("clip_norm", clip_norm)
        # A norm that reads 0 in float32 must still be shorter than the stabilizer.
        self.stabilizer = check_clip_norm("stabilizer", stabilizer)

    def initial_state(self, groups: ParameterGroups) -> dict[str, np.ndarray]:
        """Return the bound of each group."""
        return {"clip_norm": groups.split_evenly(self.clip_norm)}

    def clip_factors(self, state: State, norms: Tensor) -> Tensor:
        """Return `clip_norm / (norm + stabilizer)`, of shape `(batch_size, num_groups)`."""
        return state["clip_norm"] / (norms + self.stabilizer)


@keras.saving.register_keras_serializable(package="keras_adaclip")
class PSAC(AutomaticClipping):
    """Scale long contributions to just below one norm, and leave short ones short (DP-PSAC).

    Like `AutomaticClipping`, it has no threshold to tune: `clip_norm` only rescales the learning
    rate. `AutomaticClipping` multiplies the shortest contributions by up to
    `clip_norm / stabilizer`. Here the shortest ones are multiplied by `clip_norm`, and with a
    stabilizer r below 1 no factor is above `clip_norm / (2 * sqrt(r) - r)`.

    Args:
        clip_norm: Positive float, the upper limit of the norms, in units of the gradient.
            With K groups it is the joint bound, `clip_norm / sqrt(K)` for each.
        stabilizer: Positive float, the r of the formula.
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
