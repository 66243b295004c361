"""One row of the privacy ledger: a mechanism, and how often it ran.

A row holds integers and the float32 noise multiplier that ran. Sampling probabilities and events
are computed from these, so a row that was saved and loaded is accounted exactly like a row that
stayed in memory.

A *release* is what costs privacy: one Gaussian mechanism over all units that it can touch. With
Poisson sampling, each step is one release. Without amplification, a whole pass over the data is
one release: each unit is in a single batch of the pass, so the steps of a pass compose in parallel.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Self

import numpy as np
import numpy.typing as npt

from keras_adaclip import _checks
from keras_adaclip._checks import INT32_MAX, LARGEST_MAX_BATCH_SIZE
from keras_adaclip.accounting.kinds import NUM_COST_ROWS, Sampling, SelectionCost, Unit

_KINDS_OF_SAMPLING = 16
# Added to the first integer of a row if the next rows of the table hold a `SelectionCost`.
SELECTED = 1 << 10
# The first integer of a row is below this, plus as many times this as the largest batch has units.
_KINDS = 1 << 11

Mechanism = tuple[int, int, int, int, int, int, float, SelectionCost | None]


@dataclasses.dataclass(frozen=True)
class LedgerRow:
    """One mechanism and how often it ran.

    Args:
        sampling: How units were drawn.
        expected_batch_size: Expected number of units a step, at least 1; sums are divided by it.
        num_examples: Number of units in the data; 0 if unknown, with `STREAM` and `PASS` only.
        steps_per_release: The most steps that one release lasts.
        steps: Steps that ran.
        releases: Releases that were opened; the accountant counts these.
        steps_in_release: Steps of the open release so far. Equal to `steps_per_release` if no
            release is open, so that the next step opens one.
        noise_multiplier: Standard deviation of the noise over the sensitivity of the sum. Rounded
            to the nearest float32, as in training.
        unit: The unit of privacy, whose contribution the sensitivity bounds.
        selection: What one release costs, if it is the best of several runs. Sampling, noise and
            batch size are then those of the run with the least noise.
        max_batch_size: The most units a step, with `TRUNCATED_POISSON` only; 0 otherwise.

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

    sampling: Sampling
    expected_batch_size: int
    num_examples: int
    steps_per_release: int
    steps: int
    releases: int
    steps_in_release: int
    noise_multiplier: float
    unit: Unit = Unit.EXAMPLE
    selection: SelectionCost | None = None
    max_batch_size: int = 0

    def __post_init__(self) -> None:
        noise_multiplier = _checks.check_noise_multiplier(self.noise_multiplier)
        checked: dict[str, int | float] = {
            "sampling": Sampling(self.sampling),
            "unit": Unit(self.unit),
            "noise_multiplier": float(np.float32(noise_multiplier)),
        }
        for name, minimum in _MINIMA.items():
            checked[name] = _checks.check_integer(name, getattr(self, name), minimum=minimum)
        checked["max_batch_size"] = _checks.check_integer(
            "max_batch_size", self.max_batch_size, minimum=0, maximum=LARGEST_MAX_BATCH_SIZE
        )
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        for rule in self._broken_rules():
            names = (*_MINIMA, "max_batch_size")
            received = ", ".join(f"{name}={getattr(self, name)}" for name in names)
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
        if self.steps_per_release != 1 and not sampling.is_counted_in_passes:
            yield f"`steps_per_release` must be 1 for sampling={label}"
        if self.steps_in_release > self.steps_per_release:
            yield "`steps_in_release` must not exceed `steps_per_release`"
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
        steps_per_release: int | None = None,
        unit: Unit = Unit.EXAMPLE,
        max_batch_size: int = 0,
    ) -> Self:
        """A row in which nothing has run yet.

        Args:
            sampling: How units are drawn.
            expected_batch_size: Expected number of units a step.
            num_examples: Number of units in the data; 0 if unknown.
            noise_multiplier: Standard deviation of the noise over the sensitivity of the sum.
            steps_per_release: Steps of one pass, for `PASS` only; by default, a pass lasts until
                the next segment. For other samplings, the number follows.
            unit: The unit of privacy.
            max_batch_size: The most units a step, for `TRUNCATED_POISSON` only.

        Returns:
            The row, whose first step opens a release.

        Raises:
            ValueError: If `steps_per_release` is given for another sampling than `PASS`.
        """
        sampling = Sampling(sampling)
        if steps_per_release is not None and sampling is not Sampling.PASS:
            raise ValueError(
                "Argument `steps_per_release` is for sampling='pass' only. Received: "
                f"steps_per_release={steps_per_release}, sampling={sampling.label!r}"
            )
        if sampling is Sampling.SHUFFLE:
            _checks.check_integer("expected_batch_size", expected_batch_size, minimum=1)
            steps_per_release = max(1, math.ceil(num_examples / expected_batch_size))
        elif steps_per_release is None:
            steps_per_release = INT32_MAX if sampling is Sampling.PASS else 1
        return cls(
            sampling,
            expected_batch_size,
            num_examples,
            steps_per_release,
            steps=0,
            releases=0,
            steps_in_release=steps_per_release,
            noise_multiplier=noise_multiplier,
            unit=unit,
            max_batch_size=max_batch_size,
        )

    @property
    def sampling_probability(self) -> float:
        """Probability that a step draws a unit, from the integers; 1 if unknown."""
        if self.num_examples == 0:
            return 1.0
        return min(1.0, self.expected_batch_size / self.num_examples)

    @property
    def mechanism(self) -> Mechanism:
        """What ran, without how often. Rows with equal mechanisms add up exactly."""
        sampled = (int(self.sampling), self.expected_batch_size, self.num_examples)
        released = (self.steps_per_release, self.noise_multiplier, self.selection)
        return (int(self.unit), *sampled, self.max_batch_size, *released)

    @property
    def samplings(self) -> frozenset[Sampling]:
        """The sampling scheme; those of all runs if the row is about selected runs."""
        return frozenset({self.sampling}) if self.selection is None else self.selection.samplings

    @property
    def num_table_rows(self) -> int:
        """Rows that it takes in a table of integers."""
        return 1 if self.selection is None else 1 + NUM_COST_ROWS

    @property
    def free_steps(self) -> int:
        """Steps that the open release has room for, which cost nothing more."""
        return self.steps_per_release - self.steps_in_release

    def advance(self, num_steps: int) -> Self:
        """The row after `num_steps` more steps.

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
        in_release = self.steps_in_release + num_steps - opened * self.steps_per_release
        return dataclasses.replace(
            self,
            steps=self.steps + num_steps,
            releases=self.releases + opened,
            steps_in_release=in_release,
        )

    def begin_segment(self) -> Self:
        """The row at the start of another `fit` call, which begins a pass and so a release."""
        return dataclasses.replace(self, steps_in_release=self.steps_per_release)

    def as_stream(self) -> Self:
        """A fresh row with the same noise, in which every step is one full release."""
        return type(self).open(
            Sampling.STREAM,
            self.expected_batch_size,
            self.num_examples,
            self.noise_multiplier,
            unit=self.unit,
        )

    def to_integers(self) -> npt.NDArray[np.int32]:
        """The integers, in the order of the fields, without `selection`. Shape: `(7,)`.

        The first integer is the sampling, plus 16 times the unit, plus `SELECTED` if there is a
        selection, plus 2048 times `max_batch_size`.
        """
        integers = np.array([getattr(self, name) for name in _INTEGER_FIELDS], dtype=np.int32)
        integers[0] += _KINDS_OF_SAMPLING * self.unit + (SELECTED if self.selection else 0)
        integers[0] += _KINDS * self.max_batch_size
        return integers

    @classmethod
    def from_integers(
        cls,
        integers: npt.ArrayLike,
        noise_multiplier: float,
        selection: SelectionCost | None = None,
    ) -> Self:
        """The inverse of `to_integers`.

        Args:
            integers: Integers, of shape `(7,)`.
            noise_multiplier: The noise multiplier that ran.
            selection: The selection, which the integers do not hold.

        Returns:
            The row.

        Raises:
            ValueError: If the numbers do not make a row.
        """
        kind, *counts = np.asarray(integers).tolist()
        # A negative kind was never written. It stays as it is, for the error to name it.
        max_batch_size, kind = divmod(kind, _KINDS) if kind >= 0 else (0, kind)
        kind -= SELECTED if selection else 0
        unit, sampling = divmod(kind, _KINDS_OF_SAMPLING) if kind >= 0 else (0, kind)
        return cls(
            sampling=Sampling(sampling),
            noise_multiplier=float(noise_multiplier),
            unit=Unit(unit),
            selection=selection,
            max_batch_size=max_batch_size,
            **dict(zip(_MINIMA, counts, strict=True)),
        )


_MINIMA = {
    "expected_batch_size": 1,
    "num_examples": 0,
    "steps_per_release": 1,
    "steps": 0,
    "releases": 0,
    "steps_in_release": 1,
}
_INTEGER_FIELDS = ("sampling", *_MINIMA)
