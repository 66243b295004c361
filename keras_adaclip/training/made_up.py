"""Made-up rows, halves of them, and values that variables may come to have, for a probe."""

import math

import numpy as np

# More than any run has steps.
_FAR = 1e9
# Longer noise repeats these many draws, which is faster. The number is prime, so that rows differ.
_MOST_DRAWN = 65_537


def separating_halves(size: int) -> list[np.ndarray]:
    """Masks of the rows to exchange: any row is kept in one of them while any other changes.

    Args:
        size: number of rows, a power of two.
    """
    numbers = np.arange(size)
    bits = [(numbers >> bit) & 1 == 1 for bit in range(size.bit_length() - 1)]
    return [*bits, *(~bit for bit in bits)]


def moved_value(
    value: np.ndarray, state: int, is_trained: bool, generator: np.random.Generator
) -> np.ndarray:
    """Another value that a variable may come to have.

    Args:
        value: as it is.
        state: 1 moves it a little, 2 turns the sign of what is trained, 3 that of everything, and
            4 draws it anew, three times as wide.
        is_trained: whether the optimizer moves it.
        generator: draws.
    """
    if value.dtype.kind == "b":
        return np.logical_xor(value, state % 2 == 1)
    if value.dtype.kind in "iu":
        # A counter; a table of numbers may be one of places.
        return value + np.asarray(1000 * state, value.dtype) if value.size == 1 else value
    numbers = value.astype("float32")
    if value.size == 1 and not is_trained and state in (2, 4):
        # It may count steps.
        return (numbers + 10.0**state).astype(value.dtype)
    size = float(np.sqrt(np.mean(np.square(numbers)))) if value.size else 0.0
    size = size or 1.0 / math.sqrt(max(math.prod(value.shape[:-1]), 1))
    noise = size * np.resize(generator.normal(size=min(value.size, _MOST_DRAWN)), value.shape)
    if state == 4:
        moved = 3.0 * noise
    elif state == 1 or (state == 2 and not is_trained):
        moved = numbers + np.where(numbers == 0.0, np.abs(noise), 0.1 * noise)
    else:
        moved = -numbers - np.where(numbers == 0.0, np.abs(noise), 0.1 * noise)
    return np.asarray(moved).astype(value.dtype)


def far_value(value: np.ndarray, is_negative: bool) -> np.ndarray:
    """What a counter may come to after very many steps, or one that counts down.

    Args:
        value: as it is.
        is_negative: which of the two.
    """
    if value.dtype.kind == "b":
        return np.full_like(value, not is_negative)
    far = -_FAR if is_negative else _FAR
    if value.dtype.kind in "iu":
        info = np.iinfo(value.dtype)
        return np.full_like(value, np.clip(far, info.min // 2, info.max // 2))
    return np.full_like(value, np.clip(far, -6e4, 6e4) if value.dtype == np.float16 else far)


def plausible_rows(
    value: np.ndarray, size: int, spread: float, generator: np.random.Generator, words: list[str]
) -> np.ndarray:
    """Made-up rows with the shape of `value`'s and numbers (or strings) of its kind.

    Constant ids (padding, black pixels) would hide everything: 0 and 1 are ids of any table.

    Args:
        value: rows of the data.
        size: number of rows.
        spread: of numbers, as a multiple of that of the data.
        generator: draws.
        words: strings to draw from besides those of the data.
    """
    shape = (size, *value.shape[1:])
    if value.dtype == object:
        texts = [each if isinstance(each, str) else each.decode() for each in value.flat]
        return generator.choice(np.array([*texts, *words], object), shape)
    if value.dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    if value.dtype.kind == "f":
        spread = spread * (value.std() or 1.0)
        return (value.mean() + spread * generator.normal(size=shape)).astype(value.dtype)
    known = np.unique([*np.unique(value).tolist(), 0, 1])
    return generator.choice(known, shape).astype(value.dtype)


def cut_short(rows: np.ndarray, padding: float, generator: np.random.Generator) -> np.ndarray:
    """Sequences of differing lengths, as they are where something masks what follows them.

    Args:
        rows: of shape `(rows, positions, ...)`; numbers of fewer axes stay as they are.
        padding: what stands behind the end of a sequence.
        generator: draws the lengths.
    """
    least = 3 if rows.dtype.kind == "f" else 2
    if rows.dtype.kind not in "fiu" or rows.ndim < least or rows.shape[1] < 2:
        return rows
    rows = rows.copy()
    longest = generator.integers(1, rows.shape[1] + 1)
    for row in rows:
        row[generator.integers(1, longest + 1) :] = padding
    return rows


def as_column(mask: np.ndarray, like: np.ndarray) -> np.ndarray:
    """The mask of rows, with as many axes as `like`."""
    return mask.reshape(-1, *[1] * (like.ndim - 1))
