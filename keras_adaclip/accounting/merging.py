"""Merging ledger rows upward: the merged row costs at least what the two cost together.

A table of fixed size must at times hold more mechanisms than it has rows. Two rows then become one
that *dominates* both: the smallest noise multiplier, the largest sampling probability, all the
releases. Rows that were sampled in different ways become `STREAM`, full releases, which dominate
every other kind. The stated neighbouring relation may change with it, never the truth of the bound:
see `events.neighboring_relation`.
"""

import dataclasses
import functools
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from keras_adaclip.accounting._validation import INT32_MAX
from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.rows import LedgerRow, Mechanism

FloatArray = npt.NDArray[np.float64]


def add_rows(first: LedgerRow, second: LedgerRow) -> LedgerRow:
    """The exact sum of two rows of the same mechanism, with the open release of the second.

    Args:
        first: A row that runs no further; its open release, if any, was counted when it opened.
        second: A row of the same mechanism.

    Returns:
        One row with the steps and releases of both.
    """
    return dataclasses.replace(
        second,
        steps=first.steps + second.steps,
        releases=first.releases + second.releases,
    )


def merge_upward(first: LedgerRow, second: LedgerRow) -> LedgerRow:
    """One closed row whose epsilon is never below that of the two rows together.

    Args:
        first: A row that runs no further.
        second: Another one.

    Returns:
        The dominating row; its next step opens a release.

    Raises:
        ValueError: If the counts no longer fit int32.
    """
    if first.mechanism == second.mechanism:
        return add_rows(first, second).begin_segment()
    if first.unit is not second.unit:
        raise ValueError("Rows about examples and rows about clients cannot be merged.")
    if first.selection is not None and second.selection is not None:
        releases = (first.releases, second.releases)
        return dataclasses.replace(
            first,
            steps=first.steps + second.steps,
            releases=1,
            noise_multiplier=min(first.noise_multiplier, second.noise_multiplier),
            selection=first.selection.plus(second.selection, releases),
        )
    denser = first if _exact_probability(first) >= _exact_probability(second) else second
    if first.sampling is second.sampling:
        sampling = first.sampling
        steps_per_release = max(first.steps_per_release, second.steps_per_release)
    else:
        sampling, steps_per_release = Sampling.STREAM, 1
    return LedgerRow(
        sampling=sampling,
        expected_batch_size=denser.expected_batch_size,
        num_examples=denser.num_examples,
        steps_per_release=steps_per_release,
        steps=first.steps + second.steps,
        releases=first.releases + second.releases,
        steps_in_release=steps_per_release,
        noise_multiplier=min(first.noise_multiplier, second.noise_multiplier),
        unit=first.unit,
    )


def compact(rows: Sequence[LedgerRow], max_rows: int) -> tuple[LedgerRow, ...]:
    """Merges rows upward until at most `max_rows` are left; the last row, which runs, stays.

    The pair whose merging loses least goes first, equal mechanisms (no loss at all) before any.
    The losses of all pairs are computed once, and after a merge those of the merged row, so that
    thousands of rows take seconds.

    Args:
        rows: Rows, the running one last.
        max_rows: Rows to keep, from 2.

    Returns:
        At most `max_rows` rows.

    Raises:
        ValueError: If no pair is left whose counts fit int32 together.
    """
    if sum(row.num_table_rows for row in rows) <= max_rows:
        return tuple(rows)
    selected = [row for row in rows if row.selection is not None]
    if selected:
        merged = functools.reduce(merge_upward, selected)
        others = [row for row in rows if row.selection is None]
        room = max_rows - merged.num_table_rows
        if room < 2:
            raise ValueError(
                f"The privacy ledger cannot be held in {max_rows} rows: selected runs take "
                f"{merged.num_table_rows}, and two others must remain."
            )
        return (merged, *compact(others, room))
    closed, running = list(rows[:-1]), rows[-1]
    count = len(closed)
    table = _Table(closed)
    losses = np.full((count, count), np.inf)
    for index in range(count):
        losses[index, index + 1 :] = table.losses(index)[index + 1 :]
    is_left = np.ones(count, dtype=bool)
    for _ in range(len(rows) - max_rows):
        first, second = divmod(int(np.argmin(losses)), count)
        if losses[first, second] == np.inf:
            raise ValueError(
                f"The privacy ledger cannot be held in {max_rows} rows: the number of steps would "
                f"pass {INT32_MAX}. Received: a ledger of {len(rows)} rows"
            )
        closed[first] = merge_upward(closed[first], closed[second])
        table.set_row(first, closed[first])
        is_left[second] = False
        losses[second, :] = losses[:, second] = np.inf
        changed = np.where(is_left, table.losses(first), np.inf)
        losses[first, first + 1 :] = changed[first + 1 :]
        losses[:first, first] = changed[:first]
    return (*(row for row, left in zip(closed, is_left, strict=True) if left), running)


def _exact_probability(row: LedgerRow) -> Fraction:
    """The sampling probability as a fraction: floats could call two different ones equal."""
    if row.num_examples == 0:
        return Fraction(1)
    return min(Fraction(1), Fraction(row.expected_batch_size, row.num_examples))


class _Table:
    """What merging costs depends on, in columns. Shape of each: `(rows,)`."""

    def __init__(self, rows: Sequence[LedgerRow]) -> None:
        count = len(rows)
        self._steps, self._releases = np.zeros(count), np.zeros(count)
        self._noise, self._probability = np.zeros(count), np.zeros(count)
        self._sampling, self._mechanism = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._numbers: dict[Mechanism, int] = {}
        for index, row in enumerate(rows):
            self.set_row(index, row)

    def set_row(self, index: int, row: LedgerRow) -> None:
        """Puts another row into the place of one."""
        self._steps[index], self._releases[index] = row.steps, row.releases
        self._noise[index] = row.noise_multiplier
        is_poisson = row.sampling is Sampling.POISSON
        self._probability[index] = row.sampling_probability if is_poisson else 1.0
        self._sampling[index] = row.sampling
        self._mechanism[index] = self._numbers.setdefault(row.mechanism, len(self._numbers))

    def losses(self, index: int) -> FloatArray:
        """How much the cost grows when row `index` is merged with each row; infinite if it cannot.

        Equal mechanisms lose nothing, and come before all others. A row without noise makes epsilon
        infinite already, so that there is nothing left to lose with it.
        """
        noise = np.minimum(self._noise[index], self._noise)
        probability = np.where(
            self._sampling == self._sampling[index],
            np.maximum(self._probability[index], self._probability),
            1.0,
        )
        alone = self._releases * _release_cost(self._probability, self._noise)
        releases = self._releases[index] + self._releases
        loss = releases * _release_cost(probability, noise) - (alone[index] + alone)
        loss = np.where(noise == 0, 0.0, loss)
        loss = np.where(self._mechanism == self._mechanism[index], -1.0, loss)
        return np.where(self._steps[index] + self._steps > INT32_MAX, np.inf, loss)


def _release_cost(sampling_probability: FloatArray, noise_multiplier: FloatArray) -> FloatArray:
    """Rényi divergence of order 2, log(1 + q² (exp(1/σ²) - 1)): cheap to rank pairs by.

    Without noise, what it says is of no use.
    """
    exponent = np.where(noise_multiplier > 0, noise_multiplier, 1.0) ** -2
    cost = np.log1p(sampling_probability**2 * np.expm1(np.minimum(exponent, 700.0)))
    # Beyond, the two agree to the last digit, or the cost is as large as the bound says.
    beyond = np.maximum(0.0, exponent + 2 * np.log(sampling_probability))
    return np.where(exponent > 700, beyond, cost)
