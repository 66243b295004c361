"""How many steps a privacy budget still allows.

    max {k : epsilon(rows + k more steps of the next row) <= target}

Epsilon grows with the releases, near enough like its square root, so its square is interpolated
between a number of releases that is allowed and one that is not.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from keras_adaclip.accounting import _validation, events
from keras_adaclip.accounting._validation import INT32_MAX
from keras_adaclip.accounting.accountants import composed_epsilon, rough_epsilon
from keras_adaclip.accounting.events import CountedEvents
from keras_adaclip.accounting.rows import LedgerRow


class _Point(NamedTuple):
    releases: int
    epsilon: float


def max_steps_within(
    rows_so_far: Iterable[LedgerRow],
    next_row: LedgerRow,
    delta: float,
    target_epsilon: float,
    accountant: str = "pld",
) -> int:
    """The greatest number of further steps after which epsilon is still within the target.

    Args:
        rows_so_far: What else has run: a `Ledger` or rows of one, without `next_row`.
        next_row: The row that runs on. Steps that it has had count as well; steps that its open
            release has room for are free.
        delta: Delta, between 0 and 1.
        target_epsilon: The budget, positive.
        accountant: `"pld"` or `"rdp"`.

    Returns:
        The number of steps: 0 if one more would pass the target, or the target is passed already.
        At most what the ledger can count, 2**31 - 1 steps in the row.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range.

    Example:

    >>> from keras_adaclip.accounting import Sampling
    >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=1.0)
    >>> max_steps_within([], row, delta=1e-5, target_epsilon=1.0)
    1936
    """
    delta = _validation.check_delta(delta)
    target = _validation.check_target_epsilon(target_epsilon)
    accountant = _validation.check_accountant(accountant)
    countable = INT32_MAX - next_row.steps
    rows = (*rows_so_far, next_row)
    relation = events.neighboring_relation(rows, running=next_row)
    event = events.row_event(next_row, relation)
    past = events.counted_events(rows, relation)
    others = tuple((other, count) for other, count in past if other != event)
    so_far = sum(count for other, count in past if other == event)

    def after(releases: int) -> CountedEvents:
        count = so_far + releases
        return (*others, (event, count)) if count else others

    def epsilon(releases: int) -> float:
        return composed_epsilon(after(releases), delta, accountant)

    if epsilon(0) > target:
        return 0
    most = math.ceil(max(0, countable - next_row.free_steps) / next_row.steps_per_release)
    # An upper bound that costs next to nothing says where to look.
    guess = _bisect(lambda releases: rough_epsilon(after(releases), delta) <= target, most)
    allowed = largest_within(epsilon, target, most, guess)
    return min(countable, next_row.free_steps + allowed * next_row.steps_per_release)


def _bisect(is_allowed: Callable[[int], bool], most: int) -> int:
    """The greatest number up to `most` that is allowed; 0 if none is."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_allowed(middle) else (low, middle)
    return low


def largest_within(epsilon: Callable[[int], float], target: float, most: int, guess: int) -> int:
    """The greatest number of releases with `epsilon(releases) <= target`, given that 0 is one.

    Args:
        epsilon: Non-decreasing function of a number of releases; costly.
        target: The bound.
        most: The greatest number to be considered.
        guess: Where to look first; a guess that is too low costs little.

    Returns:
        A number between 0 and `most`.
    """
    low, high = _Point(0, epsilon(0)), None
    probe = min(max(guess, 1), most)
    run = 0  # how often in a row the same end has moved, negative for the lower one
    while (most + 1 if high is None else high.releases) - low.releases > 1:
        point = _Point(probe, epsilon(probe))
        if point.epsilon <= target:
            low, run = point, min(run, 0) - 1
        else:
            high, run = point, max(run, 0) + 1
        probe = _next_probe(low, high, target, most, run)
    return low.releases


def _next_probe(low: _Point, high: _Point | None, target: float, most: int, run: int) -> int:
    """The next number to try, strictly between the two ends."""
    if high is None:
        # Epsilon grows like a square root or faster: aim a little beyond.
        growth = (target / low.epsilon) ** 2 if low.epsilon > 0 else math.inf
        return min(
            most, low.releases + max(1, math.ceil(low.releases * min(growth * 1.01 - 1, 64)))
        )
    if not math.isfinite(high.epsilon) or abs(run) > 4:
        return (low.releases + high.releases) // 2
    share = (target**2 - low.epsilon**2) / (high.epsilon**2 - low.epsilon**2)
    estimate = low.releases + int(share * (high.releases - low.releases))
    # Step beyond the estimate, to where the end that has not moved lies, ever further: this
    # closes the bracket from both sides.
    beyond = max(1, (high.releases - low.releases) >> 10) * 4 ** (abs(run) - 1)
    estimate += beyond if run < 0 else -beyond
    return min(max(estimate, low.releases + 1), high.releases - 1)
