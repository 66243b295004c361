"""A constant clipping norm.

Sources: Abadi et al. 2016, "Deep learning with differential privacy", section 3.1; for groups,
McMahan et al. 2018, "Learning differentially private recurrent language models", section 2.3.
"""

from collections.abc import Sequence

import keras
import numpy as np

from keras_adaclip.clipping.groups import Groups, ParameterGroups, check_clip_norm
from keras_adaclip.clipping.strategy import ClippingStrategy


@keras.saving.register_keras_serializable(package="keras_adaclip")
class FixedClipping(ClippingStrategy):
    """Clip every contribution to a given norm.

    A contribution `g` becomes `g * min(1, clip_norm / ||g||)`.

    Args:
        clip_norm: Positive float, the largest Euclidean norm of a contribution, in the units of
            the gradient. With K groups it is the joint bound, and each group is clipped to
            `clip_norm / sqrt(K)`; a sequence gives the bound of each group.
        groups: `"flat"`, `"per_layer"`, or a function from a variable to its group's name.
        noise_allocation: `"global"`, `"proportional"` or `"optimal"`.

    Raises:
        TypeError: If `clip_norm` is neither a number nor a sequence of numbers.
        ValueError: If it is not positive, or out of the range of float32 norms; at the start of
            training, if the length of a sequence is not the number of groups.

    Example:

    >>> FixedClipping(0.5).clip_norm
    0.5

    Reference:
        Abadi et al. 2016, "Deep learning with differential privacy", algorithm 1.
    """

    is_constant = True

    def __init__(
        self,
        clip_norm: float | Sequence[float],
        groups: Groups = "flat",
        noise_allocation: str = "global",
    ) -> None:
        super().__init__(groups, noise_allocation)
        self.clip_norm: float | list[float]
        if isinstance(clip_norm, (list, tuple, np.ndarray)) and np.ndim(clip_norm) > 0:
            self.clip_norm = [check_clip_norm("clip_norm", value) for value in clip_norm]
        else:
            self.clip_norm = check_clip_norm("clip_norm", clip_norm)

    def initial_state(self, groups: ParameterGroups) -> dict[str, np.ndarray]:
        """Return the clipping norm of each group.

        Raises:
            ValueError: If the number of norms is not the number of groups.
        """
        if not isinstance(self.clip_norm, list):
            return {"clip_norm": groups.split_evenly(self.clip_norm)}
        if len(self.clip_norm) != groups.num_groups:
            raise ValueError(
                "Argument `clip_norm` must have one norm for each group, or be a single number. "
                f"Groups: {', '.join(groups.names)}. "
                f"Received: clip_norm={self.clip_norm}"
            )
        return {"clip_norm": np.asarray(self.clip_norm, np.float32)}
