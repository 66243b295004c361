"""Checks of the arguments that several functions share.

Each check returns the argument as a plain Python value. NumPy scalars are accepted; booleans,
strings and NaN are not.
"""

import math
import numbers
import warnings
from collections.abc import Sequence

import numpy as np

INT32_MAX = 2**31 - 1

ACCOUNTANTS = ("pld", "rdp")
SAMPLING_NAMES = ("poisson", "shuffle", "stream", "fixed")


def check_integer(value: object, name: str, *, minimum: int = 0, maximum: int = INT32_MAX) -> int:
    """Returns `value` as an `int`.

    Args:
        value: the value of the argument.
        name: the name of the argument, for the message.
        minimum: the smallest integer that is allowed.
        maximum: the largest integer that is allowed.

    Raises:
        TypeError: if the value is not an integer.
        ValueError: if it is out of range.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise TypeError(f"Argument `{name}` must be an integer. Received: {name}={value!r}")
    number = int(value)
    if not minimum <= number <= maximum:
        raise ValueError(
            f"Argument `{name}` must lie between {minimum} and {maximum}. Received: {name}={number}"
        )
    return number


def check_real(value: object, name: str) -> float:
    """Returns `value` as a finite `float`.

    Args:
        value: the value of the argument.
        name: the name of the argument, for the message.

    Raises:
        TypeError: if the value is not a real number.
        ValueError: if it is not finite.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"Argument `{name}` must be a real number. Received: {name}={value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"Argument `{name}` must be finite. Received: {name}={number}")
    return number


def check_noise_multiplier(value: object) -> float:
    """Returns a noise multiplier that fits float32, the precision of training."""
    number = check_real(value, "noise_multiplier")
    if number < 0:
        raise ValueError(
            f"Argument `noise_multiplier` must not be negative. Received: noise_multiplier={number}"
        )
    if number > float(np.finfo(np.float32).max):
        raise ValueError(
            "Argument `noise_multiplier` must fit float32, the precision of training. "
            f"Received: noise_multiplier={number}"
        )
    return number


def check_target_epsilon(value: object) -> float:
    """Returns a positive, finite target.

    Args:
        value: the value of the argument.

    Raises:
        TypeError: if the value is not a real number.
        ValueError: if it is not positive and finite.
    """
    number = check_real(value, "target_epsilon")
    if number <= 0:
        raise ValueError(
            f"Argument `target_epsilon` must be positive. Received: target_epsilon={number}"
        )
    return number


def check_delta(value: object) -> float:
    """Returns a delta strictly between 0 and 1.

    Args:
        value: the value of the argument.

    Raises:
        TypeError: if the value is not a real number.
        ValueError: if it does not lie strictly between 0 and 1.
    """
    number = check_real(value, "delta")
    if not 0 < number < 1:
        raise ValueError(
            f"Argument `delta` must lie strictly between 0 and 1. Received: delta={number}"
        )
    return number


def warn_of_large_delta(
    delta: float, num_examples: int, stacklevel: int = 3, unit: str = "example"
) -> None:
    """Warns if `delta` would allow one unit's data to be published.

    Args:
        delta: the delta.
        num_examples: number of units; 0 if unknown, which never warns.
        stacklevel: as of `warnings.warn`.
        unit: the unit of privacy, `"example"` or `"client"`.
    """
    if delta * num_examples >= 1:
        warnings.warn(
            f"Argument `delta` should be well below 1 / num_{unit}s = {1 / num_examples:.3g}: "
            f"with a larger one, publishing a random {unit} counts as private. "
            f"Received: delta={delta}. `default_delta(num_{unit}s)` gives a usual choice.",
            UserWarning,
            stacklevel=stacklevel,
        )


def check_choice(value: object, name: str, choices: Sequence[str]) -> str:
    """Returns `value`, one of the choices."""
    if value not in choices:
        raise ValueError(
            f"Argument `{name}` must be one of {', '.join(map(repr, choices))}. "
            f"Received: {name}={value!r}"
        )
    return str(value)


def check_accountant(value: object) -> str:
    """Returns the name of an accountant.

    Args:
        value: the value of the argument.

    Raises:
        ValueError: if there is no such accountant.
    """
    return check_choice(value, "accountant", ACCOUNTANTS)


def check_sampling_name(value: object) -> str:
    """Returns the name of a sampling scheme."""
    return check_choice(value, "sampling", SAMPLING_NAMES)


def check_batch(num_examples: object, batch_size: object) -> tuple[int, int]:
    """Returns `(num_examples, batch_size)`, with a batch no larger than the data."""
    examples = check_integer(num_examples, "num_examples", minimum=1)
    batch = check_integer(batch_size, "batch_size", minimum=1)
    if batch > examples:
        raise ValueError(
            "Argument `batch_size` must not exceed `num_examples`. "
            f"Received: batch_size={batch}, num_examples={examples}"
        )
    return examples, batch


def check_num_steps(
    epochs: object, steps: object, *, steps_per_epoch: int, minimum: int = 0
) -> int:
    """Returns the number of steps, from exactly one of `epochs` and `steps`."""
    if (epochs is None) == (steps is None):
        raise ValueError(
            "Exactly one of the arguments `epochs` and `steps` must be given. "
            f"Received: epochs={epochs!r}, steps={steps!r}"
        )
    if steps is not None:
        return check_integer(steps, "steps", minimum=minimum)
    num_epochs = check_integer(epochs, "epochs", minimum=minimum)
    num_steps = num_epochs * steps_per_epoch
    if num_steps > INT32_MAX:
        raise ValueError(
            f"Argument `epochs` must amount to at most {INT32_MAX} steps. "
            f"Received: epochs={num_epochs}, of {steps_per_epoch} steps each"
        )
    return num_steps


def default_delta(num_examples: int) -> float:
    """The delta that is used if the user gives none: `num_examples ** -1.1`.

    Args:
        num_examples: Number of units (examples or clients) in the data, at least 2.

    Returns:
        A delta a little below `1 / num_examples`.

    Raises:
        ValueError: If there are fewer than two units, for which delta would not be below 1.

    Example:

    >>> f"{default_delta(60_000):.3g}"
    '5.55e-06'
    """
    number: float = check_integer(num_examples, "num_examples", minimum=2) ** -1.1
    return number
