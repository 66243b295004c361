"""Standard normal numbers as a pure function of key and counter, for compilers that fuse.

    bits = Threefry-2x32-20(key, counter)      Salmon et al. 2011, "Parallel random numbers"
    p    = (the lower 31 bits + 1/2) / 2^32    probability of a tail, 2^-33 to 1/2
    z    = +- sqrt(2) erfinv(1 - 2 p)          Giles 2010, "Approximating the erfinv function"

Threefry is a reduced form of the block cipher Threefish: without the key, nobody is known to tell
its numbers from random ones. The tail's probability is kept, not one minus it, which float32 rounds
at 2^-24: numbers reach 6.3 standard deviations, where others that start from float32 end at 5.4.
Written as one expression, it is one pass over the numbers once XLA has fused it.
"""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops

Tensor = Any

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_NUM_ROUNDS = 20
_BLOCKS_AT_A_TIME = 1024
# Giles's polynomials of w = -log(1 - x^2), highest power first: in w - 2.5 for w < 5, and in
# sqrt(w) - 3 beyond. Relative error 1e-7 up to w = 16, 4e-4 at the end of the tail (w = 22).
_CENTRAL = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_TAIL = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def standard_normal(num_blocks: int, key: Tensor, step: Tensor, stream: Tensor) -> Tensor:
    """Standard normal float32 numbers, a function of `(key, step, stream)` and their number alone.

    Args:
        num_blocks: a quarter of how many, below 2^30.
        key: uint32 tensor of shape (2,), 64 random bits.
        step: integer scalar tensor, below 2^31.
        stream: uint32 scalar tensor, the number of the draw within the step.

    Returns:
        A tensor of shape `(4 * num_blocks,)`.
    """
    # A block cipher is one to one: distinct steps give distinct keys, and so do distinct streams.
    of_step = threefry((key[0], key[1]), (ops.cast(step, "uint32"), _word(0)))
    subkey = threefry(of_step, (stream, _word(0)))

    def blocks_from(start: Tensor) -> Tensor:
        index = ops.cast(start + ops.arange(num_blocks, dtype="int32"), "uint32")
        return tuple(normal_of(word) for word in threefry(subkey, (index, ops.zeros_like(index))))

    # A loop of two rounds only keeps compilers from repeating all this for each part that is used.
    starts = ops.convert_to_tensor([0, num_blocks], "int32")
    return ops.concatenate([ops.reshape(part, (-1,)) for part in ops.map(blocks_from, starts)])


def num_blocks_for(size: int) -> int:
    """A quarter of the numbers to draw for `size` of them, few in vain.

    Args:
        size: how many numbers are wanted.
    """
    # XLA compiles once a size, and for some small ones it takes a second.
    return -(-size // (4 * _BLOCKS_AT_A_TIME)) * _BLOCKS_AT_A_TIME


def threefry(key: tuple[Tensor, Tensor], counter: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The block cipher Threefry-2x32 with 20 rounds, elementwise.

    Args:
        key: two uint32 tensors.
        counter: two uint32 tensors.

    Returns:
        Two uint32 tensors.
    """
    keys = (*key, ops.bitwise_xor(ops.bitwise_xor(*key), _word(_PARITY)))
    first, second = counter[0] + keys[0], counter[1] + keys[1]
    for group in range(_NUM_ROUNDS // 4):
        for rotation in _ROTATIONS[group % 2]:
            first = first + second
            second = ops.bitwise_xor(_rotated(second, rotation), first)
        first = first + keys[(group + 1) % 3]
        second = second + keys[(group + 2) % 3] + _word(group + 1)
    return first, second


def normal_of(bits: Tensor) -> Tensor:
    """Standard normal float32 numbers, each from 32 random bits."""
    lower = ops.cast(ops.bitwise_and(bits, _word(0x7FFFFFFF)), "int32")
    # Twice the tail's probability, in (0, 1).
    twice = (ops.cast(lower, "float32") + 0.5) * 2.0**-31
    w = -ops.log(twice * (2.0 - twice))
    size = ops.where(w < 5.0, _polynomial(_CENTRAL, w - 2.5), _polynomial(_TAIL, ops.sqrt(w) - 3.0))
    size = size * (math.sqrt(2.0) * (1.0 - twice))
    return ops.where(ops.equal(ops.right_shift(bits, _word(31)), _word(1)), -size, size)


def _word(value: int) -> Tensor:
    return ops.convert_to_tensor(value, "uint32")


def _rotated(value: Tensor, by: int) -> Tensor:
    left, right = ops.left_shift(value, _word(by)), ops.right_shift(value, _word(32 - by))
    return ops.bitwise_or(left, right)


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    value = coefficients[0]
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value
