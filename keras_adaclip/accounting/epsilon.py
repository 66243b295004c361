"""Epsilon: of a plan, and of what a ledger says has run.

    epsilon(delta) = inf {e : the composed events are (e, delta)-differentially private}

by `dp_accounting`, with privacy loss distributions ("pld", tight) or Rényi divergences ("rdp").
"""

import dataclasses
import math
from collections.abc import Iterable
from typing import Self

import numpy as np
from dp_accounting import DpEvent

from keras_adaclip.accounting import _validation, events
from keras_adaclip.accounting.accountants import composed_epsilon
from keras_adaclip.accounting.events import CountedEvents
from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.noise_schedules import (
    NoiseSchedule,
    is_noise_schedule,
    noise_by_epoch,
)
from keras_adaclip.accounting.rows import LedgerRow

_RELATIONS_IN_WORDS = {
    events.ADD_OR_REMOVE_ONE: "one unit is added or removed",
    events.ZERO_OUT: "one unit is zeroed out, leaving a hole in its batch",
    events.REPLACE_ONE: "one unit is replaced by another",
}


def compute_epsilon(
    noise_multiplier: float | NoiseSchedule,
    num_examples: int,
    batch_size: int,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    delta: float,
    sampling: str = "poisson",
    accountant: str = "pld",
    steps_per_epoch: int | None = None,
) -> float:
    """Epsilon of a training run as planned.

    Args:
        noise_multiplier: Standard deviation of the noise over the clip norm, from 0. Training
            rounds it to float32; the smaller of the two values is taken here. A schedule is read
            once an epoch, at the epoch's first step, and each value rounded to float32; by PLD, 40
            epochs of different noise take some seconds.
        num_examples: Number of units (examples or clients) in the data, taken to be public.
        batch_size: Expected number of units a step.
        epochs: Number of epochs, of `steps_per_epoch` steps each.
        steps: Number of steps; give this or `epochs`.
        delta: Delta, between 0 and 1, well below `1 / num_examples`.
        sampling: `"poisson"`, each unit with probability `batch_size / num_examples` at each step;
            `"shuffle"`, one full release for each pass begun (zero-out); `"stream"`, one full
            release a step (zero-out); `"fixed"`, exactly `batch_size` units without replacement
            (replace-one).
        accountant: `"pld"` or `"rdp"`. PLD does not know `"fixed"`, for which RDP is used always.
        steps_per_epoch: Steps of an epoch, where `fit` is given that number; None means
            `ceil(num_examples / batch_size)`. Noise schedules change with the epochs.

    Returns:
        Epsilon, an upper bound; infinite without noise, 0.0 without a step.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, or not one of `epochs` and `steps` is given.

    Example:

    >>> epsilon = compute_epsilon(
    ...     noise_multiplier=1.0, num_examples=60_000, batch_size=256, steps=3515, delta=1e-5
    ... )
    >>> print(f"{epsilon:.3f}")
    1.351
    """
    accountant = _validation.check_accountant(accountant)
    planned, delta = checked_plan(
        noise_multiplier, num_examples, batch_size, epochs, steps, delta, sampling, steps_per_epoch
    )
    return composed_epsilon(planned, delta, effective_accountant(sampling, accountant))


