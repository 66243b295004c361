"""Standard normal numbers as a pure function of key and counter, on TensorFlow and JAX.

    bits = Threefry-2x32-20(key, counter)      Salmon et al. 2011, "Parallel random numbers"
    p    = (the lower 31 bits + 1/2) / 2^32    probability of a tail, 2^-33 to 1/2
    z    = +- sqrt(2) erfinv(1 - 2 p)          Giles 2010, "Approximating the erfinv function"

Threefry is a reduced form of the block cipher Threefish. Nobody is known to tell its numbers from
random ones without the key. The code computes with the probability of the tail, since float32
rounds one minus it at 2^-24: numbers reach 6.3 standard deviations. Those of `jax.random.normal`
end at 5.4, which is a weaker guarantee.

XLA fuses the expression into one pass that all cores share. Python's operators take the place of
Keras's operations on bits, which are slow to trace; the compiler makes shifts of products and
quotients of powers of two.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

Tensor = Any

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_NUM_ROUNDS = 20
_NUMBERS_AT_A_TIME, _LARGE = 1 << 12, 1 << 17
# Giles's polynomials, highest power first, with w = -log(1 - x^2): in w - 2.5 for w < 5, and in
# sqrt(w) - 3 beyond. Relative error 1e-7 up to w = 16, 4e-4 at the end of the tail (w = 22).
_CENTRAL = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


def standard_normal(size: int, key: Tensor, step: Tensor, stream: Tensor) -> Tensor:
    """Return standard normal float32 numbers, a function of the arguments alone.

    Only the first word of each block of the cipher is used: all cores can then share the work,
    which takes no longer even on one.

    Args:
        size: Number of numbers, below 2^31.
        key: Uint32 tensor of shape (2,), 64 random bits.
        step: Integer scalar tensor, below 2^31.
        stream: Uint32 scalar tensor, the number of the draw within the step.

    Returns:
        A tensor of shape `(size,)`.
    """
    # A block cipher is one-to-one: distinct steps give distinct keys, and so do distinct streams.
    zero = ops.zeros_like(stream)
    of_step = threefry((key[0], key[1]), (ops.cast(step, "uint32"), zero))
    subkey = threefry(of_step, (stream, zero))
    index = ops.cast(ops.arange(size, dtype="int32"), "uint32")
    return normal_from_bits(threefry(subkey, (index, ops.zeros_like(index)))[0])


def rounded_size(size: int) -> int:
    """Return a number that is at least `size`: XLA compiles once for each.

    A large size stays as it is, since cutting off a few numbers would copy all others.
    """
    return size if size >= _LARGE else -(-size // _NUMBERS_AT_A_TIME) * _NUMBERS_AT_A_TIME


def threefry(key: tuple[Tensor, Tensor], counter: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the block cipher Threefry-2x32 with 20 rounds, elementwise.

    Args:
        key: Two uint32 tensors.
        counter: Two uint32 tensors.

    Returns:
        Two uint32 tensors.
    """
    keys = (*key, key[0] ^ key[1] ^ np.uint32(_PARITY))
    first, second = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(_NUM_ROUNDS // 4):
        for rotation in _ROTATIONS[group % 2]:
            first = first + second
            second = _rotated(second, rotation) ^ first
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + np.uint32(group + 1)
    return first, second


def normal_from_bits(bits: Tensor) -> Tensor:
    """Return standard normal float32 numbers, elementwise from uint32 words of random bits."""
    lower = ops.cast(bits & np.uint32(0x7FFFFFFF), "int32")
    # Twice the probability of the tail, in (0, 1).
    twice = (ops.cast(lower, "float32") + 0.5) * 2.0**-31
    w = -ops.log(twice * (2.0 - twice))
    size = ops.where(w < 5.0, _polynomial(_CENTRAL, w - 2.5), _polynomial(_TAIL, ops.sqrt(w) - 3.0))
    size = size * (math.sqrt(2.0) * (1.0 - twice))
    return ops.where(bits >= np.uint32(1 << 31), -size, size)


def _rotated(value: Tensor, by: int) -> Tensor:
    """Return the word with its bits rotated to the left."""
    return value * np.uint32(1 << by) | value // np.uint32(1 << (32 - by))


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """Return the value of a polynomial at `x`, with the highest power first."""
    value = coefficients[0]
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value
