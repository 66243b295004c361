"""A clipping norm that follows a schedule, whatever the data are.

    C_t = schedule(t),  t the number of steps taken

Sources: Yu et al. 2018, Du et al. 2021 and Lin et al. 2022, each with a schedule of its own: see
`keras_adaclip.schedules`.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_adaclip import schedules
from keras_adaclip.clipping._validation import LARGEST_CLIP_NORM, SMALLEST_CLIP_NORM
from keras_adaclip.clipping.groups import GroupsArgument, ParameterGroups
from keras_adaclip.clipping.joint_norm import split_evenly
from keras_adaclip.clipping.strategy import (
    ClippingStrategy,
    Release,
    State,
    Tensor,
    factors_down_to,
)


@keras.saving.register_keras_serializable(package="keras_adaclip")
class ScheduledClipping(ClippingStrategy):
    """Clips every contribution to a norm that a schedule sets, step by step.

    The schedule is called with the optimizer's number of steps. It costs no privacy, as long as
    nobody chose it by looking at the private data.

    Args:
        schedule: a schedule from `keras_adaclip.schedules`, a Keras `LearningRateSchedule`, or a
            serialized one; its values are clipping norms in units of the gradient. With K groups
            they are joint norms, and each group is clipped to `value / sqrt(K)`. Values out of
            the range of float32 norms, 1e-10 to 1e15, are moved into it.
        groups: `"flat"`, `"per_layer"`, or a function from a variable to its group's name.
        noise_allocation: `"global"`, `"proportional"` or `"optimal"`.

    Raises:
        TypeError: where `schedule` is none.
        ValueError: at the start of training, where the schedule counts in epochs and their
            length is unknown.

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
        self, schedule: Any, groups: GroupsArgument = "flat", noise_allocation: str = "global"
    ) -> None:
        super().__init__(groups, noise_allocation)
        self.schedule = schedules.get(schedule)

    def initial_state(self, groups: ParameterGroups) -> dict[str, np.ndarray]:
        """The norm of each group, and the number of steps in an epoch (0 while unknown)."""
        # The first epoch's value, or near enough until the run begins, when it is set anew.
        first = self.schedule.value_at(0, 1)
        return {
            "clip_norm": split_evenly(first, groups),
            "steps_per_epoch": np.zeros((), np.int32),
        }

    def clip_factors(self, state: State, norms: Tensor) -> Tensor:
        """`min(1, clip_norm / norm)`, of shape `(batch_size, num_groups)`."""
        return factors_down_to(state["clip_norm"], norms)

    def begin_run(
        self, state: dict[str, np.ndarray], step: int, steps_per_epoch: int | None
    ) -> dict[str, np.ndarray]:
        """Sets the norm of the run's first step, and the number of steps in an epoch.

        Raises:
            ValueError: where the schedule counts in epochs and their length is unknown.
        """
        if self.schedule.needs_steps_per_epoch and not steps_per_epoch:
            raise ValueError(
                f"The schedule {type(self.schedule).__name__} counts in epochs, and how many "
                "steps an epoch has is not known here. Give it `steps_per_epoch`, or give "
                "`steps_per_epoch` to `fit`."
            )
        return {
            "clip_norm": self._clip_norm(state, step, steps_per_epoch),
            "steps_per_epoch": np.asarray(steps_per_epoch or 0, np.int32),
        }

    def update(self, state: State, release: Release) -> State:
        """The schedule's value after the steps taken."""
        value = self.schedule(release.step, state["steps_per_epoch"])
        share = ops.cast(value, "float32") / state["clip_norm"].shape[0] ** 0.5
        share = ops.clip(share, SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM)
        return {**state, "clip_norm": ops.broadcast_to(share, state["clip_norm"].shape)}

    def clip_norm_of_step(self, state: State, step: int) -> np.ndarray:
        """The norms with which a step was clipped, one a group.

        Args:
            state: the state as arrays.
            step: the number of the step, from 0.
        """
        return self._clip_norm(state, step, int(state["steps_per_epoch"]) or None)

    def _clip_norm(self, state: State, step: int, steps_per_epoch: int | None) -> np.ndarray:
        value = self.schedule.value_at(step, steps_per_epoch)
        names = tuple(str(number) for number in range(len(state["clip_norm"])))
        return split_evenly(value, ParameterGroups(names, (), ()))

    def get_config(self) -> dict[str, Any]:
        """Every constructor argument under its own name."""
        return {
            "schedule": keras.saving.serialize_keras_object(self.schedule),
            **self._group_config(),
        }
