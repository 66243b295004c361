"""Schedules: values that are fixed before training and change from step to step.

They set clipping norms and noise multipliers. A schedule does not look at the data, so it costs
no privacy by itself.
"""

from keras_adaclip.schedules.exponential_decay import ExponentialDecay
from keras_adaclip.schedules.keras_schedule import KerasSchedule, get
from keras_adaclip.schedules.linear_decay import LinearDecay
from keras_adaclip.schedules.piecewise_constant import PiecewiseConstant
from keras_adaclip.schedules.power_decay import PowerDecay
from keras_adaclip.schedules.schedule import Schedule

__all__ = [
    "ExponentialDecay",
    "KerasSchedule",
    "LinearDecay",
    "PiecewiseConstant",
    "PowerDecay",
    "Schedule",
    "get",
]
