"""The distribution of a draw and its random numbers.

A Poisson draw is a set of units whose size follows Binomial(num_units, q), the units then chosen
uniformly without replacement. This is the distribution of one coin toss for each unit. An empty
draw is a step too. The accountant's amplification by sampling holds for this distribution and not
for shuffling (Mironov et al. 2019, "Renyi differential privacy of the sampled Gaussian mechanism").
"""

import functools
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np
from numpy.random import Generator

from keras_adaclip._checks import check_integer

# Sets the draws apart from the noise, whose keys may come from the same seed.
_SAMPLING_STREAM, _UNITS_STREAM = 2, 3
_KINDS, _MISSING_IDS = (Integral, str, bytes), ("", "nan", "None", "<NA>")
_MOST_ROWS = 100_000


@dataclass(frozen=True)
class ProcessShare:
    """One process's share of the units of a data set that several processes hold.

    All processes together make one draw without sending anything: each makes the whole draw, from
    random bits that they share, and keeps its own units. Units are numbered process by process.

    Args:
        units_of_processes: The number of units that each process holds.
        number: The number of this process, from 0.
        shared_bits: 128 random bits as integers, the same in all processes and unknown to anyone
            else; empty for one process.
        first_rows: A batch of a few rows, the same in all processes.
    """

    units_of_processes: tuple[int, ...]
    number: int = 0
    shared_bits: tuple[int, ...] = ()
    first_rows: dict[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def ends(self) -> np.ndarray:
        """The number of units up to the end of each process's share."""
        return np.cumsum(self.units_of_processes)

    @property
    def first_unit(self) -> int:
        """The number of this process's first unit among those of all."""
        return int(self.ends[self.number]) - self.units_of_processes[self.number]

    def process_of(self, units: Any) -> Any:
        """Return the number of the process that holds each unit."""
        return np.searchsorted(self.ends, units, side="right")

    def part_of(self, units: np.ndarray) -> tuple[np.ndarray, int]:
        """Return this process's units of a draw, by their numbers here; and the largest part."""
        if len(self.units_of_processes) == 1:
            return units, len(units)
        processes = self.process_of(units)
        own = units[processes == self.number] - self.first_unit
        return own, int(np.bincount(processes, minlength=1).max())


class DrawStream:
    """The random generators of draws, no two of which are the same within a run or across runs.

    Args:
        seed: None draws from the operating system. An integer makes the draws repeatable.
        share: The units of this process, if several make each draw together.
    """

    def __init__(self, seed: int | None, share: ProcessShare | None = None) -> None:
        self._seed, self._shared_bits = seed, share.shared_bits if share else ()
        self._numbers = itertools.count()
        self.begin_run(0)

    def begin_run(self, steps_before: int) -> None:
        """Make the draws that follow differ from those of earlier runs with the same seed.

        Args:
            steps_before: The number of steps on the model's ledger before the run.
        """
        self._steps_before, self._process = steps_before, os.getpid()

    def next(self) -> Generator:
        """Return the random generator of one new draw."""
        # A forked process would repeat the draws of its parent.
        seed: int | Sequence[int] | None = self._seed if self._process == os.getpid() else None
        if seed is None:
            seed = self._shared_bits or None
        if seed is None:
            return np.random.default_rng()
        key = (_SAMPLING_STREAM, self._steps_before, next(self._numbers))
        return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def uniform_draw(generator: Generator, num_units: int, size: int) -> np.ndarray:
    """Return the ascending numbers of `size` distinct units, every set being equally likely."""
    return np.sort(generator.choice(num_units, size, replace=False, shuffle=False))


def poisson_draw(generator: Generator, num_units: int, sampling_probability: float) -> np.ndarray:
    """Return the ascending numbers of the units in one Poisson draw, which may be empty.

    Args:
        generator: The source of randomness.
        num_units: The number of units to draw from.
        sampling_probability: The probability of each unit, between 0 and 1.
    """
    size = generator.binomial(num_units, sampling_probability)
    return uniform_draw(generator, num_units, size)


def rows_of_units(
    unit_ids: Any, max_rows_per_unit: int | None, num_rows: int, seed: int | None
) -> np.ndarray:
    """Return which rows stay if each unit keeps so many at most, chosen at random.

    Each row has a random priority of its own, and a unit keeps those of the least. So the rows that
    a unit keeps depend on its own rows alone.

    Args:
        unit_ids: Integers or strings, of shape `(num_rows,)`.
        max_rows_per_unit: The most rows of a unit, from 1 to 100,000.
        num_rows: The number of rows.
        seed: None draws from the operating system.

    Returns:
        A bool array of shape `(num_rows,)`.

    Raises:
        ValueError: If ids have another form, some are missing, or there is no largest number.
    """
    if unit_ids is None or max_rows_per_unit is None:
        raise ValueError(
            "Arguments `unit_ids` and `max_rows_per_unit` come together: whose each row is, and "
            "how many rows of a person train at most, a public number such as 3. "
            f"Received: unit_ids of type {type(unit_ids).__name__}, {max_rows_per_unit=}"
        )
    # As objects, since NumPy would make names of None and NaN among strings.
    ids = np.asarray(unit_ids, None if hasattr(unit_ids, "__array__") else object)
    kinds = {next((kind for kind in _KINDS if isinstance(each, kind)), None) for each in ids.flat}
    is_missing = np.isin(ids.astype(str), _MISSING_IDS).any()
    if ids.shape != (num_rows,):
        raise ValueError(
            f"Argument `unit_ids` must hold one id for each of the {num_rows:,} rows. "
            f"Received: ids of shape {ids.shape}"
        )
    if len(kinds) != 1 or None in kinds or is_missing:
        raise ValueError(
            "Argument `unit_ids` must hold an integer or a string for each row, all of one kind "
            "and none missing (as '' and 'nan' are). Rows of which nobody knows whose they are "
            "cannot be protected for a person: leave them out. "
            f"Received: ids of dtype {ids.dtype}"
        )
    most = check_integer("max_rows_per_unit", max_rows_per_unit, minimum=1, maximum=_MOST_ROWS)
    units = np.unique(ids, return_inverse=True)[1]
    key = None if seed is None else np.random.SeedSequence(seed, spawn_key=(_UNITS_STREAM,))
    order = np.lexsort((np.random.default_rng(key).random(num_rows), units))
    ordered = units[order]
    stays = np.zeros(num_rows, bool)
    stays[order] = np.arange(num_rows) - np.searchsorted(ordered, ordered) < most
    return stays


def truncated_draw(generator: Generator, units: np.ndarray, most: int | None) -> np.ndarray:
    """Return a draw, cut at random if it is too large; every remaining set is equally likely.

    Args:
        generator: The source of randomness.
        units: The ascending numbers of the units in the draw.
        most: The most units to keep; None keeps all.
    """
    if most is None or len(units) <= most:
        return units
    return units[uniform_draw(generator, len(units), most)]
