"""The largest batch that truncated Poisson sampling needs."""

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Iterable

import scipy

from keras_adaclip._checks import check_between_0_and_1
from keras_adaclip.accounting.epsilon import ledger_epsilon
from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.row import LARGEST_MAX_BATCH_SIZE, LedgerRow

_SHARE_OF_EPSILON = 1e-3
# Without noise there is no epsilon to compare: a draw exceeds the largest batch this rarely.
_RARELY = 1e-9


def smallest_max_batch_size(rows: Iterable[LedgerRow], delta: float) -> int:
    """The smallest largest batch that costs at most 0.1% of epsilon.

    Args:
        rows: The rows of a planned run on exact Poisson draws of one data set. Rows of different
            noise count as if all steps had the least.
        delta: Delta, between 0 and 1.

    Returns:
        The number of units that no step exceeds; the number of units in the data if each smaller
        number costs more.

    Raises:
        ValueError: If there is no row, or delta is out of range.

    Example:

    >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0)
    >>> smallest_max_batch_size([row.advance(3515)], delta=1e-5)
    336
    """
    rows = tuple(rows)
    delta = check_between_0_and_1("delta", delta)
    least = min(rows, key=lambda row: row.noise_multiplier)
    steps = min(max(sum(row.steps for row in rows), 1), 2**31 - 1)
    exact = dataclasses.replace(least, steps=steps, releases=steps)
    size, num_examples = exact.expected_batch_size, exact.num_examples
    probability = exact.sampling_probability
    rare = int(scipy.stats.binom.isf(_RARELY, num_examples, probability))
    allowed = (1 + _SHARE_OF_EPSILON) * ledger_epsilon([exact], delta)

    def is_enough(most: int) -> bool:
        """Return whether batches of at most this size cost little."""
        if math.isinf(allowed):
            return most >= rare
        sampling = Sampling.TRUNCATED_POISSON
        row = dataclasses.replace(exact, sampling=sampling, max_batch_size=most)
        return ledger_epsilon([row], delta) <= allowed

    end = min(num_examples, LARGEST_MAX_BATCH_SIZE + 1)
    first, step = size, max(rare - size, 1)
    while first + step < end and not is_enough(first + step):
        first, step = first + step, 2 * step
    sizes = range(min(first + step + 1, end))
    found = bisect_left(sizes, True, lo=first, key=is_enough)
    return found if found < end else num_examples
