"""The noise that a privacy budget asks for.

    min {z in float32 : epsilon(z) <= target_epsilon}, to within 0.1% of the target

Epsilon falls with the noise, near enough like a power of it, so the logarithms are interpolated
between a noise that is too little and one that is enough. A noise schedule s is scaled: the least
factor f with epsilon(f s) <= target_epsilon, to within 0.5% of it.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar, overload

import numpy as np

from keras_adaclip.accounting import _validation
from keras_adaclip.accounting.accountants import composed_epsilon, rough_epsilon
from keras_adaclip.accounting.epsilon import effective_accountant, planned_events
from keras_adaclip.accounting.events import CountedEvents
from keras_adaclip.accounting.noise_schedules import (
    NoiseSchedule,
    check_noise_schedule,
    noise_by_epoch,
)

_LEAST_NOISE = 1e-2
_MOST_NOISE = 1e9
_TOLERANCE = 1e-3
# RDP jumps by some percent for fixed-size batches, and from some 0.003 to 0 where its orders end.
_LARGEST_JUMP = 0.1
# A schedule's epsilon takes seconds: it is looked for on a coarse grid, whose answer is higher by
# some 0.03%, and most often confirmed at once.
_SCHEDULE_TOLERANCE = 4e-3
_SEARCH_COARSENESS = 8

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
        num_examples: Number of units (examples or clients) in the data, taken to be public.
        batch_size: Expected number of units a step.
        epochs: Number of epochs, of `steps_per_epoch` steps each.
        steps: Number of steps; give this or `epochs`.
        sampling: `"poisson"`, `"shuffle"`, `"stream"` or `"fixed"`, as in `compute_epsilon`.
        accountant: `"pld"` or `"rdp"`; RDP always for `"fixed"`.
        steps_per_epoch: Steps of an epoch, where `fit` is given that number; None means
            `ceil(num_examples / batch_size)`.
        noise_schedule: A schedule of noise multipliers, read once an epoch as `compute_epsilon`
            does; its shape is kept, its values are scaled. By PLD, 40 epochs of different noise
            take some ten or twenty seconds.

    Returns:
        A noise multiplier that float32 holds exactly, so that what runs is what was calibrated;
        with `noise_schedule` that schedule, scaled.

    Raises:
        TypeError: If an argument is of the wrong type.
        ValueError: If an argument is out of range, or no noise reaches the target.

    Guarantees:
        `compute_epsilon` with this noise multiplier does not exceed the target, and is within 0.1%
        of it (0.5% with a schedule), unless the accountant's bound itself jumps there, as RDP's for
        `"fixed"` does.

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
    accountant = effective_accountant(sampling, _validation.check_accountant(accountant))
    if steps_per_epoch is None:
        steps_per_epoch = math.ceil(num_examples / batch_size)
    steps_per_epoch = _validation.check_integer(steps_per_epoch, "steps_per_epoch", minimum=1)
    num_steps = _validation.check_num_steps(
        epochs, steps, steps_per_epoch=steps_per_epoch, minimum=1
    )
    _validation.warn_of_large_delta(delta, num_examples)

    def plan(noise: float | NoiseSchedule) -> CountedEvents:
        return planned_events(noise, num_examples, batch_size, num_steps, sampling, steps_per_epoch)

    def epsilon(noise_multiplier: float) -> float:
        return composed_epsilon(plan(noise_multiplier), delta, accountant)

    guess = _rough_guess(lambda noise: rough_epsilon(plan(noise), delta), target)
    if noise_schedule is None:
        noise_multiplier = _least_noise(epsilon, target, guess)
        reached = epsilon(noise_multiplier)
        if not (1 - _LARGEST_JUMP) * target <= reached <= target:
            raise ValueError(_unreachable(target, delta, reached, noise_multiplier, accountant))
        return noise_multiplier

    schedule = check_noise_schedule(noise_schedule)
    lengths = list(noise_by_epoch(schedule, num_steps, steps_per_epoch))

    def scaled_epsilon(factor: float, coarseness: int = 1) -> float:
        return composed_epsilon(plan(schedule.scaled(factor)), delta, accountant, coarseness)

    factor = _least_factor(scaled_epsilon, target, guess, lengths)
    reached = scaled_epsilon(factor)
    if not (1 - _LARGEST_JUMP) * target <= reached <= target:
        raise ValueError(
            "No multiple of the noise schedule reaches the target epsilon: the nearest has epsilon "
            f"{reached:.6g}. Received: target_epsilon={target}, noise_schedule={schedule!r}, "
            f"accountant={accountant!r}"
        )
    return schedule.scaled(factor)


def least_noise_multiplier(epsilon: Callable[[float], float], target_epsilon: float) -> float:
    """The least noise multiplier with which something stays within a privacy budget.

    Args:
        epsilon: Function of a noise multiplier, which does not grow with it: what is to stay
            within the budget, a search over several plans for one.
        target_epsilon: The budget, positive.

    Returns:
        A noise multiplier that float32 holds exactly, with an epsilon within 0.1% of the target.

    Raises:
        TypeError: If the target is no number.
        ValueError: If it is out of range, or no noise reaches it.
    """
    target = _validation.check_target_epsilon(target_epsilon)
    noise_multiplier = _least_noise(epsilon, target, 1.0)
    reached = epsilon(noise_multiplier)
    if not (1 - _LARGEST_JUMP) * target <= reached <= target:
        raise ValueError(
            "No noise multiplier reaches the target epsilon: the nearest is "
            f"{noise_multiplier:.6g}, with epsilon {reached:.6g}. Received: target_epsilon={target}"
        )
    return noise_multiplier


def _least_factor(
    epsilon: Callable[[float, int], float],
    target: float,
    constant: float,
    lengths: list[tuple[float, int]],
) -> float:
    """The least factor by which a schedule is to be scaled.

    Args:
        epsilon: Non-increasing function of a factor, and of how coarse PLD's grid is; costly.
        target: The bound.
        constant: The constant noise multiplier that would do, roughly.
        lengths: The schedule's noise multipliers, and how many steps each one lasts.
    """
    noises, steps = (np.array(column, np.float64) for column in zip(*lengths, strict=True))
    if not noises.min() > 0:
        raise ValueError(
            "Argument `noise_schedule` must be positive at every epoch. "
            f"Received: a schedule that falls to {noises.min()}"
        )
    # Each step costs about 1 / z**2, so the schedule is worth a constant of this noise.
    guess = constant / float(np.average(noises**-2.0, weights=steps) ** -0.5)
    ends = (_LEAST_NOISE / noises.max(), _MOST_NOISE / noises.max())
    guess = _least_noise(
        lambda factor: epsilon(factor, _SEARCH_COARSENESS), target, guess, ends=ends
    )
    return _least_noise(
        lambda factor: epsilon(factor, 1), target, guess, ends=ends, tolerance=_SCHEDULE_TOLERANCE
    )


def _rough_guess(epsilon: Callable[[float], float], target: float) -> float:
    """A noise multiplier with about the wanted epsilon, by bisection of its logarithm."""
    low, high = math.log(_LEAST_NOISE), math.log(_MOST_NOISE)
    while high - low > 0.02:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon(math.exp(middle)) <= target else (middle, high)
    return math.exp(high)


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
        guess: Where to look first.
        ends: The range that is searched.
        tolerance: How far below the target epsilon may be, as a share of it.

    Returns:
        A noise multiplier; the end of the range that was searched if the target lies beyond it.
    """
    low, high = ends
    aim = target * (1 - tolerance / 2)
    known: list[_Point] = []
    noise = float(np.float32(guess))
    for attempt in range(200):
        value = epsilon(noise)
        if (1 - tolerance) * target <= value <= target:
            return noise
        low, high = (noise, high) if value > target else (low, noise)
        if 0 < value < math.inf:
            known.append(_Point(math.log(noise), math.log(value / aim)))
        following = _extrapolated(known)
        is_bracketed = low > ends[0] and high < ends[1]
        # Every sixth time the bracket is halved, for epsilon may jump.
        if not low < following < high or (attempt % 6 == 5 and is_bracketed):
            following = math.sqrt(low * high)
        noise = float(np.float32(following))
        if not low < noise < high:
            break
    return float(np.float32(high))


