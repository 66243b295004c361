"""Whether two runs of a model agree."""

from typing import Any

import numpy as np


def first_difference(
    one: list[np.ndarray], other: list[np.ndarray], is_exact: bool, rows: Any = slice(None)
) -> int | None:
    """The number of the first layer output that differs in `rows`, None where none does."""
    for number, (value, changed) in enumerate(zip(one, other, strict=True)):
        # Of an axis that is not that of the rows nothing is known.
        if isinstance(rows, np.ndarray) and len(value) != len(rows):
            continue
        if differ(value[rows], changed[rows], is_exact):
            return number
    return None


def differ(one: np.ndarray, other: np.ndarray, is_exact: bool) -> bool:
    """Whether two digests differ, to the last bit or by more than rounding."""
    if is_exact:
        return not np.array_equal(one, other, equal_nan=True)
    return not np.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True)


def are_close(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether digests agree as far as those of batches of two sizes do."""
    scale = float(np.max(np.abs(one), initial=0.0, where=np.isfinite(one)))
    return np.allclose(one, other, rtol=1e-3, atol=1e-5 + 1e-3 * scale, equal_nan=True)
