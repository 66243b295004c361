"""Which units a step draws.

A Poisson draw is a set of units whose size follows Binomial(num_units, q), the units then chosen
without replacement: the same law as one coin for each unit. An empty draw is a step too. The
amplification by sampling that the accountant counts on holds for this law and not for shuffling
(Mironov et al. 2019, "Renyi differential privacy of the sampled Gaussian mechanism").
"""

import numpy as np

_SAMPLING_STREAM = 2
# Of a draw that processes share: this for what all know, and one more for each process.
_SHARED_NUMBERS = 0


def seed_of_run(seed: int | None, steps_before: int) -> int | None:
    """A seed that no other run of a model draws with; None for None.

    Args:
        seed: integer from 0 to below 2^128, or None.
        steps_before: steps on the model's ledger before the run.
    """
    return None if seed is None else seed + (steps_before << 128)


def generator_of_draw(seed: int | None, number: int) -> np.random.Generator:
    """The random numbers of one draw: from the operating system, or from a seed and its number.

    Args:
        seed: a seed, or None for the operating system's randomness.
        number: number of the draw, from 0; draws of one seed differ by it.
    """
    if seed is None:
        return np.random.default_rng()
    # A spawn key: an appended number would be lost where it is 0.
    key = (_SAMPLING_STREAM, number)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def poisson_draw(
    generator: np.random.Generator, num_units: int, sampling_probability: float
) -> np.ndarray:
    """Numbers of the drawn units, ascending, none twice; empty with some probability.

    Args:
        generator: where the random numbers come from.
        num_units: number of units to draw from.
        sampling_probability: probability of each unit, between 0 and 1.
    """
    size = generator.binomial(num_units, sampling_probability)
    return np.sort(generator.choice(num_units, size, replace=False, shuffle=False))


def generator_of_shared_numbers(
    seed: int | None, shared_bits: tuple[int, ...], number: int
) -> np.random.Generator:
    """The random numbers by which processes agree how many units each of their shares gives.

    Args:
        seed: a seed, or None for what the processes share.
        shared_bits: 128 random bits, the same in all processes.
        number: number of the draw, from 0.
    """
    if seed is None:
        return np.random.default_rng(
            np.random.SeedSequence(shared_bits, spawn_key=(_SAMPLING_STREAM, number))
        )
    key = (_SAMPLING_STREAM, number, _SHARED_NUMBERS)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def generator_of_share(seed: int | None, number: int, share: int) -> np.random.Generator:
    """The random numbers by which a process chooses its units; those of no two processes meet.

    Args:
        seed: a seed, or None for the operating system's randomness.
        number: number of the draw, from 0.
        share: number of the process, from 0.
    """
    if seed is None:
        return np.random.default_rng()
    key = (_SAMPLING_STREAM, number, _SHARED_NUMBERS + 1 + share)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
