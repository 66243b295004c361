"""A clipping norm that follows a schedule, independent of the data.

    C_t = schedule(t),  t the number of steps taken

Sources: Yu et al. 2018, Du et al. 2021 and Lin et al. 2022, each with its own schedule: see
`keras_adaclip.schedules`.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import schedules
from keras_adaclip.clipping.groups import CLIP_NORM_RANGE, Groups, ParameterGroups
from keras_adaclip.clipping.strategy import ClippingStrategy, Release, State


@keras.saving.register_keras_serializable(package="keras_adaclip")
class ScheduledClipping(ClippingStrategy):
    """Clip every contribution to a norm that a schedule sets for each step.

    The schedule is called with the optimizer's number of steps. It costs no privacy,
    provided that it was chosen without looking at the private data.

    Args:
        schedule: A schedule from `keras_adaclip.schedules`, a Keras `LearningRateSchedule`, or a
            serialized one; its values are clipping norms in units of the gradient. With K groups
            they are joint norms, and each group is clipped to `value / sqrt(K)`. Values out of
            the range of float32 norms, 1e-10 to 1e15, are moved into it.
        groups: `"flat"`, `"per_layer"`, or a function from a variable to its group's name.
        noise_allocation: `"global"`, `"proportional"` or `"optimal"`.

    Raises:
        TypeError: If `schedule` is not a schedule.
        ValueError: At the start of training, if the schedule counts in epochs and their length is
            unknown.

    Example:

    >>> from keras_adaclip.schedules import PowerDecay
    >>> clipping = ScheduledClipping(PowerDecay(1.0, power=0.5, steps_per_epoch=10))
    >>> float(clipping.initial_state(ParameterGroups.single())["clip_norm"][0])
    1.0

    Reference:
        Lin et al. 2022, "Understanding adaptive gradient clipping in DP-SGD, empirically",
        section 4.3.
    """

    def __init__(
        self, schedule: Any, groups: Groups = "flat", noise_allocation: str = "global"
    ) -> None:
        super().__init__(groups, noise_allocation)
        self.schedule = schedules.get(schedule)

    def initial_state(self, groups: ParameterGroups) -> dict[str, np.ndarray]:
        """Return the norm of each group, and the number of steps in an epoch (0 if unknown)."""
        # An approximation: `begin_run` sets the norm of the first step.
        first = self.schedule.value_at(0, 1)
        return {"clip_norm": groups.split_evenly(first), "steps_per_epoch": np.zeros((), np.int32)}

    def begin_run(
        self, state: dict[str, np.ndarray], step: int, steps_per_epoch: int | None
    ) -> dict[str, np.ndarray]:
        """Return the norm of the run's first step, and the number of steps in an epoch.

        Raises:
            ValueError: If the schedule counts in epochs and their length is unknown.
        """
        return {
            "clip_norm": self._clip_norm(state, step, steps_per_epoch),
            "steps_per_epoch": np.asarray(steps_per_epoch or 0, np.int32),
        }

    def update(self, state: State, release: Release) -> State:
        """Return the schedule's value after the steps taken."""
        value = self.schedule(release.step, state["steps_per_epoch"])
        share = ops.cast(value, "float32") / state["clip_norm"].shape[0] ** 0.5
        share = ops.clip(share, *CLIP_NORM_RANGE)
        return {**state, "clip_norm": ops.broadcast_to(share, state["clip_norm"].shape)}

    def clip_norm_of_step(self, state: State, step: int) -> np.ndarray:
        """Return the norms with which a step was clipped, of shape `(num_groups,)`."""
        return self._clip_norm(state, step, int(state["steps_per_epoch"]) or None)

    def _clip_norm(self, state: State, step: int, steps_per_epoch: int | None) -> np.ndarray:
        """Return the schedule's norm for a step, divided among the groups."""
        share = self.schedule.value_at(step, steps_per_epoch) / len(state["clip_norm"]) ** 0.5
        return np.full_like(state["clip_norm"], np.clip(share, *CLIP_NORM_RANGE))
