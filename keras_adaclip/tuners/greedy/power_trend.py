"""The power law that is closest to a schedule.

    log C_t = log C - a log t + residual_t,      t = 1, 2, ... the epoch

with C and a by least squares in the logarithms, so that an epoch counts by how far it is off as a
ratio, whether its threshold is large or small.

Source: Lin et al. 2022, "Understanding adaptive gradient clipping in DP-SGD, empirically",
figure 5 and equation 11.
"""

import dataclasses
from typing import Self

import numpy as np

from keras_adaclip.schedules import PiecewiseConstant, PowerDecay

_LARGEST_POWER = 10.0


@dataclasses.dataclass(frozen=True)
class PowerTrend:
    """A `PowerDecay` near a schedule, and how near it is.

    Args:
        schedule: the `PowerDecay`.
        residual: root mean square of the logarithms of value over trend: 0 where the schedule is
            a power law, about 0.1 where values are off by ten per cent.

    Example:

    >>> trend = PowerTrend.of(PiecewiseConstant([1.0, 0.5, 0.25]))
    >>> print(f"power {trend.power:.2f}, residual {trend.residual:.2f}")
    power 1.23, residual 0.08

    Reference:
        Lin et al. 2022, "Understanding adaptive gradient clipping in DP-SGD, empirically".
    """

    schedule: PowerDecay
    residual: float

    @property
    def power(self) -> float:
        """The power of the epoch."""
        return self.schedule.power

    @classmethod
    def of(cls, schedule: PiecewiseConstant) -> Self:
        """The closest trend; where values grow, it has power 0.

        Args:
            schedule: values of two epochs or more.

        Raises:
            ValueError: where there is one value only, which tells nothing about the power.
        """
        logarithms = np.log(np.asarray(schedule.values, np.float64))
        if len(logarithms) < 2:
            raise ValueError(
                "A power law needs the values of two epochs at least. "
                f"Received: schedule={schedule!r}"
            )
        ages = np.log(np.arange(1, len(logarithms) + 1))
        centred = ages - ages.mean()
        slope = float(centred @ logarithms / (centred @ centred))
        power = min(max(-slope, 0.0), _LARGEST_POWER)
        level = float(np.mean(logarithms + power * ages))
        residuals = logarithms - (level - power * ages)
        decay = PowerDecay(float(np.exp(level)), power, schedule.steps_per_epoch)
        return cls(decay, float(np.sqrt(np.mean(residuals**2))))

    def __str__(self) -> str:
        return (
            f"clip_norm = {self.schedule.initial_value:.4g} / epoch^{self.power:.3g}, "
            f"residual {self.residual:.2g} (root mean square of the logarithms)"
        )
