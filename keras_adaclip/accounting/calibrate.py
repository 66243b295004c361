"""What a privacy budget allows: the least noise of a run, the most steps, the smallest batches.

    min {z in float32 : epsilon(z) <= target_epsilon}, to within 0.1% of the target
    max {k : epsilon(rows + k more steps of the next row) <= target_epsilon}

Epsilon falls with the noise about like a power of it, so Brent's method solves for the logarithm of
the noise. A noise schedule s is scaled by the least factor f with epsilon(f s) <= target_epsilon,
to within 0.5% of the target. `max_batch_size` of truncated Poisson sampling is as small as 0.1% of
epsilon allows.
"""

import dataclasses
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import scipy

from keras_adaclip._checks import INT32_MAX, check_between_0_and_1, check_integer, check_positive
from keras_adaclip.accounting import events
from keras_adaclip.accounting.accountants import composed_epsilon, rough_epsilon
from keras_adaclip.accounting.epsilon import COARSENESS, check_accountant, warn_of_large_delta
from keras_adaclip.accounting.events import CountedEvents, NoiseSchedule, PlannedRun
from keras_adaclip.accounting.kinds import Sampling
from keras_adaclip.accounting.row import LedgerRow

_LEAST_NOISE = 1e-2
_MOST_NOISE = 1e9
_TOLERANCE = 1e-3
_ROUGH_TOLERANCE = 0.05
# RDP jumps by some percent for fixed-size batches, and from about 0.003 to 0 where its orders end.
_LARGEST_JUMP = 0.1
# Epsilon of a schedule takes seconds. The search uses a coarse grid, whose result is about 0.03%
# higher; one evaluation on the fine grid usually confirms it.
_SCHEDULE_TOLERANCE = 4e-3
# The largest batch of truncated draws may cost this share of epsilon.
_SHARE_OF_EPSILON = 1e-3
# Without noise there is no epsilon to compare: a draw exceeds the largest batch this rarely.
_RARELY = 1e-9


def calibrate_noise_multiplier(
    target_epsilon: float,
    delta: float,
    num_examples: int,
    batch_size: int,
    *,
    epochs: int | None = None,
    steps: int | None = None,
    sampling: str = "poisson",
    accountant: str = "pld",
    steps_per_epoch: int | None = None,
    noise_schedule: NoiseSchedule | None = None,
    max_batch_size: int | None = None,
    max_rows_per_unit: int | None = None,
) -> Any:
    """Return the least noise multiplier with which a training run stays within a privacy budget.

    Args:
        target_epsilon: The budget, positive.
        delta: Delta, between 0 and 1, well below `1 / num_examples`.
        num_examples: Number of units (examples or clients) in the data, which counts as public.
        batch_size: Expected number of units a step.
        epochs: Number of epochs, of `steps_per_epoch` steps each.
        steps: Number of steps; give this or `epochs`.
        sampling: `"poisson"`, `"shuffle"`, `"stream"` or `"fixed"`, as in `compute_epsilon`.
        accountant: `"pld"` or `"rdp"`. RDP is always used for `"fixed"`.
        steps_per_epoch: Steps of an epoch, if `fit` is given that number; None means
            `ceil(num_examples / batch_size)`.
        noise_schedule: A schedule of noise multipliers, read once an epoch as in
            `compute_epsilon`. Its values are scaled by one factor. By PLD, 40 epochs of different
            noise take ten to twenty seconds.
        max_batch_size: As in `compute_epsilon`.
        max_rows_per_unit: As in `compute_epsilon`.

    Returns:
        A noise multiplier that float32 holds exactly, so that training runs with what was
        calibrated; with `noise_schedule`, that schedule, scaled.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, or no noise reaches the target.

    Guarantees:
        `compute_epsilon` with this noise multiplier does not exceed the target, and is within 0.1%
        of it (0.5% with a schedule), unless the bound of the accountant jumps there, as that of RDP
        does for `"fixed"`.

    Example:

    >>> noise_multiplier = calibrate_noise_multiplier(
    ...     target_epsilon=3.0, delta=1e-5, num_examples=60_000, batch_size=1024, epochs=40
    ... )
    >>> print(f"{noise_multiplier:.2f}")
    1.37
    """
    target = check_positive("target_epsilon", target_epsilon)
    delta, accountant = check_between_0_and_1("delta", delta), check_accountant(accountant)
    largest = max_batch_size, max_rows_per_unit
    run = PlannedRun.of(
        num_examples, batch_size, epochs, steps, sampling, steps_per_epoch, *largest
    )
    check_integer("steps", run.num_steps, minimum=1)
    warn_of_large_delta(delta, num_examples)

    def epsilon(noise: float | NoiseSchedule, coarseness: int = 1) -> float:
        """Return epsilon of the run with this noise."""
        return composed_epsilon(run.events(noise), delta, accountant, coarseness)

    def rough(noise: float) -> float:
        """Return an upper bound on epsilon of the run with this noise."""
        return rough_epsilon(run.events(noise), delta)

    guess, _ = _crossing(rough, target, 1.0, _ROUGH_TOLERANCE)
    if noise_schedule is not None:
        if not events.is_noise_schedule(noise_schedule):
            raise TypeError(
                "Argument `noise_schedule` must be a schedule from `keras_adaclip.schedules`; wrap "
                f"one of Keras's with `keras_adaclip.schedules.get`. Received: {noise_schedule!r}"
            )
        return _least_schedule(noise_schedule, epsilon, target, guess, run)
    return least_noise_multiplier(epsilon, target, guess)


