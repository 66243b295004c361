"""Random rows, and values that variables may come to have, for an examination."""

import math

import keras
import numpy as np
from numpy.random import Generator

from keras_adaclip.backend import keras_private

# States of the variables that are tried: the present one, and four that `moved_value` makes. At two
# more, every variable that may be a counter is far from zero.
NUM_STATES, NUM_FAR_STATES = 5, 2
# Spread of the random rows at each state, as a multiple of the spread of the data.
SPREADS = (1.0, 1.0, 3.0, 0.3, 10.0)
# More than the number of steps of any run.
_FAR = 1e9
# Of a made-up input, whose square float32 can hold.
_LARGEST = 1e15
# Longer noise repeats this many draws, which is faster. The number is prime, so that rows differ.
_MOST_DRAWN = 65_537
_NUM_WORDS = 100


def moved_value(value: np.ndarray, state: int, trained: bool, generator: Generator) -> np.ndarray:
    """Return another value that a variable may come to have.

    Args:
        value: The present value.
        state: 1 moves it a little, 2 reverses the sign of what is trained, 3 reverses every sign,
            and 4 draws the value again, three times as wide.
        trained: Whether the optimizer moves the variable.
        generator: Draws the noise.
    """
    if value.dtype.kind == "b":
        return np.logical_xor(value, state % 2 == 1)
    if value.size == 1 and not trained and (value.dtype.kind in "iu" or state in (2, 4)):
        return np.asarray(value + 10.0**state).astype(value.dtype)  # It may count steps.
    if value.dtype.kind in "iu":
        return value  # It may be a table of positions.
    # Weights can be many, so each of these operations counts.
    numbers = value.astype("float32").ravel()
    size = math.sqrt(float(np.dot(numbers, numbers)) / max(value.size, 1))
    size = size or 1.0 / math.sqrt(max(math.prod(value.shape[:-1]), 1))
    drawn = size * generator.normal(size=min(value.size, _MOST_DRAWN))
    noise = np.resize((3.0 if state == 4 else 0.1) * drawn.astype("float32"), value.size)
    if state != 4:
        is_zero = numbers == 0.0
        if is_zero.any():
            noise[is_zero] = 10.0 * np.abs(noise[is_zero])
        noise += numbers
    if state == 3 or (state == 2 and trained):
        noise = np.negative(noise, out=noise)
    return noise.reshape(value.shape).astype(value.dtype, copy=False)


def far_value(value: np.ndarray, is_negative: bool) -> np.ndarray:
    """Return the value of a counter after very many steps.

    Args:
        value: The present value.
        is_negative: Whether it counts down.
    """
    if value.dtype.kind == "b":
        return np.full_like(value, not is_negative)
    info = np.iinfo(value.dtype) if value.dtype.kind in "iu" else np.finfo("float16")
    far = -_FAR if is_negative else _FAR
    if value.dtype.kind in "iu" or value.dtype == np.float16:
        far = np.clip(far, float(info.min) / 2, float(info.max) / 2)
    return np.full_like(value, far)


def known_words(model: keras.Model) -> list[str]:
    """Return strings that a model tells apart: words that its layers look up, and texts of them.

    A word that no layer knows would give every row the same number.
    """
    words = ["", "a"]
    for layer in keras_private.flatten_layers(model):
        if isinstance(layer, (keras.layers.StringLookup, keras.layers.TextVectorization)):
            words += [str(word) for word in layer.get_vocabulary()[:_NUM_WORDS]]
    return [*words, " ".join(words[2:]), " ".join(words[:1:-1])]


def plausible_rows(
    value: np.ndarray, size: int, spread: float, generator: Generator, words: list[str]
) -> np.ndarray:
    """Return random rows with the shape and the kind of the given ones.

    Integers are drawn from the given ones, 0 and 1, which are valid ids of any table: rows that
    all hold one id (padding, black pixels) would hide everything.

    Args:
        value: Rows of the data.
        size: Number of rows to return.
        spread: The spread of floats, as a multiple of that of the data.
        generator: Draws the rows.
        words: Strings to draw from in addition to those of the data.
    """
    shape, kind = (size, *value.shape[1:]), value.dtype
    if value.dtype == object:
        texts = [each if isinstance(each, str) else each.decode() for each in value.flat]
        return generator.choice(np.array([*texts, *words], object), shape)
    if value.dtype.kind == "b":
        return generator.integers(0, 2, shape).astype(bool)
    if value.dtype.kind == "f":
        value = np.clip(value.astype(np.float64), -_LARGEST, _LARGEST)
        spread = spread * (value.std() or 1.0)
        return (value.mean() + spread * generator.normal(size=shape)).astype(kind)
    known = np.unique([*np.unique(value).tolist(), 0, 1])
    return generator.choice(known, shape).astype(value.dtype)


def cut_short(rows: np.ndarray, padding: float, generator: Generator) -> np.ndarray:
    """Return sequences of random lengths, for layers that mask what follows them.

    Args:
        rows: Shape `(rows, positions, ...)`; rows with fewer axes are returned unchanged.
        padding: The value behind the end of a sequence.
        generator: Draws the lengths.
    """
    least = 3 if rows.dtype.kind == "f" else 2
    if rows.dtype.kind not in "fiu" or rows.ndim < least or rows.shape[1] < 2:
        return rows
    rows = rows.copy()
    longest = generator.integers(1, rows.shape[1])
    for row in rows:
        row[generator.integers(1, longest + 1) :] = padding
    return rows
