"""Gaussian noise for a list of tensors.

Tensor `k` of step `t` gets `stddev * N(0, 1)` drawn from a stream of random numbers that is a
function of `(key, t, k)` alone: no state is carried from step to step, so that nothing can be
lost, repeated or reused in a compiled step.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_adaclip import backend

Tensor = Any
_NOISE_STREAM = 1


def fresh_key(seed: int | None = None, num_earlier_steps: int = 0) -> np.ndarray:
    """64 random bits as an int32 array of shape (2,).

    Args:
        seed: None takes the bits from the operating system; an integer derives them from it,
            and whoever knows it can subtract the noise.
        num_earlier_steps: with a seed, the steps that were trained before: a second optimizer
            with the same seed, which goes on where the first one stopped, must not repeat its
            noise.
    """
    if seed is None:
        return np.frombuffer(os.urandom(8), np.int32).copy()
    # A spawn key keeps this stream apart from every other use of the seed.
    sequence = np.random.SeedSequence(seed, spawn_key=(_NOISE_STREAM, num_earlier_steps))
    return sequence.generate_state(2, np.uint32).view(np.int32).copy()


def add_noise(
    tensors: Sequence[Tensor], stddev: Tensor, key: Tensor, step: Tensor, first_stream: int = 0
) -> list[Tensor]:
    """Adds independent Gaussian noise to each tensor.

    Args:
        tensors: float tensors of known shape.
        stddev: scalar tensor, the standard deviation of each coordinate's noise.
        key: int32 tensor of shape (2,).
        step: integer scalar tensor, the number of earlier draws with this key.
        first_stream: number of the first tensor's stream within the step.

    Returns:
        Float32 tensors of the same shapes.
    """
    return [
        ops.cast(tensor, "float32") + stddev * backend.gaussian(tensor.shape, key, step, stream)
        for stream, tensor in enumerate(tensors, start=first_stream)
    ]
