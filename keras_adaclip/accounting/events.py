"""The events that `dp_accounting` composes, for ledger rows and for plans.

    POISSON            PoissonSampledDpEvent(q, GaussianDpEvent(z)) for each step
    TRUNCATED_POISSON  TruncatedSubsampledGaussianDpEvent(n, q, m, z) for each step
    SHUFFLE, PASS      GaussianDpEvent(z) for each pass over the data
    STREAM             GaussianDpEvent(z) for each step
    FIXED              SampledWithoutReplacementDpEvent(n, k, GaussianDpEvent(z / 2)) for each step
    selected runs      SelectedRunsEvent: Rényi divergences of the best run with its selection

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

    A unit in a truncated draw may take the place of another, which moves the sum by up to 2 C. This
    happens only if the others alone fill the batch. Here n is the size of the larger of two
    neighbouring data sets, which is the one that was used: the smaller lacks one of its units. (For
    n + 1, epsilon is larger by about a ten-thousandth.) The event holds under zero-out too: with a
    hole in place of the unit, the other units of the batch stay the same, and `dp_accounting`
    bounds even the replacement of the unit by another.

    Fixed-size batches have no smaller neighbours: one unit *replaces* another, and the sum moves
    by up to 2 C. `dp_accounting` takes the noise relative to that change, hence z / 2. In a ledger
    with other steps, they are stated under zero-out too: a hole that is drawn instead of a unit
    moves the sum of a fixed-size batch by at most C, so one full release dominates the step.
    Selected runs of fixed-size batches keep their divergences then, because a hole is one of the
    units that another can be replaced by.

References:
    Abadi et al. 2016, "Deep learning with differential privacy"; Ponomareva et al. 2023, "How to
    DP-fy ML", on shuffled batches and neighbouring relations; Wang, Balle and Kasiviswanathan 2019,
    "Subsampled Rényi differential privacy", on sampling without replacement; Ganesh et al. 2025
    (arXiv:2508.15089), on truncated Poisson sampling.
"""

import dataclasses
import importlib
import math
from collections.abc import Iterable
from typing import Any, Protocol, Self, TypeGuard

import numpy as np

from keras_adaclip import _checks
from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.row import LedgerRow

ADD_OR_REMOVE_ONE = "add_or_remove_one"
ZERO_OUT = "zero_out"
REPLACE_ONE = "replace_one"
_SAMPLING_NAMES = ("poisson", "shuffle", "stream", "fixed")
_POISSON = frozenset({Sampling.POISSON, Sampling.TRUNCATED_POISSON})

DpEvent = Any  # Of `dp_accounting`, or a `SelectedRunsEvent`.
# Events with the number of times that each happened.
CountedEvents = tuple[tuple[DpEvent, int], ...]


