"""The privacy ledger: every release that a model has made, in integers.

    L = ((mechanism_1, steps_1, releases_1), ..., (mechanism_k, steps_k, releases_k))

Epsilon is a function of the ledger alone (`ledger_epsilon`), so a saved model can be accounted for
after loading. The ledger only grows: new noise, sampling rates or data start another row, a full
table merges rows upward in epsilon, and loading a checkpoint removes nothing that this process has
released.

Merging makes one row of two. The merged row *dominates* both: it has the smaller noise multiplier,
the larger sampling probability and all releases. Rows with different samplings become `STREAM`,
full releases, which dominate every other kind. This may change the neighbouring relation under
which epsilon is stated (see `events.neighboring_relation`), but epsilon stays an upper bound.
"""

import collections
import dataclasses
import io
import itertools
import math
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import h5py
import numpy as np
import numpy.typing as npt

from keras_adaclip._checks import INT32_MAX, check_integer
from keras_adaclip.accounting.row import (
    NUM_COST_ROWS,
    NUM_INTEGERS,
    SELECTED,
    LedgerRow,
    Mechanism,
    Sampling,
    SelectionCost,
    Unit,
)

# The names of the ledger among the variables of a private model.
LEDGER_KEYS = (
    "privacy_ledger_rows",
    "privacy_ledger_noise",
    "privacy_ledger_identity",
    "privacy_ledger_included",
)
_WEIGHTS_IN_ARCHIVE = "model.weights.h5"
_OWN_VARIABLES = "vars"
_MOST_NUMBERS = 1 << 20
_LEAST_RANKED_NOISE = 0.04


