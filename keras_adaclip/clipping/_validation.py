"""Checks of the arguments of clipping strategies."""

import math
import numbers
from typing import Any

# Squares of what is smaller vanish in float32, and a norm that reads 0 is never clipped; what is
# larger has a square that is not finite. Between the two, norms and noise can be trusted.
SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM = 1e-10, 1e15


def require_number(name: str, value: Any) -> float:
    """Returns `value` as a float, or raises where it is not a number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"Argument `{name}` must be a number. Received: {name}={value!r}")
    return float(value)


def require_positive(name: str, value: Any) -> float:
    """Returns `value` as a float, or raises where it is not a positive finite number."""
    number = require_number(name, value)
    if not (math.isfinite(number) and number > 0.0):
        raise ValueError(
            f"Argument `{name}` must be positive and finite. Received: {name}={value!r}"
        )
    return number


def require_share(name: str, value: Any) -> float:
    """Returns `value` as a float, or raises where it is not a number from 0 up to below 1."""
    number = require_number(name, value)
    if not 0.0 <= number < 1.0:
        raise ValueError(
            f"Argument `{name}` must be at least 0 and below 1. Received: {name}={value!r}"
        )
    return number


def require_clip_norm(name: str, value: Any) -> float:
    """Returns `value` as a float, or raises where float32 cannot clip to it."""
    norm = require_positive(name, value)
    if not SMALLEST_CLIP_NORM <= norm <= LARGEST_CLIP_NORM:
        raise ValueError(
            f"Argument `{name}` must lie between {SMALLEST_CLIP_NORM:g} and "
            f"{LARGEST_CLIP_NORM:g}, where float32 norms can be trusted; scale the loss instead. "
            f"Received: {name}={value!r}"
        )
    return norm


def optional(require: Any, name: str, value: Any) -> Any:
    """None as it is, any other value through `require(name, value)`."""
    return None if value is None else require(name, value)
