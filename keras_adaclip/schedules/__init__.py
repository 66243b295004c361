"""Schedules: values that are fixed before training and change from step to step.

They set clipping norms and noise multipliers. A schedule does not look at the data, so it costs
no privacy by itself.
"""

from keras_adaclip.schedules.schedule import (
    ExponentialDecay,
    KerasSchedule,
    LinearDecay,
    PiecewiseConstant,
    PowerDecay,
    Schedule,
    get,
)

__all__ = [
    "ExponentialDecay",
    "KerasSchedule",
    "LinearDecay",
    "PiecewiseConstant",
    "PowerDecay",
    "Schedule",
    "get",
]