def least_noise_multiplier(
    epsilon: Callable[[float], float],
    target_epsilon: float,
    guess: float = 1.0,
    tolerance: float = _TOLERANCE,
    budget: str = "target_epsilon",
) -> float:
    """Return the least noise multiplier with which `epsilon` stays within a privacy budget.

    Args:
        epsilon: A non-increasing function of a noise multiplier, such as the epsilon of a search
            over several plans; costly.
        target_epsilon: The budget, positive.
        guess: The first noise multiplier to try.
        tolerance: How far below the target epsilon may be, as a share of it.
        budget: The name of the argument that the target comes from, if `epsilon` is another figure.

    Returns:
        A noise multiplier that float32 holds exactly, with an epsilon within the tolerance.

    Raises:
        TypeError: If the target is not a number.
        ValueError: If the target is out of range, or no noise reaches it.
    """
    target = check_positive("target_epsilon", target_epsilon)
    noise, reached = _crossing(epsilon, target, guess, tolerance)
    if (1 - _LARGEST_JUMP) * target <= reached <= target:
        return noise
    name = budget.removeprefix("target_").removeprefix("max_").replace("_", " ")
    if reached > target:
        remedy = f"Use a larger `delta` or `{budget}`, or fewer steps."
    elif noise <= 1.001 * _LEAST_NOISE:
        remedy = f"A noise multiplier below {_LEAST_NOISE:g} protects nobody: use a smaller target."
    else:
        remedy = f"The bound jumps there: use a larger `{budget}`, or accountant='pld'."
    raise ValueError(
        f"No noise multiplier reaches the target {name}: the nearest {name} is {reached:.6g}. "
        f"{remedy} Received: {budget}={target}"
    )


def _least_schedule(
    schedule: NoiseSchedule,
    epsilon: Callable[[NoiseSchedule, int], float],
    target: float,
    constant: float,
    run: PlannedRun,
) -> NoiseSchedule:
    """Return the schedule, scaled by the least factor that reaches the target.

    Args:
        schedule: The schedule.
        epsilon: Epsilon of a schedule, given how coarse the grid of PLD is; costly.
        target: The bound.
        constant: The constant noise multiplier that roughly reaches the target.
        run: The run that the schedule is for.
    """
    rows = run.rows(schedule)
    noises, steps = np.array([(row.noise_multiplier, row.steps) for row in rows]).T
    if not noises.min() > 0:
        raise ValueError(
            "Argument `noise_schedule` must be positive at every epoch. "
            f"Received: a schedule that falls to {noises.min()}"
        )
    # The cost of a step is about 1 / z**2, so a constant of this noise costs as much.
    most = noises.max()
    guess = constant * most / float(np.average(noises**-2.0, weights=steps) ** -0.5)

    def scaled_epsilon(noise: float, coarseness: int = 1) -> float:
        """Return epsilon of the schedule scaled to a largest value of `noise`."""
        return epsilon(schedule.scaled(noise / most), coarseness)

    def coarse_epsilon(noise: float) -> float:
        """Return the same on a coarse grid."""
        return scaled_epsilon(noise, COARSENESS)

    guess = least_noise_multiplier(coarse_epsilon, target, guess)
    noise = least_noise_multiplier(scaled_epsilon, target, guess, _SCHEDULE_TOLERANCE)
    return schedule.scaled(noise / most)


def _crossing(
    epsilon: Callable[[float], float], target: float, guess: float, tolerance: float
) -> tuple[float, float]:
    """Return the least noise that was found to reach a target, and its epsilon.

    That of the most noise if none reaches the target. Arguments as of `least_noise_multiplier`.
    """
    found: dict[float, float] = {}
    aim = target * (1 - tolerance / 2)

    def distance(log_noise: float) -> float:
        """Return the logarithm of epsilon over the aim; 0 within the tolerance, which ends it."""
        noise = float(np.float32(math.exp(log_noise)))
        if noise not in found:
            found[noise] = epsilon(noise)
        if (1 - tolerance) * target <= found[noise] <= target:
            return 0.0
        return math.log(min(max(found[noise] / aim, 1e-300), 1e300))

    # Epsilon falls at least like 1 / noise as a rule, so a step of the distance passes the aim.
    least, most = math.log(_LEAST_NOISE), math.log(_MOST_NOISE)
    near = far = min(max(math.log(guess), least), most)
    is_below = distance(near) < 0
    while distance(far) and (distance(far) < 0) == is_below and least < far < most:
        step = max(abs(distance(far)), 2 * abs(far - near))
        near, far = far, min(max(far - step if is_below else far + step, least), most)
    if distance(near) * distance(far) < 0:
        scipy.optimize.brentq(distance, near, far, xtol=1e-8, disp=False)
    within = [noise for noise, value in found.items() if value <= target]
    noise = min(within) if within else max(found)
    return noise, found[noise]


