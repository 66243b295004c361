"""Gaussian noise for a list of tensors, and its allocation to groups.

The tensors of step `t` get disjoint parts of one draw of `N(0, 1)`, which is a function of
`(key, t, stream)` and its size alone: no state is carried from step to step, so that a compiled
step cannot lose or repeat it.
"""

import hashlib
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_adaclip import backend

Tensor = Any
_NOISE_STREAM = 1
ALLOCATIONS = ("global", "proportional", "optimal")


def fresh_key(seed: int | None = None, num_earlier_steps: int = 0) -> np.ndarray:
    """Return 64 random bits as an int32 array of shape (2,).

    Args:
        seed: None takes the bits from the operating system. An integer determines them, and whoever
            knows it can subtract the noise.
        num_earlier_steps: Number of earlier steps, used with a seed: a second optimizer with the
            same seed that continues the training must not repeat the noise.
    """
    if seed is None:
        # If several processes train together, all take the bits of one: they draw the same noise.
        return np.array(backend.gathered(np.frombuffer(os.urandom(8), np.int32))[0])
    # The spawn key separates this stream from every other use of the seed.
    sequence = np.random.SeedSequence(seed, spawn_key=(_NOISE_STREAM, num_earlier_steps))
    return sequence.generate_state(2, np.uint32).view(np.int32).copy()


def next_key(key: np.ndarray) -> np.ndarray:
    """Return a key that is computed from `key`, and does not reveal it.

    Args:
        key: Int32 array of shape (2,).

    Returns:
        The BLAKE2b hash of the key, int32 of shape (2,); the same in every process.
    """
    digest = hashlib.blake2b(key.tobytes(), digest_size=8).digest()
    return np.frombuffer(digest, np.int32).copy()


def add_noise(
    tensors: Sequence[Tensor],
    stddevs: Sequence[Tensor],
    key: Tensor,
    step: Tensor,
    stream: int = 0,
    remainders: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """Add independent Gaussian noise to each tensor.

    Args:
        tensors: Float tensors of known shape.
        stddevs: For each tensor a scalar, the standard deviation of each coordinate's noise.
        key: Int32 tensor of shape (2,).
        step: Integer scalar tensor, the number of earlier draws with this key.
        stream: Number of the draw within the step.
        remainders: Small numbers to add to each tensor with the noise, None for none. Rounding
            after the noise tells nothing.

    Returns:
        Float32 tensors of the same shapes.
    """
    sizes = [math.prod(tensor.shape) for tensor in tensors]
    draw = backend.gaussian((sum(sizes),), key, step, stream)
    ends = np.cumsum(sizes)[:-1].tolist()
    parts = ops.split(draw, ends) if ends else [draw]
    noised = []
    lost = remainders or [None] * len(sizes)
    for tensor, stddev, part, remainder in zip(tensors, stddevs, parts, lost, strict=True):
        part = ops.reshape(part, tensor.shape)
        # In place on PyTorch, where new memory would take longer than the arithmetic.
        part *= stddev
        if remainder is not None:
            part += remainder
        part += ops.cast(tensor, "float32")
        noised.append(part)
    return noised


def group_stddevs(
    allocation: str, noise_multiplier: Tensor, clip_norms: Tensor, sizes: Sequence[int]
) -> Tensor:
    """Return the standard deviation of each group's noise, for a joint noise multiplier z.

        sum_k (C_k / s_k)^2 = 1 / z^2
        global:        s_k   = z sqrt(sum_j C_j^2)
        proportional:  s_k   = z sqrt(K) C_k
        optimal:       s_k^2 = z^2 (C_k / sqrt(d_k)) sum_j C_j sqrt(d_j),  the least sum_k d_k s_k^2

    Args:
        allocation: `"global"`, `"proportional"` or `"optimal"`.
        noise_multiplier: Scalar tensor, z.
        clip_norms: Float32 tensor of shape `(num_groups,)`, C_k.
        sizes: Number of coordinates of each group, d_k.

    Returns:
        A float32 tensor of shape `(num_groups,)`.

    Reference:
        Thakkar et al. 2019, "Differentially private learning with adaptive clipping" (version 1),
        section 2; McMahan et al. 2018, section 2.3.
    """
    if len(sizes) == 1:
        return noise_multiplier * clip_norms
    if allocation == "proportional":
        return noise_multiplier * math.sqrt(len(sizes)) * clip_norms
    if allocation == "optimal":
        roots = ops.convert_to_tensor(np.sqrt(np.asarray(sizes, np.float32)))
        total = ops.sqrt(ops.sum(clip_norms * roots))
        return noise_multiplier * ops.sqrt(clip_norms / roots) * total
    joint = ops.sqrt(ops.sum(ops.square(clip_norms)))
    return noise_multiplier * joint * ops.ones_like(clip_norms)
