"""Mechanisms, and rows of the privacy ledger: a mechanism, whose it was, and how often it ran.

A mechanism says how a step draws units, and how much noise hides them.

A row is integers and the float32 noise multiplier that ran. Sampling probabilities and events are
computed from these, so a row that was saved and loaded is accounted exactly like a row that stayed
in memory.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from keras_adaclip import _checks
from keras_adaclip._checks import INT32_MAX
from keras_adaclip.accounting.kinds import Sampling, SelectionCost, Unit

# In the first integer of a row: sampling + 16 (unit + 2 rows of one person).
_KINDS_OF_SAMPLING = 16
_SELECTED_LABEL = "selected"
_OTHER_COUNTS = ("num_examples", "max_batch_size", "rows_per_unit")


@dataclasses.dataclass(frozen=True)
class Mechanism:
    """A Gaussian mechanism on sampled units.

    A *release* is what costs privacy: one Gaussian mechanism over all units that it can touch. With
    Poisson sampling, each step is one release. Without amplification, a whole pass over the data is
    one release: each unit is in a single batch of the pass, so the steps of a pass compose in
    parallel.

    Args:
        sampling: How units are drawn.
        expected_batch_size: Expected number of units a step, at least 1; sums are divided by it.
        num_examples: Number of units in the data; 0 if unknown, with `STREAM` and `PASS` only.
        noise_multiplier: Standard deviation of the noise over the sensitivity of the sum. Rounded
            to the nearest float32, as in training.
        unit: The unit of privacy, whose contribution the sensitivity bounds.
        max_batch_size: The most units a step, with `TRUNCATED_POISSON` only; 0 otherwise.
        selection: What one release costs, if it is the best of several runs. Sampling, noise and
            batch size are then those of the run with the least noise.
        rows_per_unit: The most rows of one person among the examples, each of which is drawn by
            itself; 0 if nobody has said whose they are.

    Raises:
        TypeError: If a count is not an integer.
        ValueError: If a number is out of range, or two numbers contradict each other.

    Example:

    >>> Mechanism(Sampling.SHUFFLE, 256, 60_000, noise_multiplier=1.0).steps_per_release
    235
    """

    sampling: Sampling
    expected_batch_size: int
    num_examples: int
    noise_multiplier: float
    unit: Unit = Unit.EXAMPLE
    max_batch_size: int = 0
    selection: SelectionCost | None = None
    rows_per_unit: int = 0

    # The smallest value of each count.
    _minima: ClassVar = {"expected_batch_size": 1} | dict.fromkeys(_OTHER_COUNTS, 0)

    def __post_init__(self) -> None:
        noise_multiplier = _checks.check_noise_multiplier(self.noise_multiplier)
        checked: dict[str, int | float] = {
            "sampling": Sampling(self.sampling),
            "unit": Unit(self.unit),
            "noise_multiplier": float(np.float32(noise_multiplier)),
        }
        for name, minimum in self._minima.items():
            checked[name] = _checks.check_integer(name, getattr(self, name), minimum=minimum)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        for rule in self._broken_rules():
            received = ", ".join(f"{name}={getattr(self, name)}" for name in self._minima)
            raise ValueError(f"Argument {rule}. Received: {received}")

    def _broken_rules(self) -> Iterator[str]:
        """Yield a sentence about each pair of numbers that contradict each other."""
        sampling, label = self.sampling, repr(self.sampling.label)
        if self.num_examples == 0 and sampling not in (Sampling.STREAM, Sampling.PASS):
            yield f"`num_examples` must be known for sampling={label}"
        if sampling.is_amplified and self.expected_batch_size > self.num_examples:
            yield "`expected_batch_size` must not exceed `num_examples`"
        if sampling is not Sampling.TRUNCATED_POISSON and self.max_batch_size > 0:
            yield f"`max_batch_size` must be 0 for sampling={label}"
        if sampling is Sampling.TRUNCATED_POISSON and not (
            self.expected_batch_size <= self.max_batch_size < self.num_examples
        ):
            yield (
                "`max_batch_size` must be at least `expected_batch_size` and below `num_examples` "
                f"for sampling={label}"
            )
        has_group = sampling not in (Sampling.FIXED, Sampling.TRUNCATED_POISSON)
        if self.rows_per_unit and not (has_group and self.unit is Unit.EXAMPLE):
            yield f"`rows_per_unit` must be 0 for {self.unit.label}s and sampling={label}"

    @property
    def mechanism(self) -> tuple[object, ...]:
        """The facts as a key. Rows with equal mechanisms add up exactly."""
        sampled = (self.sampling, self.expected_batch_size, self.num_examples, self.max_batch_size)
        return (*sampled, self.noise_multiplier, self.unit, self.selection, self.rows_per_unit)

    @property
    def steps_per_release(self) -> int:
        """The most steps that one release lasts."""
        if self.sampling is Sampling.PASS and self.selection is None:
            return INT32_MAX  # The source alone knows when the next pass begins.
        if self.sampling is Sampling.SHUFFLE and self.selection is None:
            return max(1, math.ceil(self.num_examples / self.expected_batch_size))
        return 1

    @property
    def sampling_probability(self) -> float:
        """Probability that a step draws a unit, from the integers; 1 if unknown."""
        if self.num_examples == 0:
            return 1.0
        return min(1.0, self.expected_batch_size / self.num_examples)

    @property
    def samplings(self) -> frozenset[Sampling]:
        """The sampling scheme; those of all runs if it is about selected runs."""
        return frozenset({self.sampling}) if self.selection is None else self.selection.samplings


@dataclasses.dataclass(frozen=True)
class LedgerRow(Mechanism):
    """A mechanism, and how often its owner ran it.

    Args:
        sampling: As of `Mechanism`, like the others that follow.
        expected_batch_size: Expected number of units a step.
        num_examples: Number of units in the data; 0 if unknown.
        noise_multiplier: Standard deviation of the noise over the sensitivity of the sum.
        unit: The unit of privacy.
        max_batch_size: The most units a step, with `TRUNCATED_POISSON` only.
        selection: What one release costs, if it is the best of several runs.
        rows_per_unit: The most rows of one person; 0 if that is unknown.
        steps: Steps that ran.
        releases: Releases that were opened; the accountant counts these.
        free_steps: Steps that the open release has room for, which cost nothing more.
        owner: A random number that stands for the one optimizer in one process that adds steps;
            0 for none, as in plans.

    Raises:
        TypeError: If a count is not an integer.
        ValueError: If a number is out of range, or two numbers contradict each other.

    Example:

    >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0)
    >>> row.advance(235).releases
    235
    >>> row = LedgerRow.open(Sampling.SHUFFLE, 256, 60_000, noise_multiplier=1.0)
    >>> row.advance(235).releases, row.advance(236).releases
    (1, 2)
    """

    steps: int = 0
    releases: int = 0
    free_steps: int = 0
    owner: int = 0

    _minima: ClassVar = {**Mechanism._minima, "steps": 0, "releases": 0, "free_steps": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        _checks.check_integer("owner", self.owner, minimum=-(2**63), maximum=2**63 - 1)

    def _broken_rules(self) -> Iterator[str]:
        """Yield a sentence about each pair of numbers that contradict each other."""
        yield from super()._broken_rules()
        if self.free_steps >= self.steps_per_release:
            yield "`free_steps` must be below the number of steps of a release"
        if not min(1, self.steps) <= self.releases <= self.steps:
            yield "`releases` must lie between 1 and `steps`, or both must be 0"

    @classmethod
    def open(
        cls,
        sampling: Sampling,
        expected_batch_size: int,
        num_examples: int,
        noise_multiplier: float,
        *,
        unit: Unit = Unit.EXAMPLE,
        max_batch_size: int = 0,
    ) -> Self:
        """Return a row in which nothing has run yet.

        Args:
            sampling: How units are drawn.
            expected_batch_size: Expected number of units a step.
            num_examples: Number of units in the data; 0 if unknown.
            noise_multiplier: Standard deviation of the noise over the sensitivity of the sum.
            unit: The unit of privacy.
            max_batch_size: The most units a step, for `TRUNCATED_POISSON` only.

        Returns:
            The row, whose first step opens a release.
        """
        sizes = (expected_batch_size, num_examples)
        return cls(sampling, *sizes, noise_multiplier, unit, max_batch_size)

    @property
    def key(self) -> tuple[object, ...]:
        """The owner and the mechanism: the counter that the row is."""
        return (self.owner, *self.mechanism)

    def advance(self, num_steps: int) -> Self:
        """Return the row after `num_steps` more steps.

        A compiled training step does the same to its variables, one step at a time: it opens a
        release if the open one is used up, and otherwise counts one more step in it.

        Args:
            num_steps: Number of steps, at least 0.

        Returns:
            The new row.

        Raises:
            ValueError: If a counter would pass 2**31 - 1, or the row is about selected runs.
        """
        if self.selection is not None:
            raise ValueError("No step can run in a row of selected runs: `append` another row.")
        num_steps = _checks.check_integer("num_steps", num_steps)
        opened = -(-max(0, num_steps - self.free_steps) // self.steps_per_release)
        return dataclasses.replace(
            self,
            steps=self.steps + num_steps,
            releases=self.releases + opened,
            free_steps=self.free_steps + opened * self.steps_per_release - num_steps,
        )

    def begin_segment(self) -> Self:
        """Return the row at the start of another `fit`, which begins a pass and so a release."""
        return dataclasses.replace(self, free_steps=0) if self.free_steps else self

    def emptied(self) -> Self:
        """Return the row before its first step."""
        return dataclasses.replace(self, steps=0, releases=0, free_steps=0)

    def as_stream(self) -> Self:
        """Return a fresh row with the same noise, in which every step is one full release."""
        return dataclasses.replace(self.emptied(), sampling=Sampling.STREAM, max_batch_size=0)

    def behind(self, before: Self, is_pass: bool) -> Self:
        """Return the row that counts an epoch whose noise differs from that of the epoch before.

        A pass over the data goes on where an epoch ends within it. What is left of it and the next
        pass may show a unit twice, so each step counts as a full release.

        Args:
            before: The row of the epoch before.
            is_pass: Whether the epoch begins a new pass.
        """
        is_within = before.free_steps > 0 or before.sampling is not self.sampling
        return self.as_stream() if is_within and not is_pass else self

    def plus(self, other: Self) -> Self:
        """Return the row with the counts of another one added.

        Args:
            other: A row of the same mechanism.
        """
        steps, releases = self.steps + other.steps, self.releases + other.releases
        return dataclasses.replace(self, steps=steps, releases=releases)

    def at_least(self, other: Self) -> Self:
        """Return the later of two states of one counter, with the open release of this one.

        Args:
            other: Another state of this row.
        """
        if other.steps <= self.steps and other.releases <= self.releases:
            return self
        steps, releases = max(self.steps, other.steps), max(self.releases, other.releases)
        return dataclasses.replace(self, steps=steps, releases=releases, free_steps=0)

    def to_integers(self) -> npt.NDArray[np.int32]:
        """Return the row, without a selection. Shape: `(11,)`, in the order of `from_integers`."""
        units = self.unit + len(Unit) * self.rows_per_unit
        kind = self.sampling + _KINDS_OF_SAMPLING * units
        sizes = (self.expected_batch_size, self.num_examples, self.max_batch_size)
        noise = np.array([self.noise_multiplier], np.float32).view(np.int32)
        owner = np.array([self.owner], np.int64).view(np.int32)
        counts = (self.steps_per_release, self.steps, self.releases, self.free_steps)
        return np.array([kind, *sizes, *noise, *owner, *counts], np.int32)

    @classmethod
    def from_integers(cls, integers: npt.NDArray[np.int32]) -> Self:
        """Return the row that `to_integers` wrote.

        Args:
            integers: Sampling, unit and rows of one person in one number, expected batch size,
                number of units, largest batch, bits of the noise multiplier, owner in two numbers,
                steps of a release, steps, releases and free steps. Shape: `(11,)`.

        Returns:
            The row.

        Raises:
            ValueError: If the numbers do not make a row.
        """
        integers = np.ascontiguousarray(integers, np.int32)
        kind, batch_size, num_examples, max_batch_size = integers[:4].tolist()
        # A negative kind was never written. It stays as it is, for the error to name it.
        units, sampling = divmod(kind, _KINDS_OF_SAMPLING) if kind >= 0 else (0, kind)
        rows_per_unit, unit = divmod(units, len(Unit))
        steps, releases, free_steps = integers[8:].tolist()
        row = cls(
            Sampling(sampling),
            batch_size,
            num_examples,
            noise_multiplier=integers[4:5].view(np.float32).item(),
            unit=Unit(unit),
            max_batch_size=max_batch_size,
            rows_per_unit=rows_per_unit,
            steps=steps,
            releases=releases,
            free_steps=free_steps,
            owner=integers[5:7].view(np.int64).item(),
        )
        if row.steps_per_release != integers[7]:
            raise ValueError(
                f"A release of this row lasts {row.steps_per_release} steps at most. "
                f"Received: {integers[7]}"
            )
        return row

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain values, as reports have it."""
        is_amplified = self.sampling.is_amplified and self.selection is None
        names = (*_OTHER_COUNTS, "noise_multiplier", "steps", "releases")
        return {
            "sampling": self.label,
            "expected_batch_size": self.expected_batch_size,
            "sampling_probability": self.sampling_probability if is_amplified else None,
            **{name: getattr(self, name) for name in names},
        }

    @property
    def label(self) -> str:
        """The label of the sampling; `"selected"` for the best of several runs."""
        return self.sampling.label if self.selection is None else _SELECTED_LABEL

    def __str__(self) -> str:
        drawn = "cohorts" if self.unit is Unit.CLIENT else "batches"
        size = f"{self.num_examples:,}" if self.num_examples else "unknown many"
        most = f" (at most {self.max_batch_size:,})" if self.max_batch_size else ""
        size += f", up to {self.rows_per_unit:,} of one person" if self.rows_per_unit else ""
        q, releases = self.to_dict()["sampling_probability"], self.releases
        sizes = f", {drawn} of {self.expected_batch_size:,}{most} of {size}"
        sizes += "" if q is None else f", q = {q:.4g}"
        if q == 1.0 and not most:
            sizes = f" over all {size}"
        return (
            f"{self.label}: {self.steps:,} step{'s' * (self.steps != 1)}{sizes}, "
            f"z = {self.noise_multiplier:.6g}"
            f"{'' if releases == self.steps else f', {releases:,} releases'}"
        )


def rows_of_epochs(epochs: Iterable[tuple[LedgerRow, int]], is_pass: bool) -> list[LedgerRow]:
    """Return what the epochs of a run add to the ledger.

    Args:
        epochs: For each epoch the row of its mechanism before any step, and its number of steps.
        is_pass: Whether each epoch begins a new pass over the data.
    """
    rows = list[LedgerRow]()
    for row, num_steps in epochs:
        if rows and rows[-1].noise_multiplier == row.noise_multiplier:
            row = rows.pop()
            row = row.begin_segment() if is_pass else row
        elif rows:
            row = row.behind(rows[-1], is_pass)
        rows.append(row.advance(num_steps))
    return rows
