"""Checks of arguments, with one grammar of errors for the whole package.

Each check takes the name of an argument and its value, and returns the value as a plain Python
object. NumPy scalars are accepted; booleans, strings and NaN are not. Imports neither Keras nor a
backend.
"""

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

INT32_MAX = 2**31 - 1
FLOAT32_MAX = float(np.finfo(np.float32).max)

Value = TypeVar("Value")


def check_integer(name: str, value: object, *, minimum: int = 0, maximum: float = INT32_MAX) -> int:
    """Return `value` as an `int` between `minimum` and `maximum`.

    Args:
        name: The name of the argument, for the message.
        value: The value of the argument.
        minimum: The smallest integer that is allowed.
        maximum: The largest integer that is allowed.

    Raises:
        TypeError: If the value is not an integer.
        ValueError: If it is out of range.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise TypeError(f"Argument `{name}` must be an integer. Received: {name}={value!r}")
    number = int(value)
    if not minimum <= number <= maximum:
        is_low = maximum >= INT32_MAX and number < minimum
        allowed = f"be at least {minimum}" if is_low else f"lie between {minimum} and {maximum}"
        raise _out_of_range(name, allowed, number)
    return number


def check_real(name: str, value: object) -> float:
    """Return `value` as a finite `float`.

    Raises:
        TypeError: If the value is not a real number.
        ValueError: If it is not finite.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise TypeError(f"Argument `{name}` must be a number. Received: {name}={value!r}")
    number = float(value)
    if not math.isfinite(number):
        raise _out_of_range(name, "be finite", number)
    return number


def check_nonnegative(name: str, value: object) -> float:
    """Return `value` as a finite `float` of at least 0."""
    number = check_real(name, value)
    if number < 0.0:
        raise _out_of_range(name, "not be negative", number)
    return number


def check_positive(name: str, value: object) -> float:
    """Return `value` as a positive, finite `float`."""
    number = check_real(name, value)
    if number <= 0.0:
        raise _out_of_range(name, "be positive", number)
    return number


def check_between(name: str, value: object, minimum: float, maximum: float) -> float:
    """Return `value` as a `float` between `minimum` and `maximum`, ends included."""
    number = check_real(name, value)
    if not minimum <= number <= maximum:
        raise _out_of_range(name, f"lie between {minimum:g} and {maximum:g}", number)
    return number


def check_between_0_and_1(name: str, value: object, *, with_0: bool = False) -> float:
    """Return `value` as a `float` strictly between 0 and 1.

    Args:
        name: The name of the argument, for the message.
        value: The value of the argument.
        with_0: Whether 0 is allowed too.
    """
    number = check_real(name, value)
    if not (0.0 < number < 1.0 or (with_0 and number == 0.0)):
        allowed = "be at least 0 and below 1" if with_0 else "lie strictly between 0 and 1"
        raise _out_of_range(name, allowed, number)
    return number


def check_noise_multiplier(value: object) -> float:
    """Return a noise multiplier that is not negative and fits float32, the type of the noise."""
    number = check_nonnegative("noise_multiplier", value)
    if number > FLOAT32_MAX:
        raise _out_of_range("noise_multiplier", "fit float32, the precision of training", number)
    return number


def check_choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Return `value`, which must be one of the choices."""
    if value not in choices:
        raise _out_of_range(name, f"be one of {', '.join(map(repr, choices))}", repr(value))
    return str(value)


def check_batch_size(value: object, num_examples: int, name: str = "batch_size") -> int:
    """Return an expected batch size between 1 and the number of examples."""
    return check_integer(name, value, minimum=1, maximum=num_examples)


def check_seed(value: object) -> int | None:
    """Return a seed, an integer of any size that is not negative, or None."""
    return None if value is None else check_integer("seed", value, maximum=math.inf)


def optional(check: Callable[[str, Any], Value], name: str, value: Any) -> Value | None:
    """Return None unchanged, and any other value as `check(name, value)` does."""
    return None if value is None else check(name, value)


def _out_of_range(name: str, allowed: str, value: object) -> ValueError:
    """Return the error of an argument that must be as `allowed` says, in words after "must"."""
    return ValueError(f"Argument `{name}` must {allowed}. Received: {name}={value}")
