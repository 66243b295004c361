"""Arrays as Poisson-sampled batches."""

import itertools
import math
import os
from typing import Any

import keras
import numpy as np

from keras_adaclip.accounting import check_integer
from keras_adaclip.sampling.checking import (
    as_array,
    checked_batch_size,
    checked_present,
    checked_seed,
    common_length,
    padding,
)
from keras_adaclip.sampling.draws import generator_of_draw, poisson_draw, seed_of_run


class PoissonDataset(keras.utils.PyDataset):
    """Arrays as Poisson-sampled batches, for `PrivateModel.fit`.

    Batch `k` is a dict with `"x"`, `"y"` and `"sample_weight"` where given, and `"mask"`, a bool
    array of shape `(rows,)` that is false for padding (an empty draw has one padding row). Batches
    differ in size; `fit` pads them where the backend wants one shape.

    Args:
        x: array, or dict, list or tuple of arrays, of shape `(num_examples, ...)`; batches have
            tuples in the place of lists. On TensorFlow arrays of strings too.
        y: targets of the same length, or None.
        sample_weight: weights of the same length, or None.
        expected_batch_size: integer from 1 to `num_examples`; each row is drawn with probability
            `expected_batch_size / num_examples`, `num_examples` being the number of rows unless
            `num_present` is given.
        seed: None draws from the operating system, different at every step of every run; an
            integer makes the draws repeatable, and whoever knows it knows who was drawn, so the
            accounted amplification no longer protects against them. A model that goes on training
            draws anew with it, since repeated draws are not what the ledger counts.
        present: bool array with one entry a row, or None for all true. A row where it is
            false is never drawn, and all else stays: the law of the other rows, the number of
            steps, the divisor. So two data sets that differ in one row are trained on alike, as
            an audit wants it.
        num_present: with `present`, how many rows are taken to be present, as `num_examples`,
            where it must not depend on how many are; None takes all.

    Raises:
        TypeError: where an argument has the wrong type.
        ValueError: where lengths differ, or an argument is out of range.

    Example:

    >>> import numpy as np
    >>> dataset = PoissonDataset(np.zeros((100, 3)), expected_batch_size=10, seed=0)
    >>> len(dataset), dataset.sampling_probability
    (10, 0.1)

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
    ) -> None:
        super().__init__()
        self._parts = {
            name: keras.tree.lists_to_tuples(keras.tree.map_structure(as_array, part))
            for name, part in (("x", x), ("y", y), ("sample_weight", sample_weight))
            if part is not None
        }
        self._num_rows = common_length(self._parts)
        if num_present is not None and present is None:
            raise ValueError(
                "Argument `num_present` belongs to `present`. Received: present=None, "
                f"num_present={num_present!r}"
            )
        self._num_examples = (
            self._num_rows
            if num_present is None
            else check_integer(num_present, "num_present", minimum=1, maximum=self._num_rows)
        )
        self._expected_batch_size = checked_batch_size(expected_batch_size, self._num_examples)
        self.seed = checked_seed(seed)
        self._present = None if present is None else checked_present(present, self._num_rows)
        self._draw_numbers = itertools.count()
        self._steps_before = 0
        self._process = os.getpid()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuses: other draws than these would be accounted as if they were these."""
        raise TypeError(
            "`PoissonDataset` cannot be subclassed, because the privacy accounting relies on how "
            "it draws. Prepare the arrays beforehand, or pass another `keras.utils.PyDataset` to "
            f"`fit`, which is accounted without amplification. Received: class {cls.__name__}"
        )

    @property
    def num_examples(self) -> int:
        """Number of rows to draw from, by `num_present` where it was given."""
        return self._num_examples

    @property
    def num_rows(self) -> int:
        """Number of rows in the arrays, present or not."""
        return self._num_rows

    @property
    def num_shares(self) -> int:
        """In how many processes there are rows: one."""
        return 1

    @property
    def largest_share(self) -> int:
        """Rows of the process that has the most."""
        return self._num_rows

    @property
    def expected_batch_size(self) -> int:
        """Expected number of rows in a draw."""
        return self._expected_batch_size

    @property
    def sampling_probability(self) -> float:
        """The probability with which a step draws each row."""
        return self.expected_batch_size / self.num_examples

    @property
    def present(self) -> np.ndarray:
        """Which rows may be drawn: bool, one a row."""
        return np.ones(self._num_rows, bool) if self._present is None else self._present.copy()

    @property
    def num_batches(self) -> int:
        """Steps an epoch, `ceil(num_examples / expected_batch_size)`."""
        return math.ceil(self.num_examples / self.expected_batch_size)

    def __len__(self) -> int:
        return self.num_batches

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.take(self.draw())

    def begin_run(self, steps_before: int) -> None:
        """Lets the draws that follow differ from those of earlier runs with the same seed.

        Args:
            steps_before: integer >= 0, the steps that the model's ledger held before the run.
        """
        self._steps_before = steps_before
        self._process = os.getpid()

    def draw(self) -> np.ndarray:
        """Row numbers of one new draw, ascending, none twice; empty with some probability."""
        seed = seed_of_run(self.seed, self._steps_before)
        # A process that was forked off would draw what the other one draws.
        seed = seed if self._process == os.getpid() else None
        generator = generator_of_draw(seed, next(self._draw_numbers))
        rows = poisson_draw(generator, self._num_rows, self.sampling_probability)
        return rows if self._present is None else rows[self._present[rows]]

    def take(self, rows: np.ndarray, padded_size: int | None = None) -> dict[str, Any]:
        """The batch with the given rows.

        Args:
            rows: row numbers.
            padded_size: number of rows to fill up to with zeros; None adds one row of zeros to
                an empty draw and nothing else.

        Returns:
            The batch, `"mask"` included.
        """
        size = max(len(rows), 1) if padded_size is None else padded_size
        missing = size - len(rows)

        def gather(array: np.ndarray) -> np.ndarray:
            taken = array[rows]
            if missing == 0:
                return taken
            return np.concatenate([taken, padding((missing, *array.shape[1:]), array.dtype)])

        batch = {name: keras.tree.map_structure(gather, part) for name, part in self._parts.items()}
        batch["mask"] = np.arange(size) < len(rows)
        return batch

    @property
    def first_rows(self) -> dict[str, Any]:
        """The first three rows (fewer where there are fewer), for building and checking a model.

        Whether they are present plays no part.
        """
        return self.take(np.arange(min(3, self._num_rows)))
