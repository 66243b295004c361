"""Merging ledger rows upward: the merged row costs at least what the two cost together.

A table of fixed size must at times hold more mechanisms than it has rows. Two rows then become one
that *dominates* both: the smallest noise multiplier, the largest sampling probability, all the
releases. Rows that were sampled in different ways become `STREAM`, full releases, which dominate
every other kind. The stated neighbouring relation may change with it, never the truth of the bound:
see `events.neighboring_relation`.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

from keras_adaclip.accounting._validation import INT32_MAX
from keras_adaclip.accounting.rows import LedgerRow, Sampling


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
    )


def compact(rows: Sequence[LedgerRow], max_rows: int) -> tuple[LedgerRow, ...]:
    """Merges rows upward until at most `max_rows` are left; the last row, which runs, stays.

    The pair whose merging loses least goes first, equal mechanisms (no loss at all) before any.

    Args:
        rows: Rows, the running one last.
        max_rows: Rows to keep, from 2.

    Returns:
        At most `max_rows` rows.

    Raises:
        ValueError: If no pair is left whose counts fit int32 together.
    """
    kept = list(rows)
    while len(kept) > max_rows:
        pairs = itertools.combinations(range(len(kept) - 1), 2)
        loss, first, second = min((_merging_loss(kept[i], kept[j]), i, j) for i, j in pairs)
        if loss == math.inf:
            raise ValueError(
                f"The privacy ledger cannot be held in {max_rows} rows: the number of steps would "
                f"pass {INT32_MAX}. Received: a ledger of {len(rows)} rows"
            )
        kept[first] = merge_upward(kept[first], kept[second])
        del kept[second]
    return tuple(kept)


def _exact_probability(row: LedgerRow) -> Fraction:
    """The sampling probability as a fraction: floats could call two different ones equal."""
    if row.num_examples == 0:
        return Fraction(1)
    return min(Fraction(1), Fraction(row.expected_batch_size, row.num_examples))


def _merging_loss(first: LedgerRow, second: LedgerRow) -> float:
    """How much the cost grows when two rows are merged; infinite if they cannot be."""
    if first.steps + second.steps > INT32_MAX:
        return math.inf
    if first.mechanism == second.mechanism:
        return -1.0
    if min(first.noise_multiplier, second.noise_multiplier) == 0:
        # A row without noise makes epsilon infinite already: there is nothing left to lose.
        return 0.0
    merged = (
        1.0
        if first.sampling is not second.sampling
        else max(_release_probability(first), _release_probability(second))
    )
    noise_multiplier = min(first.noise_multiplier, second.noise_multiplier)
    cost = (first.releases + second.releases) * _release_cost(merged, noise_multiplier)
    return cost - sum(
        row.releases * _release_cost(_release_probability(row), row.noise_multiplier)
        for row in (first, second)
    )


def _release_probability(row: LedgerRow) -> float:
    return row.sampling_probability if row.sampling is Sampling.POISSON else 1.0


def _release_cost(sampling_probability: float, noise_multiplier: float) -> float:
    """Rényi divergence of order 2, log(1 + q² (exp(1/σ²) - 1)): cheap to rank pairs by."""
    exponent = 1 / noise_multiplier**2 if noise_multiplier > 1e-150 else math.inf
    if exponent > 700:
        # The two agree to the last digit here, or the cost is as large as the bound says.
        return max(0.0, exponent + 2 * math.log(sampling_probability))
    return math.log1p(sampling_probability**2 * math.expm1(exponent))
