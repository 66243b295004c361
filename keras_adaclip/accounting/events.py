"""The events that `dp_accounting` composes, for ledger rows and for plans.

    POISSON         PoissonSampledDpEvent(q, GaussianDpEvent(z)) for each step
    SHUFFLE, PASS   GaussianDpEvent(z) for each pass over the data
    STREAM          GaussianDpEvent(z) for each step
    FIXED           SampledWithoutReplacementDpEvent(n, k, GaussianDpEvent(z / 2)) for each step
    selected runs   SelectedRunsEvent: Rényi divergences of the best run with its selection

A noise schedule is read once an epoch, at the first step, and rounded to float32, as in training.

Guarantees:
    The contribution of a unit has a norm of at most C, and the noise has standard deviation z C.
    Poisson rows hold if one unit is *added or removed*: the sum of a step then moves by at most C,
    with probability q. Full releases hold under *zero-out*: a removed unit leaves a hole, so the
    batches of all other units stay the same, and the sum moves by at most C.

    Mixed ledgers are stated under zero-out, under which the Poisson rows hold as well: filling a
    hole changes the sum of a step just as adding a unit does, with the same probability, and thus
    with the same pair of distributions. Each of these events has sensitivity 1 in units of C. The
    accountants are not told the relation, because they treat it differently: RDP ignores it for
    Gaussians, PLD doubles the sensitivity for replace-one, and older versions know fewer relations.

    Fixed-size batches have no smaller neighbours: one unit *replaces* another, and the sum moves
    by up to 2 C. `dp_accounting` takes the noise relative to that change, hence z / 2. In a ledger
    with other steps, they are stated under zero-out too: a hole that is drawn instead of a unit
    moves the sum of a fixed-size batch by at most C, so one full release dominates the step.
    Selected runs of fixed-size batches keep their divergences then, because a hole is one of the
    units that another can be replaced by.

References:
    Abadi et al. 2016, "Deep learning with differential privacy"; Ponomareva et al. 2023, "How to
    DP-fy ML", on shuffled batches and neighbouring relations; Wang, Balle and Kasiviswanathan 2019,
    "Subsampled Rényi differential privacy", on sampling without replacement.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, Self, TypeGuard

import numpy as np
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
)

from keras_adaclip.accounting import _validation
from keras_adaclip.accounting.row import LedgerRow, Sampling

ADD_OR_REMOVE_ONE = "add_or_remove_one"
ZERO_OUT = "zero_out"
REPLACE_ONE = "replace_one"

# Events with the number of times that each happened.
CountedEvents = tuple[tuple[DpEvent, int], ...]


@dataclasses.dataclass(frozen=True)
class SelectedRunsEvent(DpEvent):
    """The best of several runs, of which only Rényi divergences are known.

    Args:
        divergences: one for each of `row.ORDERS`.
    """

    divergences: tuple[float, ...]


def _full_event(noise_multiplier: float) -> DpEvent:
    """One release without amplification."""
    if noise_multiplier == 0:
        return NonPrivateDpEvent()
    return GaussianDpEvent(noise_multiplier)


def _poisson_event(noise_multiplier: float, sampling_probability: float) -> DpEvent:
    """One step with Poisson sampling."""
    event = _full_event(noise_multiplier)
    if sampling_probability == 1 or noise_multiplier == 0:
        return event
    return PoissonSampledDpEvent(sampling_probability, event)


def _fixed_size_event(noise_multiplier: float, num_examples: int, batch_size: int) -> DpEvent:
    """One step with a batch of fixed size, drawn without replacement."""
    if noise_multiplier == 0:
        return NonPrivateDpEvent()
    # Replacing a unit moves the sum by twice the clip norm.
    event = GaussianDpEvent(noise_multiplier / 2)
    return SampledWithoutReplacementDpEvent(num_examples, batch_size, event)


def row_event(row: LedgerRow, relation: str) -> DpEvent:
    """The event of one release of a row, in a ledger that is stated under a relation."""
    if row.selection is not None:
        divergences = row.selection.divergences
        is_private = any(math.isfinite(each) for each in divergences)
        return SelectedRunsEvent(divergences) if is_private else NonPrivateDpEvent()
    if row.sampling is Sampling.POISSON:
        return _poisson_event(row.noise_multiplier, row.sampling_probability)
    if row.sampling is Sampling.FIXED and relation == REPLACE_ONE:
        return _fixed_size_event(row.noise_multiplier, row.num_examples, row.expected_batch_size)
    return _full_event(row.noise_multiplier)


def counted_events(rows: Iterable[LedgerRow], relation: str | None = None) -> CountedEvents:
    """The different events of ledger rows with their counts, the most recent one last.

    Args:
        rows: Ledger rows. Rows without a release add nothing.
        relation: The relation that the events must hold under; None means that of the rows.

    Returns:
        Pairs of an event and its count.
    """
    rows = tuple(rows)
    relation = neighboring_relation(rows) if relation is None else relation
    return _counted((row_event(row, relation), row.releases) for row in rows if row.releases > 0)


def _counted(events: Iterable[tuple[DpEvent, int]]) -> CountedEvents:
    counts: dict[DpEvent, int] = {}
    for event, count in events:
        # An event that comes again moves to the end. The events before the running one then stay
        # the same from one epoch to the next, and their composition is cached.
        counts[event] = counts.pop(event, 0) + count
    return tuple(counts.items())


def neighboring_relation(rows: Iterable[LedgerRow], running: LedgerRow | None = None) -> str:
    """The relation under which the epsilon of some rows is stated.

    Args:
        rows: Ledger rows.
        running: A row that is about to run, whether or not it has run before.

    Returns:
        `"add_or_remove_one"` if all steps were Poisson-sampled, `"replace_one"` if all batches
        were of a fixed size, else `"zero_out"`.
    """
    ran = {sampling for row in rows if row.steps > 0 for sampling in row.samplings}
    if running is not None:
        ran |= running.samplings
    if ran == {Sampling.FIXED}:
        return REPLACE_ONE
    return ADD_OR_REMOVE_ONE if ran <= {Sampling.POISSON} else ZERO_OUT


class NoiseSchedule(Protocol):
    """The methods of a schedule that accounting needs; `keras_adaclip.schedules` has them."""

    def value_at(self, step: int, steps_per_epoch: int | None = None) -> float:
        """The value at a step, counted from 0."""

    def scaled(self, factor: float) -> Self:
        """The schedule with every value multiplied by `factor`."""


def is_noise_schedule(value: Any) -> TypeGuard[NoiseSchedule]:
    """Whether `value` is a schedule rather than a number."""
    return callable(getattr(value, "value_at", None)) and callable(getattr(value, "scaled", None))


def noise_by_epoch(
    schedule: NoiseSchedule, num_steps: int, steps_per_epoch: int
) -> Iterator[tuple[float, int]]:
    """The noise multiplier of each epoch as float32, and the number of steps of the epoch.

    Args:
        schedule: the schedule.
        num_steps: steps of the run. The last epoch may have fewer than the others.
        steps_per_epoch: steps of one epoch.

    Yields:
        Pairs of noise multiplier and number of steps, one an epoch.
    """
    for first_step in range(0, num_steps, steps_per_epoch):
        value = _validation.check_noise_multiplier(schedule.value_at(first_step, steps_per_epoch))
        yield float(np.float32(value)), min(steps_per_epoch, num_steps - first_step)


def planned_events(
    noise_multiplier: float | NoiseSchedule,
    num_examples: int,
    batch_size: int,
    num_steps: int,
    sampling: str,
    steps_per_epoch: int | None = None,
) -> CountedEvents:
    """The events of a plan. All arguments are checked; see `compute_epsilon`."""
    steps_per_pass = math.ceil(num_examples / batch_size)
    if isinstance(noise_multiplier, (int, float)):
        least = min(noise_multiplier, float(np.float32(noise_multiplier)))
        noises = iter([(least, num_steps)] if num_steps else [])
    else:
        noises = noise_by_epoch(noise_multiplier, num_steps, steps_per_epoch or steps_per_pass)

    def event(noise: float) -> DpEvent:
        if sampling == "poisson":
            return _poisson_event(noise, batch_size / num_examples)
        if sampling == "fixed":
            return _fixed_size_event(noise, num_examples, batch_size)
        return _full_event(noise)

    def releases(steps: int) -> int:
        return math.ceil(steps / steps_per_pass) if sampling == "shuffle" else steps

    return _counted((event(noise), releases(steps)) for noise, steps in noises)