def checked_plan(
    noise_multiplier: float | NoiseSchedule,
    num_examples: int,
    batch_size: int,
    epochs: int | None,
    steps: int | None,
    delta: float,
    sampling: str,
    steps_per_epoch: int | None,
) -> tuple[CountedEvents, float]:
    """The events of a plan and its delta, arguments as of `compute_epsilon`.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, or not one of `epochs` and `steps` is given.
    """
    if not is_noise_schedule(noise_multiplier):
        noise_multiplier = _validation.check_noise_multiplier(noise_multiplier)
    num_examples, batch_size = _validation.check_batch(num_examples, batch_size)
    sampling = _validation.check_sampling_name(sampling)
    delta = _validation.check_delta(delta)
    if steps_per_epoch is not None:
        steps_per_epoch = _validation.check_integer(steps_per_epoch, "steps_per_epoch", minimum=1)
    num_steps = _validation.check_num_steps(
        epochs, steps, steps_per_epoch=steps_per_epoch or math.ceil(num_examples / batch_size)
    )
    # Said of the line that called the function that called this one.
    _validation.warn_of_large_delta(delta, num_examples, stacklevel=4)
    events_of_plan = planned_events(
        noise_multiplier, num_examples, batch_size, num_steps, sampling, steps_per_epoch
    )
    return events_of_plan, delta


def effective_accountant(sampling: str, accountant: str) -> str:
    """The accountant that does the work: PLD has no bound for batches of a fixed size."""
    return "rdp" if sampling == "fixed" else accountant


def planned_events(
    noise_multiplier: float | NoiseSchedule,
    num_examples: int,
    batch_size: int,
    num_steps: int,
    sampling: str,
    steps_per_epoch: int | None = None,
) -> CountedEvents:
    """The events of a plan, all arguments checked; see `compute_epsilon`."""
    steps_per_pass = math.ceil(num_examples / batch_size)
    if isinstance(noise_multiplier, (int, float)):
        least = min(noise_multiplier, float(np.float32(noise_multiplier)))
        noises = iter([(least, num_steps)] if num_steps else [])
    else:
        noises = noise_by_epoch(noise_multiplier, num_steps, steps_per_epoch or steps_per_pass)
    counts: dict[DpEvent, int] = {}
    for noise, steps in noises:
        event = _planned_event(noise, num_examples, batch_size, sampling)
        releases = math.ceil(steps / steps_per_pass) if sampling == "shuffle" else steps
        # The latest one last, as in a ledger: see `events.counted_events`.
        counts[event] = counts.pop(event, 0) + releases
    return tuple(counts.items())


def _planned_event(
    noise_multiplier: float, num_examples: int, batch_size: int, sampling: str
) -> DpEvent:
    """The event of one release."""
    if sampling == "poisson":
        return events.poisson_event(noise_multiplier, batch_size / num_examples)
    if sampling == "fixed":
        return events.fixed_size_event(noise_multiplier, num_examples, batch_size)
    return events.full_event(noise_multiplier)


def ledger_epsilon(rows: Iterable[LedgerRow], delta: float, accountant: str = "pld") -> float:
    """Epsilon of what has run.

    Args:
        rows: A `Ledger`, rows of one, or rows of several, whose releases then count together.
        delta: Delta, between 0 and 1.
        accountant: `"pld"` or `"rdp"`.

    Returns:
        Epsilon, an upper bound under `events.neighboring_relation(rows)`; infinite if a step ran
        without noise, 0.0 if none ran.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.

    Guarantees:
        Not below what `dp_accounting` gives for `events.dp_event(rows)`. Computed anew only when
        the number of releases has changed.

    Example:

    >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0)
    >>> print(f"{ledger_epsilon([row.advance(3515)], delta=1e-5):.3f}")
    1.351
    """
    delta = _validation.check_delta(delta)
    accountant = _validation.check_accountant(accountant)
    return composed_epsilon(events.counted_events(rows), delta, accountant)


