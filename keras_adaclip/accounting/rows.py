"""One row of the privacy ledger: a mechanism, and how often it ran.

A row holds integers and the float32 noise multiplier that ran, and nothing derived: sampling
probability and events are recomputed from them, so that a row that was saved, loaded and continued
accounts exactly as one that never left memory.

A *release* is what costs privacy: one Gaussian mechanism over every unit that it may touch. With
Poisson sampling each step is one. Without amplification a whole pass over the data is one, because
each unit adds to a single batch of it: the steps of a pass compose in parallel.
"""

import dataclasses
import math
from typing import Self

import numpy as np
import numpy.typing as npt

from keras_adaclip.accounting import _validation
from keras_adaclip.accounting._validation import INT32_MAX
from keras_adaclip.accounting.kinds import Sampling, Unit
from keras_adaclip.accounting.selection_cost import SelectionCost

NUM_INTEGERS = 7
# What the first integer has more where the next rows of a table hold the cost of a selection.
SELECTED = 1 << 10

Mechanism = tuple[int, int, int, int, int, float, SelectionCost | None]


@dataclasses.dataclass(frozen=True)
class LedgerRow:
    """One mechanism and how often it ran.

    Args:
        sampling: How units were drawn.
        expected_batch_size: Expected number of units a step, from 1; what sums are divided by.
        num_examples: Number of units in the data; 0 for unknown, with `STREAM` and `PASS` only.
        steps_per_release: Steps that one release lasts at most.
        steps: Steps that ran.
        releases: Releases that were opened; what the accountant sees.
        steps_in_release: Steps that the open release has had. Equal to `steps_per_release` when
            none is open, so that the next step opens one.
        noise_multiplier: Standard deviation of the noise over the sensitivity of the sum. Rounded
            to the nearest float32, as training itself does.
        unit: Whose contribution the sensitivity bounds.
        selection: What one release costs, if it is the best of several runs; then sampling, noise
            and batches are those of the run with the least noise.

    Raises:
        TypeError: If a count is not an integer.
        ValueError: If a number is out of range, or one contradicts another.

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

    def __post_init__(self) -> None:
        checked: dict[str, int | float] = {
            "sampling": Sampling(self.sampling),
            "unit": Unit(self.unit),
            "noise_multiplier": float(
                np.float32(_validation.check_noise_multiplier(self.noise_multiplier))
            ),
        }
        for name, minimum in _MINIMA.items():
            checked[name] = _validation.check_integer(getattr(self, name), name, minimum=minimum)
        for name, value in checked.items():
            object.__setattr__(self, name, value)
        self._check_consistency()

    def _check_consistency(self) -> None:
        if self.num_examples == 0 and self.sampling in _OF_KNOWN_SIZE:
            raise ValueError(
                f"Argument `num_examples` must be known for sampling={self.sampling.label!r}. "
                "Received: num_examples=0"
            )
        is_amplified = self.sampling in (Sampling.POISSON, Sampling.FIXED)
        if is_amplified and self.expected_batch_size > self.num_examples:
            raise ValueError(
                "Argument `expected_batch_size` must not exceed `num_examples`. Received: "
                f"expected_batch_size={self.expected_batch_size}, num_examples={self.num_examples}"
            )
        if not self.sampling.is_counted_in_passes and self.steps_per_release != 1:
            raise ValueError(
                f"Argument `steps_per_release` must be 1 for sampling={self.sampling.label!r}. "
                f"Received: steps_per_release={self.steps_per_release}"
            )
        if self.steps_in_release > self.steps_per_release:
            raise ValueError(
                "Argument `steps_in_release` must not exceed `steps_per_release`. Received: "
                f"steps_in_release={self.steps_in_release}, "
                f"steps_per_release={self.steps_per_release}"
            )
        if self.releases > self.steps or (self.steps > 0 and self.releases == 0):
            raise ValueError(
                "Argument `releases` must lie between 1 and `steps`, or both be 0. "
                f"Received: releases={self.releases}, steps={self.steps}"
            )

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
    ) -> Self:
        """A row in which nothing has run yet.

        Args:
            sampling: How units are drawn.
            expected_batch_size: Expected number of units a step.
            num_examples: Number of units in the data; 0 for unknown.
            noise_multiplier: Standard deviation of the noise over the sensitivity of the sum.
            unit: Whose contribution the sensitivity bounds.
            steps_per_release: Steps of one pass, for `PASS` only; by default a pass lasts until
                the next segment. The other kinds know theirs.

        Returns:
            The row, whose first step opens a release.

        Raises:
            ValueError: where `steps_per_release` is given for another kind than `PASS`.
        """
        sampling = Sampling(sampling)
        if steps_per_release is None:
            steps_per_release = _steps_per_release(sampling, expected_batch_size, num_examples)
        elif sampling is not Sampling.PASS:
            raise ValueError(
                "Argument `steps_per_release` is for sampling='pass' only. Received: "
                f"steps_per_release={steps_per_release}, sampling={sampling.label!r}"
            )
        return cls(
            sampling=sampling,
            expected_batch_size=expected_batch_size,
            num_examples=num_examples,
            steps_per_release=steps_per_release,
            steps=0,
            releases=0,
            steps_in_release=steps_per_release,
            noise_multiplier=noise_multiplier,
            unit=unit,
        )

    @property
    def sampling_probability(self) -> float:
        """Probability with which a step draws a unit, from the integers; 1 where unknown."""
        if self.num_examples == 0:
            return 1.0
        return min(1.0, self.expected_batch_size / self.num_examples)

    @property
    def mechanism(self) -> Mechanism:
        """What ran, without how often: rows that agree in it add up exactly."""
        return (
            int(self.unit),
            int(self.sampling),
            self.expected_batch_size,
            self.num_examples,
            self.steps_per_release,
            self.noise_multiplier,
            self.selection,
        )

    @property
    def samplings(self) -> frozenset[Sampling]:
        """How units were drawn; in the runs, where they were selected."""
        return frozenset({self.sampling}) if self.selection is None else self.selection.samplings

    @property
    def num_table_rows(self) -> int:
        """Rows that it takes in a table of integers."""
        return 1 if self.selection is None else 1 + SelectionCost.num_rows(NUM_INTEGERS)

    @property
    def free_steps(self) -> int:
        """Steps that the open release still has room for: they cost nothing more."""
        return self.steps_per_release - self.steps_in_release

    def advance(self, num_steps: int) -> Self:
        """The row after `num_steps` more steps.

        The twin in plain Python of what a compiled training step does to its variables: one more
        step; if the open release is used up, open another, else one more step in it.

        Args:
            num_steps: Number of steps, from 0.

        Returns:
            The new row.

        Raises:
            ValueError: If a counter would pass 2**31 - 1, or the row is one of selected runs.
        """
        if self.selection is not None:
            raise ValueError("No step can run in a row of selected runs: `append` another row.")
        num_steps = _validation.check_integer(num_steps, "num_steps")
        beyond = num_steps - self.free_steps
        if beyond <= 0:
            opened, in_release = 0, self.steps_in_release + num_steps
        else:
            opened = -(-beyond // self.steps_per_release)
            in_release = beyond - (opened - 1) * self.steps_per_release
        return dataclasses.replace(
            self,
            steps=self.steps + num_steps,
            releases=self.releases + opened,
            steps_in_release=in_release,
        )

    def begin_segment(self) -> Self:
        """The row at the start of another `fit` call: a new pass, so a new release."""
        return dataclasses.replace(self, steps_in_release=self.steps_per_release)

    def as_stream(self) -> Self:
        """A fresh row with the same noise in which every step is one full release."""
        return type(self).open(
            Sampling.STREAM,
            self.expected_batch_size,
            self.num_examples,
            self.noise_multiplier,
            unit=self.unit,
        )

    def to_integers(self) -> npt.NDArray[np.int32]:
        """The integers, in the order of the fields, without `selection`. Shape: `(7,)`.

        The first one tells the unit as well: 16 times it are added to the kind of sampling, and
        `SELECTED` where runs were selected.
        """
        integers = np.array([getattr(self, name) for name in _INTEGER_FIELDS], dtype=np.int32)
        integers[0] += _KINDS_OF_SAMPLING * self.unit + (SELECTED if self.selection else 0)
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
            selection: What the integers do not hold.

        Returns:
            The row.

        Raises:
            ValueError: If the shape is wrong, or the numbers make no row.
        """
        array = np.asarray(integers)
        if array.shape != (NUM_INTEGERS,) or not np.issubdtype(array.dtype, np.integer):
            raise ValueError(
                f"Argument `integers` must hold {NUM_INTEGERS} integers. Received: "
                f"integers of shape {array.shape} and type {array.dtype}"
            )
        values = dict(zip(_INTEGER_FIELDS, array.tolist(), strict=True))
        kind = values.pop("sampling")
        # What is negative was never written: the error is to name it as it is.
        kind -= SELECTED if selection else 0
        unit, sampling = divmod(kind, _KINDS_OF_SAMPLING) if kind >= 0 else (0, kind)
        return cls(
            sampling=Sampling(sampling),
            noise_multiplier=float(noise_multiplier),
            unit=Unit(unit),
            selection=selection,
            **values,
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
_KINDS_OF_SAMPLING = 16
_OF_KNOWN_SIZE = (Sampling.POISSON, Sampling.SHUFFLE, Sampling.FIXED)


def _steps_per_release(sampling: Sampling, expected_batch_size: int, num_examples: int) -> int:
    if sampling is Sampling.SHUFFLE:
        batch_size = _validation.check_integer(
            expected_batch_size, "expected_batch_size", minimum=1
        )
        return max(1, math.ceil(num_examples / batch_size))
    return INT32_MAX if sampling is Sampling.PASS else 1
