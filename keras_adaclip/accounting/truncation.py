"""The `max_batch_size` that truncated Poisson sampling needs."""

import dataclasses
from bisect import bisect_left
from collections.abc import Iterable

import scipy

from keras_adaclip._checks import INT32_MAX, check_between_0_and_1
from keras_adaclip.accounting.accountants import composed_epsilon
from keras_adaclip.accounting.epsilon import COARSENESS
from keras_adaclip.accounting.events import counted_events
from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.row import LedgerRow

_SHARE_OF_EPSILON = 1e-3
# Without noise there is no epsilon to compare: a draw exceeds the largest batch this rarely.
_RARELY = 1e-9


def smallest_max_batch_size(rows: Iterable[LedgerRow], delta: float) -> int:
    """The smallest `max_batch_size` that costs at most 0.1% of epsilon.

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
    335
    """
    rows = tuple(rows)
    if not rows:
        raise ValueError("Argument `rows` must hold a row of the planned run. Received: none")
    delta = check_between_0_and_1("delta", delta)
    least = min(rows, key=lambda row: row.noise_multiplier)
    steps = min(max(sum(row.steps for row in rows), 1), INT32_MAX)
    exact = dataclasses.replace(least, steps=steps, releases=steps)
    size, num_examples = exact.expected_batch_size, exact.num_examples
    probability = exact.sampling_probability
    rare = int(scipy.stats.binom.isf(_RARELY, num_examples, probability))
    limit = 1 + _SHARE_OF_EPSILON

    def is_enough(most: int, coarseness: int) -> bool:
        """Return whether batches of at most this size cost little, on a grid of PLD."""
        if exact.noise_multiplier == 0:
            return most >= rare
        sampling = Sampling.TRUNCATED_POISSON
        row = dataclasses.replace(exact, sampling=sampling, max_batch_size=most)
        found, allowed = (
            composed_epsilon(counted_events([each]), delta, "pld", coarseness)
            for each in (row, exact)
        )
        return found <= limit * allowed

    # A coarse grid finds the number, and the fine one confirms it.
    step, guess = max(rare - size, 1), size
    while guess + step < num_examples and not is_enough(guess + step, COARSENESS):
        guess, step = guess + step, 2 * step
    sizes = range(min(guess + step + 1, num_examples))
    most = bisect_left(sizes, True, lo=guess, key=lambda most: is_enough(most, COARSENESS))
    while most < num_examples and not is_enough(most, 1):
        most += 1
    return most
