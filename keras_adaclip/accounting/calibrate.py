"""What a privacy budget allows: the least noise of a run, and the most steps.

    min {z in float32 : epsilon(z) <= target_epsilon}, to within 0.1% of the target
    max {k : epsilon(rows + k more steps of the next row) <= target_epsilon}

Epsilon falls with the noise about like a power of it, so the logarithms are interpolated between a
noise that is too small and one that is large enough. It grows with the releases about like their
square root, so its square is interpolated. A noise schedule s is scaled by the least factor f with
epsilon(f s) <= target_epsilon, to within 0.5% of the target.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar, overload

import numpy as np

from keras_adaclip.accounting import _validation, events
from keras_adaclip.accounting._validation import INT32_MAX
from keras_adaclip.accounting.accountants import composed_epsilon, rough_epsilon
from keras_adaclip.accounting.epsilon import COARSENESS
from keras_adaclip.accounting.events import CountedEvents, NoiseSchedule
from keras_adaclip.accounting.row import LedgerRow

_LEAST_NOISE = 1e-2
_MOST_NOISE = 1e9
_TOLERANCE = 1e-3
# RDP jumps by some percent for fixed-size batches, and from about 0.003 to 0 where its orders end.
_LARGEST_JUMP = 0.1
# Epsilon of a schedule takes seconds. The search uses a coarse grid, whose result is about 0.03%
# higher, and a single evaluation on the fine grid mostly confirms it.
_SCHEDULE_TOLERANCE = 4e-3

_Schedule = TypeVar("_Schedule", bound=NoiseSchedule)


@overload
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
    noise_schedule: None = None,
) -> float: ...


@overload
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
    noise_schedule: _Schedule,
) -> _Schedule: ...


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
) -> float | NoiseSchedule:
    """The least noise multiplier with which a training run stays within a privacy budget.

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
    target = _validation.check_target_epsilon(target_epsilon)
    delta = _validation.check_delta(delta)
    num_examples, batch_size = _validation.check_batch(num_examples, batch_size)
    sampling = _validation.check_sampling_name(sampling)
    accountant = _validation.check_accountant(accountant)
    if steps_per_epoch is None:
        steps_per_epoch = math.ceil(num_examples / batch_size)
    steps_per_epoch = _validation.check_integer(steps_per_epoch, "steps_per_epoch", minimum=1)
    num_steps = _validation.check_num_steps(
        epochs, steps, steps_per_epoch=steps_per_epoch, minimum=1
    )
    _validation.warn_of_large_delta(delta, num_examples)

    def planned(noise: float | NoiseSchedule) -> CountedEvents:
        return events.planned_events(
            noise, num_examples, batch_size, num_steps, sampling, steps_per_epoch
        )

    def epsilon(noise: float | NoiseSchedule, coarseness: int = 1) -> float:
        return composed_epsilon(planned(noise), delta, accountant, coarseness)

    guess = _rough_guess(lambda noise: rough_epsilon(planned(noise), delta), target)
    if noise_schedule is None:
        noise_multiplier = _least_noise(epsilon, target, guess)
        received = f"delta={delta}, accountant={accountant!r}"
        _check_reached(target, epsilon(noise_multiplier), noise_multiplier, received)
        return noise_multiplier
    if not events.is_noise_schedule(noise_schedule):
        raise TypeError(
            "Argument `noise_schedule` must be a schedule from `keras_adaclip.schedules`; wrap one "
            f"of Keras's with `keras_adaclip.schedules.get`. Received: {noise_schedule!r}"
        )
    stages = list(events.noise_by_epoch(noise_schedule, num_steps, steps_per_epoch))
    return _least_schedule(noise_schedule, epsilon, target, guess, stages)


def least_noise_multiplier(epsilon: Callable[[float], float], target_epsilon: float) -> float:
    """The least noise multiplier with which `epsilon` stays within a privacy budget.

    Args:
        epsilon: A non-increasing function of a noise multiplier, such as the epsilon of a search
            over several plans.
        target_epsilon: The budget, positive.

    Returns:
        A noise multiplier that float32 holds exactly, with an epsilon within 0.1% of the target.

    Raises:
        TypeError: If the target is not a number.
        ValueError: If the target is out of range, or no noise reaches it.
    """
    target = _validation.check_target_epsilon(target_epsilon)
    noise_multiplier = _least_noise(epsilon, target, 1.0)
    _check_reached(target, epsilon(noise_multiplier), noise_multiplier)
    return noise_multiplier