class _Point(NamedTuple):
    log_noise: float
    log_excess: float  # logarithm of epsilon over what is aimed at


def _extrapolated(known: list[_Point]) -> float:
    """The noise at which epsilon should be what is aimed at; NaN if nothing tells."""
    if not known:
        return math.nan
    nearest, *others = sorted(known, key=lambda point: abs(point.log_excess))
    # With one point only: epsilon falls like 1 / noise at the slowest, faster where it is large.
    slope = -2.0
    if others:
        run = nearest.log_noise - others[0].log_noise
        slope = (nearest.log_excess - others[0].log_excess) / run if run else 0.0
    if slope >= 0:
        return math.nan
    return math.exp(min(nearest.log_noise - nearest.log_excess / slope, 700.0))


def _unreachable(
    target: float, delta: float, reached: float, noise_multiplier: float, accountant: str
) -> str:
    received = f"Received: target_epsilon={target}, delta={delta}, accountant={accountant!r}"
    if reached > target:
        return (
            f"No noise multiplier up to {_MOST_NOISE:g} reaches the target epsilon: the least "
            f"epsilon is {reached}. Use a larger `delta`, or fewer steps. {received}"
        )
    if noise_multiplier <= _LEAST_NOISE * 1.001:
        return (
            f"Argument `target_epsilon` is so large that the noise multiplier {_LEAST_NOISE:g} "
            f"already gives less (epsilon = {reached:.6g}), which protects nobody. Ask for a "
            f"smaller one. {received}"
        )
    other = " or accountant='pld'" if accountant == "rdp" else ""
    return (
        f"The accountant cannot tell epsilons near the target apart: it jumps from above it to "
        f"{reached:.6g}. Use a larger `target_epsilon`{other}. {received}"
    )