@dataclasses.dataclass(frozen=True)
class Ledger:
    """Rows of what ran, in order. The last row is the one that is running.

    Rows without steps are dropped, except the last, which may be about to run.

    Args:
        rows: The rows.

    Raises:
        ValueError: If some steps are about examples and others about clients.

    Guarantees:
        No method returns a ledger with a smaller epsilon than the ledger it was called on, under
        the same neighbouring relation. (Fixed-size batches are stated for replacing a unit. With
        other steps among them, all steps are stated for zeroing out a unit, which is a smaller
        change.)

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
    def steps(self) -> int:
        """Steps in all rows."""
        return sum(row.steps for row in self.rows)

    @property
    def releases(self) -> int:
        """Releases in all rows."""
        return sum(row.releases for row in self.rows)

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
                row = _add_rows(present, row)
            else:
                others.append(present)
        return type(self)((*others, row))

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
        return type(self)((*self.rows[:-1], self.rows[-1].advance(num_steps)))

    def begin_segment(self) -> Self:
        """The ledger at the start of another `fit` call, which begins a pass."""
        return type(self)((*self.rows[:-1], *(row.begin_segment() for row in self.rows[-1:])))

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
        return type(self)(_compact(self.rows, max_rows))

    def is_covered_by(self, other: "Ledger") -> bool:
        """Whether `other` holds at least these steps and releases of each mechanism.

        Args:
            other: The ledger that may hold more.
        """
        ours, theirs = _totals(self.rows), _totals(other.rows)
        return all(np.all(total <= theirs[mechanism]) for mechanism, total in ours.items())

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
            A ledger whose epsilon is not below that of either. If this ledger has a running row,
            the result has a running row with the same mechanism.
        """
        if same_run and other.is_covered_by(self):
            return self
        theirs = type(self)(other.rows).begin_segment()
        if self.current is None:
            return theirs
        if same_run and self.is_covered_by(other):
            # Their ledger holds our steps, but maybe not the mechanism that is about to run.
            idle = dataclasses.replace(self.current, steps=0, releases=0).begin_segment()
            return theirs.append(idle)
        for row in self.rows:
            theirs = theirs.append(row)
        return theirs

    def to_arrays(self, max_rows: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The ledger as a table of fixed size, for the variables of an optimizer.

        Args:
            max_rows: Rows of the table, at least 2. A longer ledger is merged upward to fit.

        Returns:
            Integers of shape `(max_rows, 7)` and noise multipliers of shape `(max_rows,)`. Unused
            rows are 0, and the running row is the last one in use.

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
                integers[index + 1 : end] = row.selection.to_integers()
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
            ValueError: If the shapes disagree, or the numbers of a row are impossible.
        """
        table, noise = np.asarray(integers), np.asarray(noise_multipliers)
        if table.shape != (*noise.shape, NUM_INTEGERS) or noise.ndim != 1:
            raise ValueError(
                f"Arguments `integers` and `noise_multipliers` must have the shapes (rows, "
                f"{NUM_INTEGERS}) and (rows,). Received: shapes {table.shape} and {noise.shape}"
            )
        rows, index = [], 0
        while index < len(table):
            selection, end = None, index + 1
            if table[index, 0] >= SELECTED:
                end += NUM_COST_ROWS
                selection = SelectionCost.from_integers(table[index + 1 : end])
            if table[index].any():
                rows.append(LedgerRow.from_integers(table[index], float(noise[index]), selection))
            index = end
        return cls(tuple(rows))


def _totals(rows: Iterable[LedgerRow]) -> dict[Mechanism, npt.NDArray[np.int64]]:
    """Return steps and releases of each mechanism; zeros for all others."""
    totals: dict[Mechanism, npt.NDArray[np.int64]]
    totals = collections.defaultdict(lambda: np.zeros(2, np.int64))
    for row in rows:
        totals[row.mechanism] += (row.steps, row.releases)
    return totals


def _add_rows(first: LedgerRow, second: LedgerRow) -> LedgerRow:
    """The exact sum of two rows of one mechanism. The open release is that of the second row."""
    return dataclasses.replace(
        second, steps=first.steps + second.steps, releases=first.releases + second.releases
    )


def merge_upward(first: LedgerRow, second: LedgerRow) -> LedgerRow:
    """One closed row whose epsilon is never below that of the two rows together.

    Args:
        first: A row that does not run any more.
        second: Another one.

    Returns:
        The dominating row. Its next step opens a release.

    Raises:
        ValueError: If the rows are about different units or about selected runs, or the counts no
            longer fit int32.
    """
    if first.mechanism == second.mechanism:
        return _add_rows(first, second).begin_segment()
    if first.unit is not second.unit or first.selection or second.selection:
        raise ValueError(
            "Rows about examples and about clients cannot be merged, nor selections of runs."
        )
    steps = first.steps + second.steps
    noise_multiplier = min(first.noise_multiplier, second.noise_multiplier)
    denser = max(first, second, key=_exact_probability)
    sampling, steps_per_release = Sampling.STREAM, 1
    if first.sampling is second.sampling:
        sampling = first.sampling
        steps_per_release = max(first.steps_per_release, second.steps_per_release)
    return LedgerRow(
        sampling,
        denser.expected_batch_size,
        denser.num_examples,
        steps_per_release,
        steps,
        releases=first.releases + second.releases,
        steps_in_release=steps_per_release,
        noise_multiplier=noise_multiplier,
        unit=first.unit,
    )


def _exact_probability(row: LedgerRow) -> Fraction:
    """The sampling probability as a fraction. As floats, two different ones could be equal."""
    if row.num_examples == 0:
        return Fraction(1)
    return min(Fraction(1), Fraction(row.expected_batch_size, row.num_examples))


def _compact(rows: Sequence[LedgerRow], max_rows: int) -> tuple[LedgerRow, ...]:
    """Merge rows upward until at most `max_rows` are left; see `Ledger.compact`.

    The closed rows are sorted by their mechanisms. The pair of neighbours whose merging costs least
    is merged first.
    """
    if sum(row.num_table_rows for row in rows) <= max_rows:
        return tuple(rows)
    selected = [row for row in rows if row.selection is not None]
    if selected:
        taken = sum(row.num_table_rows for row in selected)
        if max_rows - taken < 2:
            raise ValueError(
                f"The privacy ledger cannot be held in {max_rows} rows: selected runs take "
                f"{taken}, and two others must remain."
            )
        others = [row for row in rows if row.selection is None]
        return (*selected, *_compact(others, max_rows - taken))
    closed = sorted(rows[:-1], key=_nearness)
    costs = [_merging_cost(*pair) for pair in itertools.pairwise(closed)]
    while len(closed) + 1 > max_rows:
        place = int(np.argmin(costs))
        if costs[place] == math.inf:
            raise ValueError(
                f"The privacy ledger cannot be held in {max_rows} rows: the number of steps would "
                f"pass {INT32_MAX}. Received: a ledger of {len(rows)} rows"
            )
        closed[place : place + 2] = [merge_upward(closed[place], closed[place + 1])]
        around = slice(max(place - 1, 0), place + 2)
        costs[around] = [_merging_cost(*pair) for pair in itertools.pairwise(closed[around])]
    return (*closed, rows[-1])


def _nearness(row: LedgerRow) -> tuple[float, ...]:
    """Return a key that sorts rows so that neighbours lose little by being merged."""
    return (row.sampling, row.sampling_probability, row.noise_multiplier, row.num_examples)


def _merging_cost(first: LedgerRow, second: LedgerRow) -> float:
    """Return how much two rows lose by being merged; infinite if their steps no longer fit int32.

    Equal mechanisms lose nothing.
    """
    if first.steps + second.steps > INT32_MAX:
        return math.inf
    return _cost(merge_upward(first, second)) - _cost(first) - _cost(second)


def _cost(row: LedgerRow) -> float:
    """Return the Rényi divergence of order 2, releases times log(1 + q² (exp(1/σ²) - 1)).

    It only ranks pairs of rows. The exponential of less noise would leave the range of float64.
    """
    probability = row.sampling_probability if row.sampling is Sampling.POISSON else 1.0
    exponential = math.expm1(max(row.noise_multiplier, _LEAST_RANKED_NOISE) ** -2)
    return row.releases * math.log1p(probability**2 * exponential)


def read_ledger(path: str | Path) -> Ledger:
    """The ledger of a saved private model. No layer is built, and no code of the model runs.

    Args:
        path: A `.keras` file, or a `.weights.h5` file.

    Returns:
        The ledger at the time when the file was written.

    Raises:
        OSError: If there is no such file, or it cannot be read.
        ValueError: If the file is of another kind, or holds no ledger or an impossible one.
    """
    path = Path(path)
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                weights = io.BytesIO(archive.read(_WEIGHTS_IN_ARCHIVE))
        else:
            weights = io.BytesIO(path.read_bytes())
        with h5py.File(weights, "r") as file:
            rows, noise_multipliers = (_values(file, key) for key in LEDGER_KEYS[:2])
    except KeyError as error:
        raise ValueError(
            f"There is no privacy ledger in {str(path)!r}. A private model of this package that is "
            "saved as `.keras` or `.weights.h5` keeps one."
        ) from error
    # `zipfile` raises these for damaged, encrypted and oddly compressed files.
    except (OSError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        if not path.is_file():
            raise
        raise ValueError(
            f"Not a `.keras` or `.weights.h5` file: {str(path)!r} ({error})"
        ) from error
    return Ledger.from_arrays(rows, noise_multipliers)


def _values(file: h5py.File, key: str) -> Any:
    """Return a table of the ledger in a file of weights."""
    group = file
    for name in (_OWN_VARIABLES, key):
        # Soft links, external links and external storage could lead to any file of the machine.
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise KeyError(name)
        group = group[name]
    if not isinstance(group, h5py.Dataset) or group.external or group.is_virtual:
        raise KeyError(key)
    if group.size > _MOST_NUMBERS or group.dtype.kind not in "iuf":
        raise ValueError(
            f"The privacy ledger is damaged: {key!r} must be a small table of numbers. "
            f"Received: {group.size} values of type {group.dtype}"
        )
    return np.asarray(group)