def _check_reached(target: float, reached: float, noise: float, received: str = "") -> None:
    """Raises if the calibrated noise is not close to the target, or above it."""
    if (1 - _LARGEST_JUMP) * target <= reached <= target:
        return
    received = ", ".join(filter(None, [f"Received: target_epsilon={target}", received]))
    if reached > target:
        raise ValueError(
            f"No noise multiplier up to {_MOST_NOISE:g} reaches the target epsilon: the least "
            f"epsilon is {reached}. Use a larger `delta`, or fewer steps. {received}"
        )
    if noise <= _LEAST_NOISE * 1.001:
        raise ValueError(
            f"Argument `target_epsilon` is so large that the noise multiplier {_LEAST_NOISE:g} "
            f"already gives less (epsilon = {reached:.6g}), which protects nobody. Use a smaller "
            f"target. {received}"
        )
    raise ValueError(
        f"The accountant cannot tell epsilons near the target apart: it jumps from above it to "
        f"{reached:.6g}. Use a larger `target_epsilon` or accountant='pld'. {received}"
    )


def _least_schedule(
    schedule: _Schedule,
    epsilon: Callable[[NoiseSchedule, int], float],
    target: float,
    constant: float,
    stages: list[tuple[float, int]],
) -> _Schedule:
    """The schedule, scaled by the least factor that reaches the target.

    Args:
        schedule: The schedule.
        epsilon: Epsilon of a schedule, given how coarse the grid of PLD is; costly.
        target: The bound.
        constant: The constant noise multiplier that roughly reaches the target.
        stages: The noise multipliers of the schedule, and the number of steps of each.
    """
    noises, steps = (np.array(column, np.float64) for column in zip(*stages, strict=True))
    if not noises.min() > 0:
        raise ValueError(
            "Argument `noise_schedule` must be positive at every epoch. "
            f"Received: a schedule that falls to {noises.min()}"
        )
    # The cost of a step is about 1 / z**2, so a constant of this noise costs as much.
    guess = constant / float(np.average(noises**-2.0, weights=steps) ** -0.5)
    ends = (_LEAST_NOISE / noises.max(), _MOST_NOISE / noises.max())

    def scaled_epsilon(factor: float, coarseness: int = 1) -> float:
        return epsilon(schedule.scaled(factor), coarseness)

    guess = _least_noise(lambda f: scaled_epsilon(f, COARSENESS), target, guess, ends=ends)
    factor = _least_noise(scaled_epsilon, target, guess, ends=ends, tolerance=_SCHEDULE_TOLERANCE)
    reached = scaled_epsilon(factor)
    if not (1 - _LARGEST_JUMP) * target <= reached <= target:
        raise ValueError(
            "No multiple of the noise schedule reaches the target epsilon: the nearest has epsilon "
            f"{reached:.6g}. Received: target_epsilon={target}, noise_schedule={schedule!r}"
        )
    return schedule.scaled(factor)


def _rough_guess(epsilon: Callable[[float], float], target: float) -> float:
    """A noise multiplier that roughly reaches the target, by bisection of its logarithm."""
    low, high = math.log(_LEAST_NOISE), math.log(_MOST_NOISE)
    while high - low > 0.02:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon(math.exp(middle)) <= target else (middle, high)
    return math.exp(high)


class _NoisePoint(NamedTuple):
    log_noise: float
    log_excess: float  # Logarithm of epsilon over the epsilon that is aimed at.


