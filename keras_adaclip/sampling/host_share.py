"""Poisson sampling of a data set of which each of several processes holds a share.

A draw of all processes is one Poisson draw of all units: how many units each share gives follows
Binomial(rows of the share, q), independently of the other shares, and which of its rows these are
is each process's own choice, uniformly and without replacement. Only the numbers are known to
all, from random bits that they share: nothing is sent between the draws, and all pad to one size.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_adaclip.sampling.checking import checked_batch_size
from keras_adaclip.sampling.draws import generator_of_share, generator_of_shared_numbers
from keras_adaclip.sampling.poisson_dataset import PoissonDataset


class HostShare:
    """This process's rows of a Poisson-sampled data set, and the law of all draws.

    Args:
        rows: this process's rows; how it draws them itself plays no part.
        rows_of_shares: the number of rows of each process.
        number: of this process among them.
        first_rows: a few rows, the same in all processes.
        expected_batch_size: expected number of rows in a draw of all processes together.
        shared_bits: 128 random bits as integers, the same in all processes and known to nobody
            else: the numbers of drawn rows come from them where there is no seed.
        seed: None, or the integer that the draws of all processes follow from; each draws its rows
            from a stream of its own.

    Raises:
        ValueError: where `expected_batch_size` is out of range.
    """

    def __init__(
        self,
        rows: PoissonDataset,
        rows_of_shares: Sequence[int],
        number: int,
        first_rows: dict[str, Any],
        expected_batch_size: int,
        shared_bits: Sequence[int],
        seed: int | None = None,
    ) -> None:
        self._rows = rows
        self.rows_of_shares = tuple(rows_of_shares)
        self.number = number
        self.first_rows = first_rows
        self._expected_batch_size = checked_batch_size(expected_batch_size, self.num_examples)
        self._shared_bits = tuple(int(bits) for bits in shared_bits)
        self.seed = seed
        self._draw_numbers = itertools.count()

    @property
    def num_examples(self) -> int:
        """Rows of all processes together."""
        return sum(self.rows_of_shares)

    @property
    def num_shares(self) -> int:
        """The number of processes."""
        return len(self.rows_of_shares)

    @property
    def largest_share(self) -> int:
        """Rows of the process that has the most."""
        return max(self.rows_of_shares)

    @property
    def expected_batch_size(self) -> int:
        """Expected number of rows in a draw of all processes."""
        return self._expected_batch_size

    @property
    def sampling_probability(self) -> float:
        """The probability with which a step draws each row."""
        return self.expected_batch_size / self.num_examples

    @property
    def num_batches(self) -> int:
        """Steps an epoch, `ceil(num_examples / expected_batch_size)`."""
        return math.ceil(self.num_examples / self.expected_batch_size)

    def draw(self) -> tuple[np.ndarray, int]:
        """One new draw.

        Returns:
            This process's row numbers, ascending, none twice; and the largest number of rows that
            any process has drawn.
        """
        number = next(self._draw_numbers)
        shared = generator_of_shared_numbers(self.seed, self._shared_bits, number)
        sizes = shared.binomial(self.rows_of_shares, self.sampling_probability)
        own = generator_of_share(self.seed, number, self.number)
        drawn = own.choice(
            self.rows_of_shares[self.number], sizes[self.number], replace=False, shuffle=False
        )
        return np.sort(drawn), int(sizes.max())

    def take(self, rows: np.ndarray, padded_size: int | None = None) -> dict[str, Any]:
        """The batch with some of this process's rows, as `PoissonDataset.take` makes it.

        Args:
            rows: row numbers.
            padded_size: number of rows to fill up to; None adds one row to an empty draw.
        """
        return self._rows.take(rows, padded_size)
