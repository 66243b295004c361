"""The noise of a trial, epoch by epoch, before the trial runs.

    z_e = f s(e),  f the least factor with epsilon(z_0, z_1, ...) <= target_epsilon

with s the shape of the noise schedule and e the epoch from 0.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from keras_adaclip.accounting import (
    Ledger,
    LedgerRow,
    Sampling,
    calibrate_noise_multiplier,
)
from keras_adaclip.schedules import ExponentialDecay, LinearDecay, PiecewiseConstant, Schedule

# From a number of epochs to a schedule that counts in epochs and begins with one.
_SHAPES: Mapping[str, Callable[[int], Schedule]] = MappingProxyType(
    {
        "linear": lambda epochs: LinearDecay(1.0, epochs),
        "exponential": lambda epochs: ExponentialDecay(1.0, 2.0, epochs),
        "growing": lambda epochs: ExponentialDecay(1.0, 0.5, epochs),
    }
)
NOISE_SCHEDULES = ("constant", *_SHAPES)

# Every other value is a mechanism of its own: they take time to compose, and rows of the ledger.
_MOST_STAGES = 20


@dataclasses.dataclass(frozen=True)
class PlannedNoise:
    """The noise multiplier of each epoch of a Poisson-sampled run.

    Args:
        noise_multipliers: one an epoch.
        batch_size: expected number of examples in a step.
        num_examples: number of examples in the training data.
    """

    noise_multipliers: tuple[float, ...]
    batch_size: int
    num_examples: int

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch."""
        return math.ceil(self.num_examples / self.batch_size)

    def for_optimizer(self, epoch: int = 0, epochs_done: int | None = None) -> Any:
        """What `DPOptimizer(noise_multiplier=...)` takes.

        Args:
            epoch: the epoch that is next, from 0.
            epochs_done: the epochs that the optimizer has counted so far; None means `epoch`.
        """
        if len(set(self.noise_multipliers)) == 1:
            return self.noise_multipliers[0]
        before = self.noise_multipliers[:1] * (epoch if epochs_done is None else epochs_done)
        return PiecewiseConstant([*before, *self.noise_multipliers[epoch:]], self.steps_per_epoch)

    def ledger(self, epochs: int | None = None) -> Ledger:
        """What the first epochs spend; None means all."""
        ledger = Ledger()
        for noise_multiplier, stage in itertools.groupby(self.noise_multipliers[:epochs]):
            row = self._empty_row(noise_multiplier)
            ledger = ledger.append(row.advance(len(list(stage)) * self.steps_per_epoch))
        return ledger

    def row(self, epoch: int) -> LedgerRow:
        """The row of an epoch, from 0, before it runs."""
        return self._empty_row(self.noise_multipliers[epoch])

    def _empty_row(self, noise_multiplier: float) -> LedgerRow:
        return LedgerRow.open(
            Sampling.POISSON, self.batch_size, self.num_examples, noise_multiplier
        )


def shape_of(noise_schedule: str, epochs: int) -> list[float]:
    """The noise of each epoch in units of the first one's, in twenty stages at most."""
    if noise_schedule == "constant":
        return [1.0] * epochs
    schedule = _SHAPES[noise_schedule](epochs)
    length = math.ceil(epochs / _MOST_STAGES)
    return [schedule.value_at(epoch - epoch % length) for epoch in range(epochs)]


def calibrated(
    target_epsilon: float,
    delta: float,
    num_examples: int,
    batch_size: int,
    epochs: int,
    noise_schedule: str,
    accountant: str,
) -> PlannedNoise:
    """The least noise of this shape with which the whole run stays within the target.

    Raises:
        ValueError: where no noise reaches the target.
    """
    budget = (target_epsilon, delta, num_examples, batch_size)
    if noise_schedule == "constant":
        noise_multiplier = calibrate_noise_multiplier(*budget, epochs=epochs, accountant=accountant)
        noise_multipliers = [noise_multiplier] * epochs
    else:
        shape = PiecewiseConstant(shape_of(noise_schedule, epochs))
        noise_multipliers = calibrate_noise_multiplier(
            *budget, epochs=epochs, accountant=accountant, noise_schedule=shape
        ).values
    return PlannedNoise(tuple(noise_multipliers), batch_size, num_examples)