class _DpAccounting:
    """`dp_accounting`, imported at first use, because its import takes as long as the package's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("dp_accounting"), name)


dp: Any = _DpAccounting()


@dataclasses.dataclass(frozen=True)
class SelectedRunsEvent:
    """The best of several runs, of which only Rényi divergences are known.

    Args:
        divergences: One for each of `kinds.ORDERS`.
    """

    divergences: tuple[float, ...]


def knows_truncation() -> bool:
    """Whether the installed `dp_accounting` knows truncated Poisson sampling."""
    return hasattr(dp, "TruncatedSubsampledGaussianDpEvent")


def require_truncation() -> None:
    """Raise an `ImportError` if `dp_accounting` does not know truncated Poisson sampling."""
    if not knows_truncation():
        raise ImportError(
            "The privacy of truncated Poisson batches needs a newer `dp-accounting`: "
            "`pip install --upgrade dp-accounting`."
        )


def _release_event(
    sampling: Sampling, noise_multiplier: float, num_examples: int, batch_size: int, most: int
) -> DpEvent:
    """One release; one step for samplings that amplify. `most` is the largest batch."""
    if noise_multiplier == 0:
        return dp.NonPrivateDpEvent()
    if sampling is Sampling.POISSON and batch_size < num_examples:
        event = dp.GaussianDpEvent(noise_multiplier)
        return dp.PoissonSampledDpEvent(batch_size / num_examples, event)
    if sampling is Sampling.TRUNCATED_POISSON:
        require_truncation()
        return dp.TruncatedSubsampledGaussianDpEvent(
            num_examples, batch_size / num_examples, most, noise_multiplier
        )
    if sampling is Sampling.FIXED:
        # Replacing a unit moves the sum by twice the clip norm.
        event = dp.GaussianDpEvent(noise_multiplier / 2)
        return dp.SampledWithoutReplacementDpEvent(num_examples, batch_size, event)
    return dp.GaussianDpEvent(noise_multiplier)


def row_event(row: LedgerRow, relation: str) -> DpEvent:
    """The event of one release of a row, in a ledger that is stated under a relation."""
    if row.selection is not None:
        divergences = row.selection.divergences
        is_private = any(math.isfinite(each) for each in divergences)
        return SelectedRunsEvent(divergences) if is_private else dp.NonPrivateDpEvent()
    sampling = row.sampling
    if sampling is Sampling.FIXED and relation != REPLACE_ONE:
        sampling = Sampling.STREAM
    sizes = (row.num_examples, row.expected_batch_size, row.max_batch_size)
    return _release_event(sampling, row.noise_multiplier, *sizes)


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
    """Return the different events with their counts, the most recent one last."""
    counts: dict[DpEvent, int] = {}
    for event, count in events:
        # An event that comes again moves to the end. The events before the running one then stay
        # the same from one epoch to the next, and their composition is cached.
        counts[event] = counts.pop(event, 0) + count
    return tuple(counts.items())


def neighboring_relation(rows: Iterable[LedgerRow]) -> str:
    """The relation under which the epsilon of some rows is stated.

    Args:
        rows: Ledger rows. Rows without steps add nothing.

    Returns:
        `"add_or_remove_one"` if all steps were Poisson-sampled, truncated or not, `"replace_one"`
        if all batches were of a fixed size, else `"zero_out"`.
    """
    ran = {sampling for row in rows if row.steps > 0 for sampling in row.samplings}
    if ran == {Sampling.FIXED}:
        return REPLACE_ONE
    return ADD_OR_REMOVE_ONE if ran <= _POISSON else ZERO_OUT


class NoiseSchedule(Protocol):
    """The methods of a schedule that accounting needs; `keras_adaclip.schedules` has them."""

    def value_at(self, step: int, steps_per_epoch: int | None = None) -> float:
        """The value at a step, counted from 0."""

    def scaled(self, factor: float) -> Self:
        """The schedule with every value multiplied by `factor`."""


def is_noise_schedule(value: Any) -> TypeGuard[NoiseSchedule]:
    """Whether `value` is a schedule rather than a number."""
    return callable(getattr(value, "value_at", None)) and callable(getattr(value, "scaled", None))


@dataclasses.dataclass(frozen=True)
class PlannedRun:
    """A run as planned, without its noise.

    Args:
        num_examples: Number of units in the data.
        batch_size: Expected number of units a step.
        num_steps: Number of steps.
        sampling: How units are drawn.
        steps_per_epoch: Steps of an epoch. The last epoch may have fewer.
        max_batch_size: The most units a step, for `TRUNCATED_POISSON`; 0 otherwise.
    """

    num_examples: int
    batch_size: int
    num_steps: int
    sampling: Sampling
    steps_per_epoch: int
    max_batch_size: int = 0

    @classmethod
    def of(
        cls,
        num_examples: int,
        batch_size: int,
        epochs: int | None,
        steps: int | None,
        sampling: str,
        steps_per_epoch: int | None = None,
        max_batch_size: int | None = None,
    ) -> Self:
        """Return the run with these arguments, checked as `compute_epsilon` says."""
        num_examples = _checks.check_integer("num_examples", num_examples, minimum=1)
        batch_size = _checks.check_batch_size(batch_size, num_examples)
        sampling = _checks.check_choice("sampling", sampling, _SAMPLING_NAMES)
        if steps_per_epoch is None:
            steps_per_epoch = math.ceil(num_examples / batch_size)
        steps_per_epoch = _checks.check_integer("steps_per_epoch", steps_per_epoch, minimum=1)
        if (epochs is None) == (steps is None):
            raise ValueError(
                "Exactly one of the arguments `epochs` and `steps` must be given. "
                f"Received: epochs={epochs!r}, steps={steps!r}"
            )
        if epochs is not None:
            most = _checks.INT32_MAX // steps_per_epoch
            steps = steps_per_epoch * _checks.check_integer("epochs", epochs, maximum=most)
        num_steps = _checks.check_integer("steps", steps)
        kind, most = Sampling[sampling.upper()], 0
        if max_batch_size is not None:
            most = _checks.check_integer("max_batch_size", max_batch_size, minimum=batch_size)
            if kind is not Sampling.POISSON:
                raise ValueError(
                    "Argument `max_batch_size` is for sampling='poisson' only. Received: "
                    f"max_batch_size={most}, sampling={sampling!r}"
                )
            # No draw is larger than the data.
            most = most if most < num_examples else 0
            kind = Sampling.TRUNCATED_POISSON if most else kind
        return cls(num_examples, batch_size, num_steps, kind, steps_per_epoch, most)

    def noises(self, noise_multiplier: float | NoiseSchedule) -> list[tuple[float, int]]:
        """Return the noise multipliers of the run, each with its number of steps.

        A number gives one pair, the smaller of itself and its float32. A schedule gives a pair for
        epochs of one value: that at the first step of each epoch, as float32.
        """
        if not is_noise_schedule(noise_multiplier):
            noise = _checks.check_noise_multiplier(noise_multiplier)
            return [(min(noise, float(np.float32(noise))), self.num_steps)]
        found: list[tuple[float, int]] = []
        for first_step in range(0, self.num_steps, self.steps_per_epoch):
            value = noise_multiplier.value_at(first_step, self.steps_per_epoch)
            noise = float(np.float32(_checks.check_noise_multiplier(value)))
            steps = min(self.steps_per_epoch, self.num_steps - first_step)
            before = found.pop() if found and found[-1][0] == noise else (noise, 0)
            found.append((noise, before[1] + steps))
        return found

    def events(self, noise_multiplier: float | NoiseSchedule) -> CountedEvents:
        """Return the events of the run, with their counts."""
        per_release = 1
        if self.sampling is Sampling.SHUFFLE:
            per_release = math.ceil(self.num_examples / self.batch_size)
        sizes, releases = (self.num_examples, self.batch_size, self.max_batch_size), []
        is_within = False
        for noise, steps in self.noises(noise_multiplier):
            # Behind a change of the noise within a pass, every step counts: the pass goes on.
            releases.append((noise, steps if is_within else math.ceil(steps / per_release)))
            is_within = is_within or steps % per_release != 0
        return _counted(
            (_release_event(self.sampling, noise, *sizes), count)
            for noise, count in releases
            if count > 0
        )