def max_steps_within(
    rows_so_far: Iterable[LedgerRow],
    next_row: LedgerRow,
    delta: float,
    target_epsilon: float,
    accountant: str = "pld",
) -> int:
    """Return the greatest number of further steps after which epsilon is still within the target.

    Args:
        rows_so_far: What else has run: a `Ledger` or rows of one, without `next_row`.
        next_row: The row that continues. Its earlier steps count too. Steps that its open release
            has room for are free.
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

    >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=2.0)
    >>> max_steps_within([], row, delta=1e-5, target_epsilon=0.5)
    3790
    """
    target = check_positive("target_epsilon", target_epsilon)
    delta, accountant = check_between_0_and_1("delta", delta), check_accountant(accountant)
    rows = (*rows_so_far, next_row)
    running = dataclasses.replace(next_row, steps=1, releases=1)
    relation = events.neighboring_relation((*rows, running))

    def after(steps: int) -> CountedEvents:
        """Return all events after some more steps."""
        return events.counted_events((*rows[:-1], next_row.advance(steps)), relation)

    return most_within(after, INT32_MAX - next_row.steps, target, delta, accountant)


def most_within(
    events: Callable[[int], CountedEvents], most: int, target: float, delta: float, accountant: str
) -> int:
    """Return the greatest number up to `most` whose events are within a budget; 0 if none is.

    Args:
        events: The events of a number, such as that of the steps; they grow with it.
        most: The greatest number to consider.
        target: The budget.
        delta: The delta of the budget.
        accountant: `"pld"` or `"rdp"`.
    """

    def is_within(number: int) -> bool:
        """Return whether epsilon is within the budget."""
        return composed_epsilon(events(number), delta, accountant) <= target

    guess = largest_within(lambda number: rough_epsilon(events(number), delta) <= target, most)
    return largest_within(is_within, most, guess)


def largest_within(is_within: Callable[[int], bool], most: int, guess: int = 1) -> int:
    """Return the greatest number up to `most` that is within a budget; 0 if none is.

    Args:
        is_within: Whether a number is within the budget; no longer true once it was false.
        most: The greatest number to consider.
        guess: A number that is probably within the budget, near the result.
    """
    low, high = 0, max(1, guess)
    while high <= most and is_within(high):
        low, high = high, high + high // 4 + 1
    numbers = range(min(high, most + 1))
    return bisect_left(numbers, True, lo=low + 1, key=lambda number: not is_within(number)) - 1


def smallest_max_batch_size(rows: Iterable[LedgerRow], delta: float) -> int:
    """Return the smallest `max_batch_size` that costs at most 0.1% of epsilon.

    Args:
        rows: The rows of a planned run on exact Poisson draws of one data set, at least one. Rows
            of different noise count as if all steps had the least.
        delta: Delta, between 0 and 1.

    Returns:
        The number of units that no step exceeds; the number of units in the data if each smaller
        number costs more.

    Raises:
        ValueError: If delta is out of range.

    Example:

    >>> row = LedgerRow.open(Sampling.POISSON, 256, 60_000, noise_multiplier=4.0)
    >>> smallest_max_batch_size([row.advance(3515)], delta=1e-5)
    317
    """
    rows = tuple(rows)
    delta = check_between_0_and_1("delta", delta)
    least = min(rows, key=lambda row: row.noise_multiplier)
    steps = min(max(sum(row.steps for row in rows), 1), INT32_MAX)
    exact = dataclasses.replace(least, steps=steps, releases=steps)
    size, num_examples = exact.expected_batch_size, exact.num_examples
    rare = int(scipy.stats.binom.isf(_RARELY, num_examples, exact.sampling_probability))
    if exact.noise_multiplier == 0:
        return min(rare, num_examples)

    def is_enough(most: int, coarseness: int) -> bool:
        """Return whether batches of at most this size cost little, on a grid of PLD."""
        sampling = Sampling.TRUNCATED_POISSON
        row = dataclasses.replace(exact, sampling=sampling, max_batch_size=most)
        found, allowed = (
            composed_epsilon(events.counted_events([each]), delta, "pld", coarseness)
            for each in (row, exact)
        )
        return found <= (1 + _SHARE_OF_EPSILON) * allowed

    # A coarse grid finds the number, and the fine one confirms it.
    most = 1 + largest_within(
        lambda most: most < size or not is_enough(most, COARSENESS), num_examples - 1, rare
    )
    while most < num_examples and not is_enough(most, 1):
        most += 1
    return most
