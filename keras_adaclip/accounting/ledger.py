"""The privacy ledger: every release that a model has made, in integers.

    L = ((mechanism_1, steps_1, releases_1), ..., (mechanism_k, steps_k, releases_k))

Epsilon is a function of the ledger alone (`ledger_epsilon`), so a saved model can be accounted for
after loading. The ledger only grows: new noise, sampling rates or data start another row, a full
table merges rows upward in epsilon, and loading a checkpoint removes nothing that this process has
released. The smallest delta that was promised stays with it: a larger one would renew a budget.
"""

import collections
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np
import numpy.typing as npt

from keras_adaclip._checks import check_between_0_and_1, check_integer
from keras_adaclip.accounting.epsilon import default_delta
from keras_adaclip.accounting.kinds import NUM_COST_ROWS, NUM_INTEGERS, SelectionCost, Unit
from keras_adaclip.accounting.merging import add_rows, compact_rows
from keras_adaclip.accounting.row import SELECTED, LedgerRow, Mechanism

# The first integer of a row of a table that holds the promised delta, in the next two.
_PROMISE = -1


@dataclasses.dataclass(frozen=True)
class Ledger:
    """Rows of what ran, in order. The last row is the one that is running.

    Rows without steps are dropped, except the last, which may be about to run.

    Args:
        rows: The rows.
        promised_delta: The smallest delta for which a target epsilon was promised; 1 if none was.

    Raises:
        ValueError: If some steps are about examples and others about clients.

    Guarantees:
        No method returns a ledger with a smaller epsilon than the ledger it was called on, under
        the same neighbouring relation. (Fixed-size batches are stated for replacing a unit, and
        truncated draws for adding or removing one. With other steps among them, or merged with
        others, all steps are stated for zeroing out a unit, which is a smaller change.)

    Example:

    >>> from keras_adaclip.accounting import Sampling
    >>> first = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0)
    >>> second = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.5)
    >>> ledger = Ledger().append(first).advance(10).append(second).advance(5)
    >>> [(row.steps, row.noise_multiplier) for row in ledger]
    [(10, 1.0), (5, 1.5)]
    >>> Ledger.from_arrays(*ledger.to_arrays(max_rows=8)) == ledger
    True
    """

    rows: tuple[LedgerRow, ...] = ()
    promised_delta: float = 1.0

    def __post_init__(self) -> None:
        rows = tuple(self.rows)
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
        """The unit of privacy; None if no step ran."""
        return next((row.unit for row in self.rows if row.steps > 0), None)

    @property
    def current(self) -> LedgerRow | None:
        """The row that is running; None if there are no rows."""
        return self.rows[-1] if self.rows else None

    @property
    def num_examples(self) -> int:
        """Units of the largest data set on which steps ran; 0 if none ran or none is known."""
        return max((row.num_examples for row in self.rows if row.steps > 0), default=0)

    @property
    def steps(self) -> int:
        """Steps in all rows."""
        return sum(row.steps for row in self.rows)

    @property
    def releases(self) -> int:
        """Releases in all rows."""
        return sum(row.releases for row in self.rows)

    def budget_delta(self, delta: float | None, num_examples: int) -> float:
        """The delta at which a target epsilon holds from now on, never above the promised one.

        Args:
            delta: The delta that was asked for; None for the default of the largest data set.
            num_examples: Units of the next data set.
        """
        # With a larger delta, a smaller data set would renew the budget.
        delta = delta or default_delta(max(num_examples, self.num_examples, 2))
        return min(delta, self.promised_delta)

    def append(self, row: LedgerRow) -> Self:
        """The ledger with `row` as the one that runs from now on.

        If there is a row with the same mechanism, it moves to the end and `row` is added to it.
        Training that alternates between two settings thus takes two rows.

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
        return dataclasses.replace(self, rows=(*others, row))

    def advance(self, num_steps: int) -> Self:
        """The ledger after `num_steps` more steps of the running row.

        Args:
            num_steps: Number of steps, at least 0.

        Returns:
            The new ledger.

        Raises:
            ValueError: If there is no row.
        """
        if not self.rows:
            raise ValueError("An empty `Ledger` has no row that could run: `append` one first.")
        return dataclasses.replace(self, rows=(*self.rows[:-1], self.rows[-1].advance(num_steps)))

    def begin_segment(self) -> Self:
        """The ledger at the start of another `fit` call, which begins a pass."""
        last = tuple(row.begin_segment() for row in self.rows[-1:])
        return dataclasses.replace(self, rows=(*self.rows[:-1], *last))

    def compact(self, max_rows: int) -> Self:
        """The ledger in at most `max_rows` rows, merged upward in epsilon, never downward.

        The running row stays as it is, because training continues with that mechanism.

        Args:
            max_rows: Rows to keep, at least 2. Selected runs count as the rows that they take in a
                table.

        Returns:
            The new ledger.

        Raises:
            ValueError: If `max_rows` is below 2 or too few for selected runs, or the counts no
                longer fit int32.
        """
        max_rows = check_integer("max_rows", max_rows, minimum=2)
        return dataclasses.replace(self, rows=compact_rows(self.rows, max_rows))

    def is_covered_by(self, other: "Ledger") -> bool:
        """Whether `other` holds at least these steps and releases of each mechanism.

        Args:
            other: The ledger that may hold more.
        """
        return _totals(self) <= _totals(other)

    def union_upward(self, other: "Ledger", *, same_run: bool = False) -> Self:
        """The ledger of this process joined with one that was loaded from a checkpoint.

        The loaded ledger may be an earlier state of this run, whose releases this ledger already
        holds, or another run with the same settings, whose releases come on top. The counts cannot
        tell: 100 steps cover 50 steps in both cases. So the ledgers are *added up*, which always
        holds. Only if the caller knows that both are states of one run, and one covers the other,
        is the result the later one, and a rewound checkpoint changes nothing.

        Args:
            other: The ledger that was loaded.
            same_run: Whether both are states of one run. The caller must know this, for example
                from an identity that is drawn when a run begins, is saved with it, and is drawn
                again by a process that continues from a checkpoint of another.

        Returns:
            A ledger whose epsilon is not below that of either, with the smaller promised delta. If
            this ledger has a running row, the result has a running row with the same mechanism.
        """
        promised = min(self.promised_delta, other.promised_delta)
        if same_run and other.is_covered_by(self):
            return dataclasses.replace(self, promised_delta=promised)
        theirs = type(self)(other.rows, promised).begin_segment()
        if self.current is None:
            return theirs
        if same_run and self.is_covered_by(other):
            # Their ledger holds our steps, but maybe not the mechanism that is about to run.
            idle = dataclasses.replace(self.current, steps=0, releases=0).begin_segment()
            return theirs.append(idle)
        for row in self.rows:
            theirs = theirs.append(row)
        return theirs

    def to_arrays(
        self, max_rows: int | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The ledger as a table of fixed size, for the variables of an optimizer.

        Args:
            max_rows: Rows of the table, at least 2, or 3 with a promised delta. A longer ledger is
                merged upward to fit. None takes as many as are needed.

        Returns:
            Integers of shape `(max_rows, 7)` and noise multipliers of shape `(max_rows,)`. Unused
            rows are 0, a promised delta takes the first, and the running row is the last in use.

        Raises:
            ValueError: If `max_rows` is below 2, or the counts no longer fit int32.
        """
        max_rows = max_rows or 3 + sum(row.num_table_rows for row in self.rows)
        integers = np.zeros((max_rows, NUM_INTEGERS), dtype=np.int32)
        noise_multipliers = np.zeros(max_rows, dtype=np.float32)
        index = int(self.promised_delta < 1.0)
        if index:
            integers[0, 0] = _PROMISE
            integers[0, 1:3] = np.array([self.promised_delta]).view(np.int32)
        for row in self.compact(max_rows - index):
            integers[index] = row.to_integers()
            noise_multipliers[index] = row.noise_multiplier
            if row.selection is not None:
                integers[index + 1 : index + row.num_table_rows] = row.selection.to_integers()
            index += row.num_table_rows
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
            ValueError: If the shapes disagree, or the numbers of a row are impossible.
        """
        table, noise = np.asarray(integers), np.asarray(noise_multipliers)
        is_table = table.shape == (*noise.shape, NUM_INTEGERS) and noise.ndim == 1
        if not is_table or not np.issubdtype(table.dtype, np.integer):
            raise ValueError(
                f"Arguments `integers` and `noise_multipliers` must have the shapes (rows, "
                f"{NUM_INTEGERS}) and (rows,), the first one of integers. Received: shapes "
                f"{table.shape} and {noise.shape}, integers of type {table.dtype}"
            )
        rows, index, promised = [], 0, 1.0
        if len(table) and table[0, 0] == _PROMISE:
            delta = np.ascontiguousarray(table[0, 1:3], np.int32).view(np.float64).item()
            index, promised = 1, check_between_0_and_1("promised_delta", delta)
        while index < len(table):
            selection, end = None, index + 1
            if table[index, 0] & SELECTED and table[index, 0] > 0:
                end += NUM_COST_ROWS
                selection = SelectionCost.from_integers(table[index + 1 : end])
            if table[index].any():
                rows.append(LedgerRow.from_integers(table[index], float(noise[index]), selection))
            index = end
        return cls(tuple(rows), promised)


def _totals(rows: Iterable[LedgerRow]) -> collections.Counter[tuple[Mechanism, str]]:
    """Return steps and releases of each mechanism."""
    totals: collections.Counter[tuple[Mechanism, str]] = collections.Counter()
    for row in rows:
        totals[row.mechanism, "steps"] += row.steps
        totals[row.mechanism, "releases"] += row.releases
    return totals