@dataclasses.dataclass(frozen=True)
class PrivacySpent:
    """The privacy that a model has spent; `str()` of it is a statement in words.

    Args:
        epsilon: Epsilon, an upper bound.
        delta: Delta that it goes with.
        steps: Steps that ran.
        sampling: How units were drawn: labels of `Sampling`, joined by " + "; "none" before the
            first step.
        neighboring_relation: `"add_or_remove_one"`, `"zero_out"` or `"replace_one"`.
        accountant: The accountant that did the work, `"pld"` or `"rdp"`; the latter for what a
            search released, of which the former knows nothing.
        unit: Whose privacy it is, `"example"` or `"client"`.
        selection: How the model was selected among several runs, in words, which epsilon counts;
            empty where it was not.
        weights_unchanged: Whether the model's weights are those that its private training left;
            False where something outside of it has changed them, None where that is not known.

    Example:

    >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0)
    >>> print(PrivacySpent.from_ledger([row.advance(3515)], delta=1e-5))
    (epsilon = 1.3513, delta = 1e-05)-differential privacy after 3515 steps, by the PLD
    accountant. Neighbouring data sets: one unit is added or removed. Sampling: Poisson sampling:
    every unit is drawn independently at each step.
    """

    epsilon: float
    delta: float
    steps: int
    sampling: str
    neighboring_relation: str
    accountant: str
    unit: str = "example"
    selection: str = ""
    weights_unchanged: bool | None = dataclasses.field(default=None, compare=False)

    @classmethod
    def from_ledger(cls, rows: Iterable[LedgerRow], delta: float, accountant: str = "pld") -> Self:
        """What a ledger's rows have spent.

        Args:
            rows: A `Ledger`, or rows of one.
            delta: Delta, between 0 and 1.
            accountant: `"pld"` or `"rdp"`.

        Returns:
            The statement.

        Raises:
            TypeError: If an argument is of the wrong type.
            ValueError: If an argument is out of range.
        """
        rows = tuple(rows)
        relation = events.neighboring_relation(rows)
        ran = sorted({sampling for row in rows if row.steps > 0 for sampling in row.samplings})
        selection = selections_in_words(rows)
        return cls(
            epsilon=ledger_epsilon(rows, delta, accountant),
            delta=float(delta),
            steps=sum(row.steps for row in rows),
            sampling=" + ".join(sampling.label for sampling in ran) or "none",
            neighboring_relation=relation,
            accountant="rdp" if relation == events.REPLACE_ONE or selection else accountant,
            unit=next((row.unit.label for row in rows if row.steps > 0), "example"),
            selection=selection,
        )

    def __str__(self) -> str:
        if self.steps == 0:
            return "Nothing has been released yet: no privacy is spent (epsilon = 0)."
        steps = f"{self.steps} step{'s' if self.steps != 1 else ''}"
        if math.isinf(self.epsilon):
            guarantee = f"No differential privacy (epsilon = inf) after {steps}"
        else:
            guarantee = (
                f"(epsilon = {rounded_up(self.epsilon)}, delta = {self.delta:g})-differential "
                f"privacy after {steps}"
            )
        relation = relation_in_words(self.neighboring_relation)
        kinds = "; ".join(
            Sampling[label.upper()].describe() if label.upper() in Sampling.__members__ else label
            for label in self.sampling.split(" + ")
        )
        return (
            f"{guarantee}, by the {self.accountant.upper()} accountant. "
            f"Neighbouring data sets: {relation}. Sampling: {kinds}."
            + ("" if self.unit == "example" else f" A unit is one {self.unit}.")
            + (f" Selection: {self.selection}." if self.selection else "")
            + (
                " The weights have been changed outside of private training since."
                if self.weights_unchanged is False
                else ""
            )
        )


def selections_in_words(rows: Iterable[LedgerRow]) -> str:
    """How runs that the rows hold were selected; empty where none was."""
    return "; ".join(
        f"{row.selection}" if row.releases == 1 else f"{row.releases} times {row.selection}"
        for row in rows
        if row.selection is not None
    )


def relation_in_words(relation: str) -> str:
    """What the neighbouring data sets of a relation are."""
    return _RELATIONS_IN_WORDS.get(relation, relation)


def rounded_up(value: float, digits: int = 5) -> str:
    """A value in a few significant digits, never below what it is.

    Args:
        value: Not negative; infinite is `"inf"`.
        digits: How many digits.
    """
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.ceil(value / unit) * unit:.{digits}g}"
