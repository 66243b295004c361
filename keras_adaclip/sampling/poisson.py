"""Arrays as Poisson-sampled batches."""

import itertools
import math
import os
from typing import Any

import keras
import numpy as np

from keras_adaclip._checks import check_batch_size, check_integer, check_seed
from keras_adaclip.sampling.arrays import as_arrays, common_length, padding
from keras_adaclip.sampling.draws import ProcessShare, draw_generator, poisson_draw


class PoissonDataset(keras.utils.PyDataset):
    """Arrays as Poisson-sampled batches, for `PrivateModel.fit`.

    Batch `k` is a dict with `"x"`, `"y"` and `"sample_weight"` as given, and `"mask"`, a bool
    array of shape `(rows,)` that is false for padding (an empty draw has one row of padding).
    Batches differ in size; `fit` pads them if the backend needs few shapes.

    Args:
        x: An array or frame, or a dict, list or tuple of arrays, of shape `(num_examples, ...)`.
            Batches hold tuples in place of lists. On TensorFlow, arrays may hold strings.
        y: Targets of the same length, or None.
        sample_weight: Weights of the same length, or None.
        expected_batch_size: An integer from 1 to `num_examples`. Each row is drawn with probability
            `expected_batch_size / num_examples`, where `num_examples` is the number of rows, or
            `num_present` if given.
        seed: None draws from the operating system, differently at every step of every run. An
            integer makes the draws repeatable. Whoever knows the seed knows who was drawn, so the
            accounted amplification does not protect against them. Continued training draws other
            rows with the same seed, since the ledger does not count repeated draws.
        present: A bool array with one entry for each row; None stands for all true. A row that is
            not present is never drawn. Everything else stays the same: the draws of the other rows,
            the number of steps, the divisor. An audit can so train on two data sets that differ in
            one row.
        num_present: The number to use as `num_examples` if it must not depend on how many rows are
            `present`. None takes all rows.
        share: The place of these rows in a data set that several processes hold; `fit` sets it.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If lengths differ, or an argument is out of range.

    Attributes:
        num_rows: The number of rows in the arrays of this process, present or not.

    Example:

    >>> import numpy as np
    >>> PoissonDataset(np.zeros((100, 3)), expected_batch_size=10, seed=0)
    PoissonDataset(num_examples=100, expected_batch_size=10, sampling_probability=0.1)

    Reference:
        Abadi et al. 2016, "Deep learning with differential privacy", section 3.1 (lots).
    """

    def __init__(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        expected_batch_size: int,
        seed: int | None = None,
        present: Any = None,
        num_present: int | None = None,
        share: ProcessShare | None = None,
    ) -> None:
        super().__init__()
        self._parts = {
            name: as_arrays(part)
            for name, part in (("x", x), ("y", y), ("sample_weight", sample_weight))
            if part is not None
        }
        self.num_rows = common_length(self._parts)
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
        self.seed = check_seed(seed)
        self.largest_part = 0
        self._draw_numbers = itertools.count()
        self.begin_run(0)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse subclasses, whose draws would be accounted as if they were those of this class."""
        raise TypeError(
            "`PoissonDataset` cannot be subclassed, because the privacy accounting relies on how "
            "it draws. Prepare the arrays beforehand, or pass another `keras.utils.PyDataset` to "
            f"`fit`, which is accounted without amplification. Received: class {cls.__name__}"
        )

    def __repr__(self) -> str:
        return (
            f"PoissonDataset(num_examples={self.num_examples}, expected_batch_size="
            f"{self.expected_batch_size}, sampling_probability={self.sampling_probability})"
        )

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
    def sampling_probability(self) -> float:
        """The probability with which a step draws each row."""
        return self.expected_batch_size / self.num_examples

    @property
    def present(self) -> np.ndarray:
        """A bool array that tells which rows may be drawn."""
        return np.ones(self.num_rows, bool) if self._present is None else self._present.copy()

    def __len__(self) -> int:
        return math.ceil(self.num_examples / self.expected_batch_size)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.take(self.draw())

    def begin_run(self, steps_before: int) -> None:
        """Make the draws that follow differ from those of earlier runs with the same seed.

        Args:
            steps_before: The number of steps on the model's ledger before the run.
        """
        self._steps_before = steps_before
        self._process = os.getpid()

    def draw(self) -> np.ndarray:
        """Return the ascending row numbers of one new draw, which may be empty."""
        # A forked process would repeat the draws of its parent.
        seed = self.seed if self._process == os.getpid() else None
        key = (self._steps_before, next(self._draw_numbers))
        if self._share is not None:
            rows, self.largest_part = self._share.draw(seed, key, self.sampling_probability)
        else:
            generator = draw_generator(seed, *key)
            rows = poisson_draw(generator, self.num_rows, self.sampling_probability)
        return rows if self._present is None else rows[self._present[rows]]

    def take(self, rows: np.ndarray, padded_size: int | None = None) -> dict[str, Any]:
        """Return the batch with the given rows, `"mask"` included.

        Args:
            rows: Row numbers.
            padded_size: The number of rows to pad to; None only adds one row to an empty draw.
        """
        size = max(len(rows), 1) if padded_size is None else padded_size
        missing = size - len(rows)

        def gather(array: np.ndarray) -> np.ndarray:
            """Return the rows of an array, padded."""
            taken = array[rows]
            if missing == 0:
                return taken
            return np.concatenate([taken, padding((missing, *array.shape[1:]), array.dtype)])

        batch = {name: keras.tree.map_structure(gather, part) for name, part in self._parts.items()}
        batch["mask"] = np.arange(size) < len(rows)
        return batch

    @property
    def first_rows(self) -> dict[str, Any]:
        """A batch of up to three rows, present or not, for building and examining a model."""
        if self._share is not None:
            return self._share.first_rows
        return self.take(np.arange(min(3, self.num_rows)))


def _checked_present(present: Any, num_rows: int) -> np.ndarray:
    """Return a copy of the bool array `present`, which has one entry for each row."""
    given = np.array(present)
    if given.dtype != np.bool_ or given.shape != (num_rows,):
        raise ValueError(
            f"Argument `present` must be a bool array with one entry for each of the {num_rows} "
            f"rows. Received: dtype {given.dtype}, shape {given.shape}"
        )
    return given
