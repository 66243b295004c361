"""One norm for a whole contribution, divided among its groups: `C_k = C / sqrt(K)`.

Source: McMahan et al. 2018, "Learning differentially private recurrent language models", section
2.3.
"""

import numpy as np

from keras_adaclip.clipping._validation import LARGEST_CLIP_NORM, SMALLEST_CLIP_NORM
from keras_adaclip.clipping.groups import ParameterGroups


def split_evenly(clip_norm: float, groups: ParameterGroups) -> np.ndarray:
    """The norms of groups whose joint norm is `clip_norm`, float32 of shape `(num_groups,)`.

    Example:

    >>> split_evenly(1.0, ParameterGroups(("a", "b", "c", "d"), (), ()))
    array([0.5, 0.5, 0.5, 0.5], dtype=float32)
    """
    share = clip_norm / groups.num_groups**0.5
    share = min(max(share, SMALLEST_CLIP_NORM), LARGEST_CLIP_NORM)
    return np.full(groups.num_groups, share, np.float32)
