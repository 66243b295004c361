"""The law of Poisson-sampled draws: which rows each step sees."""

import itertools
import os
from typing import Any

import numpy as np

from keras_adaclip._checks import check_batch_size, check_choice, check_integer, check_seed
from keras_adaclip.sampling.draws import ProcessShare, draw_generator, poisson_draw, truncated_draw


class PoissonDraws:
    """Draws from numbered rows, each row independently with one probability.

    Args:
        num_rows: The number of rows of this process, present or not.
        expected_batch_size: As for `PoissonDataset`, like the other arguments.
        seed: An integer, or None for the randomness of the operating system.
        max_batch_size: The most rows in a draw, `"auto"` or None.
        present: A bool array with one entry for each row, or None for all.
        num_present: The number to use as `num_examples`, or None.
        share: The place of these rows in a data set that several processes hold, or None.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range, or two contradict each other.

    Attributes:
        largest_part: The number of rows of the process that draws the most in the latest draw.
    """

    def __init__(
        self,
        num_rows: int,
        expected_batch_size: int,
        seed: int | None,
        max_batch_size: int | str | None = None,
        present: Any = None,
        num_present: int | None = None,
        share: ProcessShare | None = None,
    ) -> None:
        self.num_rows = num_rows
        self._share = share
        self._rows_of_processes = (self.num_rows,) if share is None else share.rows_of_processes
        self._present = None if present is None else _checked_present(present, self.num_rows)
        self._num_examples = sum(self._rows_of_processes)
        if num_present is not None:
            self._num_examples = check_integer(
                "num_present", num_present, minimum=1, maximum=self.num_rows
            )
        self._expected_batch_size = check_batch_size(
            expected_batch_size, self._num_examples, "expected_batch_size"
        )
        self._max_batch_size = self._checked_largest(max_batch_size)
        self._refuse_parts()
        self.seed = check_seed(seed)
        self.largest_part = 0
        # The data set of this process alone, if this is its share.
        self._undivided: PoissonDraws | None = None
        self._draw_numbers = itertools.count()
        self._steps_before, self._process = 0, os.getpid()

    @property
    def num_examples(self) -> int:
        """The number of rows to draw from, in all processes; `num_present` if given."""
        return self._num_examples

    @property
    def num_shares(self) -> int:
        """The number of processes that hold the data."""
        return len(self._rows_of_processes)

    @property
    def largest_share(self) -> int:
        """The number of rows of the process that holds the most."""
        return max(self._rows_of_processes)

    @property
    def expected_batch_size(self) -> int:
        """The expected number of rows in a draw, over all processes."""
        return self._expected_batch_size

    @property
    def max_batch_size(self) -> int | str | None:
        """The most rows in a batch, over all processes; `"auto"` until a `fit` has chosen it."""
        return self._max_batch_size

    @property
    def truncated_to(self) -> int | None:
        """The number of rows to which draws are cut; None if none is, or none can be larger."""
        most = self._max_batch_size
        return most if isinstance(most, int) and most < self._num_examples else None

    @property
    def fixed_size(self) -> int | None:
        """The number of rows of every batch, padding included; None if batches differ in size."""
        if not isinstance(self._max_batch_size, int) or self.num_shares > 1:
            return None
        return self.num_rows if self.truncated_to is None else self.truncated_to

    @property
    def sampling_probability(self) -> float:
        """The probability with which a step draws each row."""
        return self.expected_batch_size / self.num_examples

    @property
    def present(self) -> np.ndarray:
        """A bool array that tells which rows may be drawn."""
        return np.ones(self.num_rows, bool) if self._present is None else self._present.copy()

    def choose_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch in place of `"auto"`; it stays as it is afterwards.

        Args:
            max_batch_size: The most rows in a batch.

        Raises:
            ValueError: If it is not `"auto"` any more, or out of range.
        """
        if self._max_batch_size != "auto":
            raise ValueError(
                "The largest batch of a `PoissonDataset` cannot change, since a ledger may count "
                f"steps with it. Received: max_batch_size={max_batch_size}, in place of "
                f"{self._max_batch_size}"
            )
        self._max_batch_size = self._checked_largest(max_batch_size)
        if self._undivided is not None and self._undivided.max_batch_size == "auto":
            self._undivided.choose_max_batch_size(max_batch_size)

    def begin_run(self, steps_before: int) -> None:
        """Make the draws that follow differ from those of earlier runs with the same seed.

        Args:
            steps_before: The number of steps on the model's ledger before the run.
        """
        self._steps_before = steps_before
        self._process = os.getpid()

    def draw(self) -> np.ndarray:
        """Return the row numbers of one new draw, in random order; it may be empty.

        The order keeps secret which place in the batch is whose: see `gradients.totals`.
        """
        # A forked process would repeat the draws of its parent.
        seed = self.seed if self._process == os.getpid() else None
        key = (self._steps_before, next(self._draw_numbers))
        if self._share is not None:
            probability = self.sampling_probability
            rows, self.largest_part = self._share.draw(seed, key, probability, self.truncated_to)
            return rows
        generator = draw_generator(seed, *key)
        rows = poisson_draw(generator, self.num_rows, self.sampling_probability)
        rows = truncated_draw(generator, rows, self.truncated_to)
        rows = generator.permutation(rows)
        return rows if self._present is None else rows[self._present[rows]]

    def _checked_largest(self, max_batch_size: int | str | None) -> int | str | None:
        """Return the argument `max_batch_size`, checked."""
        if max_batch_size is None:
            return None
        if isinstance(max_batch_size, str):
            return check_choice("max_batch_size", max_batch_size, ("auto",))
        return check_integer("max_batch_size", max_batch_size, minimum=self._expected_batch_size)

    def _refuse_parts(self) -> None:
        """Raise a `ValueError` if only some rows are present where all of them must be."""
        is_part = self._present is not None or self._num_examples != sum(self._rows_of_processes)
        if self._share is not None and is_part:
            raise ValueError(
                "Arguments `present` and `num_present` are for the data of one process. "
                f"Received: {self.num_shares} processes"
            )
        if self._max_batch_size is not None and is_part:
            raise ValueError(
                "Argument `max_batch_size` cannot be combined with `present` or `num_present`: how "
                "often a draw is cut depends on the number of rows, which is accounted for as "
                f"public. Received: max_batch_size={self._max_batch_size!r}"
            )


def _checked_present(present: Any, num_rows: int) -> np.ndarray:
    """Return a copy of the bool array `present`, which has one entry for each row."""
    given = np.array(present)
    if given.dtype != np.bool_ or given.shape != (num_rows,):
        raise ValueError(
            f"Argument `present` must be a bool array with one entry for each of the {num_rows} "
            f"rows. Received: dtype {given.dtype}, shape {given.shape}"
        )
    return given
