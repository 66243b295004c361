"""The privacy ledger: every release that a model has made, in integers.

    L = ((mechanism_1, steps_1, releases_1), ..., (mechanism_k, steps_k, releases_k))

Epsilon is a function of the ledger alone (`ledger_epsilon`), so what is saved with a model is
enough to account for it after loading. The ledger only ever grows: a change of noise, of sampling
rate or of data starts another row, a table that is full merges rows upward, and a checkpoint that
is loaded over a running process takes nothing away from what that process has released.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np
import numpy.typing as npt

from keras_adaclip.accounting import _validation
from keras_adaclip.accounting.kinds import Sampling, Unit
from keras_adaclip.accounting.merging import add_rows, compact
from keras_adaclip.accounting.rows import (
    NUM_INTEGERS,
    SELECTED,
    LedgerRow,
    Mechanism,
)
from keras_adaclip.accounting.selection_cost import SelectionCost

__all__ = ["Ledger", "LedgerRow", "Sampling"]


@dataclasses.dataclass(frozen=True)
class Ledger:
    """Rows of what ran, in order; the last one is the row that is running.

    Rows in which no step ran are dropped, except the last, which may be about to run.

    Args:
        rows: The rows.

    Raises:
        TypeError: If something else than a `LedgerRow` is among them.
        ValueError: If steps about examples and steps about clients are.

    Guarantees:
        No method returns a ledger with a smaller epsilon than the ledger it was called on, under
        the same neighbouring relation. (Batches of a fixed size are stated for replacing a unit;
        with other steps among them, all is stated for zeroing one out, which is less.)

    Example:

    >>> first = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0)
    >>> second = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.5)
    >>> ledger = Ledger().append(first).advance(10).append(second).advance(5)
    >>> [(row.steps, row.noise_multiplier) for row in ledger]
    [(10, 1.0), (5, 1.5)]
    >>> Ledger.from_arrays(*ledger.to_arrays(max_rows=8)) == ledger
    True
    """

    rows: tuple[LedgerRow, ...] = ()

    def __post_init__(self) -> None:
        rows = tuple(self.rows)
        for row in rows:
            if not isinstance(row, LedgerRow):
                raise TypeError(
                    f"Argument `rows` must hold `LedgerRow`s. Received: a {type(row).__name__}"
                )
        if len({row.unit for row in rows if row.steps > 0}) > 1:
            raise ValueError(
                "A ledger cannot hold steps about single examples and steps about whole clients: "
                "they do not add up to an epsilon for either. Train a model in one way only, or "
                "begin with weights that have not been trained on these data."
            )
        kept = tuple(row for row in rows[:-1] if row.steps > 0) + rows[-1:]
        object.__setattr__(self, "rows", kept)

    def __iter__(self) -> Iterator[LedgerRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def unit(self) -> Unit | None:
        """Whose privacy the steps are about; None where there are none."""
        return next((row.unit for row in self.rows if row.steps > 0), None)

    @property
    def current(self) -> LedgerRow | None:
        """The row that is running, if there is any row."""
        return self.rows[-1] if self.rows else None

    @property
    def steps(self) -> int:
        """Steps in all rows."""
        return sum(row.steps for row in self.rows)

    @property
    def releases(self) -> int:
        """Releases in all rows."""
        return sum(row.releases for row in self.rows)

    def append(self, row: LedgerRow) -> Self:
        """The ledger with `row` as the one that runs from now on.

        A row of the same mechanism that is there already moves to the end and `row` is added to
        it, so that training in turns with two settings takes two rows, not one a turn.

        Args:
            row: The row, usually a fresh one (`LedgerRow.open`).

        Returns:
            The new ledger.
        """
        others = []
        for present in self.rows:
            if present.mechanism == row.mechanism:
                row = add_rows(present, row)
            else:
                others.append(present)
        return type(self)((*others, row))

    def advance(self, num_steps: int) -> Self:
        """The ledger after `num_steps` more steps of the running row.

        Args:
            num_steps: Number of steps, from 0.

        Returns:
            The new ledger.

        Raises:
            ValueError: If there is no row to run.
        """
        if not self.rows:
            raise ValueError("An empty `Ledger` has no row that could run: `append` one first.")
        return type(self)((*self.rows[:-1], self.rows[-1].advance(num_steps)))

    def begin_segment(self) -> Self:
        """The ledger at the start of another `fit` call, which opens a new pass."""
        return type(self)((*self.rows[:-1], *(row.begin_segment() for row in self.rows[-1:])))

    def compact(self, max_rows: int) -> Self:
        """The ledger in at most `max_rows` rows, merged upward in epsilon, never downward.

        The running row is left as it is, for training goes on with just that mechanism.

        Args:
            max_rows: Rows to keep, from 2. Selected runs count as the rows of a table that they
                take.

        Returns:
            The new ledger.

        Raises:
            ValueError: If `max_rows` is below 2 or too few for selected runs, or the counts no
                longer fit int32.
        """
        max_rows = _validation.check_integer(max_rows, "max_rows", minimum=2)
        return type(self)(compact(self.rows, max_rows))

    def is_covered_by(self, other: "Ledger") -> bool:
        """Whether `other` holds at least these steps and releases of each mechanism.

        Args:
            other: the ledger that may hold more.
        """
        theirs = _totals(other.rows)
        return all(
            steps <= theirs.get(mechanism, (0, 0))[0]
            and releases <= theirs.get(mechanism, (0, 0))[1]
            for mechanism, (steps, releases) in _totals(self.rows).items()
        )

    def union_upward(self, other: "Ledger", *, same_run: bool = False) -> Self:
        """This process's ledger joined with one that was loaded from a checkpoint.

        Counts cannot tell a past state of the same run, whose releases are all among those that
        the run has made by now, from another run with the same settings, whose releases come on
        top: 50 steps are covered by 100 steps in both cases. So the two are *added up*, which
        holds always, unless the caller knows that they are states of one run and one covers the
        other: then the later one is the result, and a rewound checkpoint changes nothing. Where
        neither covers the other they went separate ways, and are added up all the same.

        Args:
            other: The ledger that was loaded.
            same_run: Whether both are states of one run. The caller must know this, such as by an
                identity that is drawn when a run begins, saved with it, and drawn anew by a
                process that goes on from a checkpoint of another.

        Returns:
            A ledger whose epsilon is not below that of either. Its running row is of the
            mechanism that runs in this one, if any.
        """
        if same_run and other.is_covered_by(self):
            return self
        theirs = type(self)(other.rows).begin_segment()
        if self.current is None:
            return theirs
        if same_run and self.is_covered_by(other):
            # Our steps are among theirs; only the mechanism that runs here may not be.
            idle = dataclasses.replace(self.current, steps=0, releases=0).begin_segment()
            return theirs.append(idle)
        for row in self.rows:
            theirs = theirs.append(row)
        return theirs

    def to_arrays(self, max_rows: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The ledger as a table of fixed size, to be kept among an optimizer's variables.

        Args:
            max_rows: Rows of the table, from 2. A longer ledger is merged upward to fit.

        Returns:
            Integers of shape `(max_rows, 7)` and noise multipliers of shape `(max_rows,)`; rows
            that are not used are 0, and the running row is the last one used.

        Raises:
            ValueError: If `max_rows` is below 2, or the counts no longer fit int32.
        """
        integers = np.zeros((max_rows, NUM_INTEGERS), dtype=np.int32)
        noise_multipliers = np.zeros(max_rows, dtype=np.float32)
        index = 0
        for row in self.compact(max_rows):
            integers[index] = row.to_integers()
            noise_multipliers[index] = row.noise_multiplier
            end = index + row.num_table_rows
            if row.selection is not None:
                integers[index + 1 : end] = row.selection.to_integers(NUM_INTEGERS)
            index = end
        return integers, noise_multipliers

    @classmethod
    def from_arrays(cls, integers: npt.ArrayLike, noise_multipliers: npt.ArrayLike) -> Self:
        """The inverse of `to_arrays`.

        Args:
            integers: Integers, of shape `(max_rows, 7)`.
            noise_multipliers: Noise multipliers, of shape `(max_rows,)`.

        Returns:
            The ledger.

        Raises:
            ValueError: If the shapes disagree, or a row holds impossible numbers.
        """
        table, noise = np.asarray(integers), np.asarray(noise_multipliers)
        if table.shape != (*noise.shape, NUM_INTEGERS) or noise.ndim != 1:
            raise ValueError(
                f"Arguments `integers` and `noise_multipliers` must have the shapes (rows, "
                f"{NUM_INTEGERS}) and (rows,). Received: shapes {table.shape} and {noise.shape}"
            )
        rows, index = [], 0
        while index < len(table):
            row, noise_multiplier, selection = table[index], float(noise[index]), None
            index += 1
            if row[0] >= SELECTED:
                end = index + SelectionCost.num_rows(NUM_INTEGERS)
                selection = SelectionCost.from_integers(table[index:end])
                index = end
            if row.any():
                rows.append(LedgerRow.from_integers(row, noise_multiplier, selection))
        return cls(tuple(rows))


def _totals(rows: Iterable[LedgerRow]) -> dict[Mechanism, tuple[int, int]]:
    """Steps and releases by mechanism, of the rows in which something ran."""
    totals: dict[Mechanism, tuple[int, int]] = {}
    for row in rows:
        if row.steps > 0:
            steps, releases = totals.get(row.mechanism, (0, 0))
            totals[row.mechanism] = (steps + row.steps, releases + row.releases)
    return totals
