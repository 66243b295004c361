"""The distribution of a draw and its random numbers.

A Poisson draw is a set of units whose size follows Binomial(num_units, q), the units then chosen
uniformly without replacement. This is the distribution of one coin toss for each unit. An empty
draw is a step too. The accountant's amplification by sampling holds for this distribution and not
for shuffling (Mironov et al. 2019, "Renyi differential privacy of the sampled Gaussian mechanism").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

# Sets the draws apart from the noise, whose keys may come from the same seed.
_SAMPLING_STREAM = 2
# Sets the numbers that processes share apart from the choices of each process.
_SHARED, _FIRST_PROCESS = 0, 1


def draw_generator(seed: int | Sequence[int] | None, *key: int) -> Generator:
    """Return the random generator of one draw.

    Args:
        seed: A seed, or None for the randomness of the operating system.
        *key: The number of steps before the run, the number of the draw within the run, and
            whatever else sets apart the draws from one seed. Ignored without a seed.
    """
    if seed is None:
        return np.random.default_rng()
    spawn_key = (_SAMPLING_STREAM, *key)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=spawn_key))


def uniform_draw(generator: Generator, num_units: int, size: int) -> np.ndarray:
    """Return the ascending numbers of `size` distinct units, every set being equally likely."""
    return np.sort(generator.choice(num_units, size, replace=False, shuffle=False))


def poisson_draw(generator: Generator, num_units: int, sampling_probability: float) -> np.ndarray:
    """Return the ascending numbers of the units in one Poisson draw, which may be empty.

    Args:
        generator: The source of randomness.
        num_units: The number of units to draw from.
        sampling_probability: The probability of each unit, between 0 and 1.
    """
    size = generator.binomial(num_units, sampling_probability)
    return uniform_draw(generator, num_units, size)


def truncated_draw(generator: Generator, units: np.ndarray, most: int | None) -> np.ndarray:
    """Return a draw, cut at random if it is too large; every remaining set is equally likely.

    Args:
        generator: The source of randomness.
        units: The ascending numbers of the units in the draw.
        most: The most units to keep; None keeps all.
    """
    if most is None or len(units) <= most:
        return units
    return units[uniform_draw(generator, len(units), most)]


@dataclass(frozen=True)
class ProcessShare:
    """One process's share of the rows of a data set that several processes hold.

    All processes together make one Poisson draw without sending anything. They know how many rows
    each of them draws, from random bits that they share: Binomial(rows of the process, q),
    independently of the others. Which of its rows these are is each process's own choice.

    Args:
        rows_of_processes: The number of rows that each process holds.
        number: The number of this process, from 0.
        shared_bits: 128 random bits as integers, the same in all processes and unknown to anyone
            else.
        first_rows: A batch of a few rows, the same in all processes.
    """

    rows_of_processes: tuple[int, ...]
    number: int
    shared_bits: tuple[int, ...]
    first_rows: dict[str, Any]

    def draw(
        self,
        seed: int | None,
        key: tuple[int, ...],
        sampling_probability: float,
        most: int | None = None,
    ) -> tuple[np.ndarray, int]:
        """Return this process's part of one draw, and the size of the largest part.

        Args:
            seed: The seed of all processes, or None.
            key: Sets this draw apart from the others of the seed, as for `draw_generator`.
            sampling_probability: The probability of each row, between 0 and 1.
            most: The most rows to draw in all processes together, of a larger draw at random; None
                for all.
        """
        shared = draw_generator(self.shared_bits if seed is None else seed, *key, _SHARED)
        sizes = shared.binomial(self.rows_of_processes, sampling_probability)
        if most is not None and sizes.sum() > most:
            # How many of the rows that stay are in each process, if each set is equally likely.
            sizes = shared.multivariate_hypergeometric(sizes, most)
        own = draw_generator(seed, *key, _FIRST_PROCESS + self.number)
        rows = uniform_draw(own, self.rows_of_processes[self.number], sizes[self.number])
        return own.permutation(rows), int(sizes.max())
