"""Rows merged upward in epsilon, never downward.

Merging makes one row of two. The merged row *dominates* both: it has the smaller noise multiplier,
the larger sampling probability and all releases. Rows with different samplings become `STREAM`,
full releases, which dominate every other kind under zero-out, and so do truncated draws that differ
in more than their noise. This may change the neighbouring relation under
which epsilon is stated (see `events.neighboring_relation`), but epsilon stays an upper bound.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from keras_adaclip._checks import INT32_MAX
from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.row import LedgerRow

_LEAST_RANKED_NOISE = 0.04


def add_rows(first: LedgerRow, second: LedgerRow) -> LedgerRow:
    """The exact sum of two rows of one mechanism. The open release is that of the second row."""
    return dataclasses.replace(
        second, steps=first.steps + second.steps, releases=first.releases + second.releases
    )


def merge_upward(first: LedgerRow, second: LedgerRow) -> LedgerRow:
    """One closed row whose epsilon is never below that of the two rows, under its own relation.

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
        return add_rows(first, second).begin_segment()
    if first.unit is not second.unit or first.selection or second.selection:
        raise ValueError("Rows about examples and clients, or of selected runs, cannot be merged.")
    steps = first.steps + second.steps
    noise_multiplier = min(first.noise_multiplier, second.noise_multiplier)
    denser = max(first, second, key=_exact_probability)
    sampling, steps_per_release = Sampling.STREAM, 1
    truncations = {
        (row.expected_batch_size, row.num_examples, row.max_batch_size)
        for row in (first, second)
        if row.max_batch_size > 0
    }
    if first.sampling is second.sampling and len(truncations) <= 1:
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
        max_batch_size=first.max_batch_size if sampling is Sampling.TRUNCATED_POISSON else 0,
    )


def _exact_probability(row: LedgerRow) -> Fraction:
    """The sampling probability as a fraction. As floats, two different ones could be equal."""
    if row.num_examples == 0:
        return Fraction(1)
    return min(Fraction(1), Fraction(row.expected_batch_size, row.num_examples))


def compact_rows(rows: Sequence[LedgerRow], max_rows: int) -> tuple[LedgerRow, ...]:
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
        return (*selected, *compact_rows(others, max_rows - taken))
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
    is_poisson = row.sampling in (Sampling.POISSON, Sampling.TRUNCATED_POISSON)
    probability = row.sampling_probability if is_poisson else 1.0
    exponential = math.expm1(max(row.noise_multiplier, _LEAST_RANKED_NOISE) ** -2)
    return row.releases * math.log1p(probability**2 * exponential)