def _least_noise(
    epsilon: Callable[[float], float],
    target: float,
    guess: float,
    *,
    ends: tuple[float, float] = (_LEAST_NOISE, _MOST_NOISE),
    tolerance: float = _TOLERANCE,
) -> float:
    """The least float32 with `epsilon(noise) <= target`, to within the tolerance in epsilon.

    Args:
        epsilon: Non-increasing function of a noise multiplier; costly.
        target: The bound.
        guess: The first noise multiplier to try.
        ends: The range that is searched.
        tolerance: How far below the target epsilon may be, as a share of it.

    Returns:
        A noise multiplier; an end of the range if the target lies beyond it.
    """
    low, high = ends
    aim = target * (1 - tolerance / 2)
    known: list[_NoisePoint] = []
    noise = float(np.float32(guess))
    for attempt in range(200):
        value = epsilon(noise)
        if (1 - tolerance) * target <= value <= target:
            return noise
        low, high = (noise, high) if value > target else (low, noise)
        if 0 < value < math.inf:
            known.append(_NoisePoint(math.log(noise), math.log(value / aim)))
        following = _extrapolated(known)
        is_bracketed = low > ends[0] and high < ends[1]
        # Every sixth attempt halves the bracket, because epsilon may jump.
        if not low < following < high or (attempt % 6 == 5 and is_bracketed):
            following = math.sqrt(low * high)
        noise = float(np.float32(following))
        if not low < noise < high:
            break
    return float(np.float32(high))


def _extrapolated(known: list[_NoisePoint]) -> float:
    """The noise that should have the epsilon that is aimed at; NaN if the points do not tell."""
    if not known:
        return math.nan
    nearest, *others = sorted(known, key=lambda point: abs(point.log_excess))
    # For a single point: epsilon falls like 1 / noise or faster.
    slope = -2.0
    if others:
        run = nearest.log_noise - others[0].log_noise
        slope = (nearest.log_excess - others[0].log_excess) / run if run else 0.0
    if slope >= 0:
        return math.nan
    return math.exp(min(nearest.log_noise - nearest.log_excess / slope, 700.0))


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
    guess = greatest(lambda releases: rough_epsilon(after(releases), delta) <= target, most)
    allowed = largest_within(epsilon, target, most, guess)
    return min(countable, next_row.free_steps + allowed * next_row.steps_per_release)


def greatest(is_allowed: Callable[[int], bool], most: int) -> int:
    """The greatest number up to `most` that is allowed, by bisection; 0 if none is."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_allowed(middle) else (low, middle)
    return low


class _NumberPoint(NamedTuple):
    number: int
    epsilon: float


def largest_within(epsilon: Callable[[int], float], target: float, most: int, guess: int) -> int:
    """The greatest number with `epsilon(number) <= target`, which must hold for 0.

    Args:
        epsilon: Non-decreasing function of a number; costly.
        target: The bound.
        most: The greatest number to consider.
        guess: The first number to try. A guess that is too small costs little.

    Returns:
        A number between 0 and `most`.
    """
    low, high = _NumberPoint(0, epsilon(0)), None
    probe = min(max(guess, 1), most)
    run = 0  # How often in a row the same end has moved, negative for the lower end.
    while (most + 1 if high is None else high.number) - low.number > 1:
        point = _NumberPoint(probe, epsilon(probe))
        if point.epsilon <= target:
            low, run = point, min(run, 0) - 1
        else:
            high, run = point, max(run, 0) + 1
        probe = _next_probe(low, high, target, most, run)
    return low.number


def _next_probe(
    low: _NumberPoint, high: _NumberPoint | None, target: float, most: int, run: int
) -> int:
    """The next number to try, strictly between the two ends."""
    if high is None:
        # Epsilon grows like a square root or faster: aim a little beyond.
        growth = (target / low.epsilon) ** 2 if low.epsilon > 0 else math.inf
        return min(most, low.number + max(1, math.ceil(low.number * min(growth * 1.01 - 1, 64))))
    if not math.isfinite(high.epsilon) or abs(run) > 4:
        return (low.number + high.number) // 2
    share = (target**2 - low.epsilon**2) / (high.epsilon**2 - low.epsilon**2)
    estimate = low.number + int(share * (high.number - low.number))
    # Step past the estimate, towards the end that has not moved, further each time: the bracket
    # then closes from both sides.
    beyond = max(1, (high.number - low.number) >> 10) * 4 ** (abs(run) - 1)
    estimate += beyond if run < 0 else -beyond
    return min(max(estimate, low.number + 1), high.number - 1)
