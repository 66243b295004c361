"""Arrays and sources of examples as Poisson-sampled batches."""

import itertools
import math
import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_adaclip._checks import check_batch_size, check_integer, check_seed
from keras_adaclip.sampling.arrays import padding
from keras_adaclip.sampling.draws import ProcessShare, draw_generator, poisson_draw
from keras_adaclip.sampling.rows import ArrayRows, SourceRows


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
        self._begin(
            ArrayRows(x, y, sample_weight), expected_batch_size, seed, present, num_present, share
        )

    @classmethod
    def from_source(
        cls,
        source: Any,
        *,
        expected_batch_size: int,
        map: Callable[[Any], Any] | None = None,
        workers: int = 0,
        seed: int | None = None,
    ) -> "PoissonDataset":
        """Return a Poisson-sampled data set of examples that are read when they are drawn.

        Args:
            source: Anything with `len(source)` and `source[i]`, such as a map-style `Dataset` of
                PyTorch or Hugging Face, a random access source of Grain or TensorFlow Datasets, an
                array of h5py or zarr, a memory-mapped array, a list, or the result of
                `from_folder` and `write_source`. An entry is one example: `x`, `(x, y)` or
                `(x, y, sample_weight)`, a tuple and not a list, where `x` may be a dict or tuple.
                All entries have the shapes of the first, and fit its dtypes; these are taken to be
                public. An example that has several numbers is protected as several examples.
                If the class has `__getitems__(numbers)`, it returns their entries as a list.
            expected_batch_size: An integer from 1 to `len(source)`, as for `PoissonDataset`.
            map: A function of one entry that returns one example, to decode, resize, pad or augment
                it. It must not look at other examples, or remember any: the accounting holds for
                examples that are prepared on their own.
            workers: The number of threads that read ahead, two batches each, in which source and
                `map` are called; 0 reads a batch when a step needs it. Both must allow this: a
                source must not share the place in an open file. Reading files, decoding images and
                NumPy use all cores in threads; long Python code does not.
            seed: As for `PoissonDataset`. The draws of a `fit` do not depend on `workers`; after
                one that ended within an epoch, those of the next do.

        Raises:
            TypeError: If the source cannot be read by number, or an example is not of numbers (on
                TensorFlow, or of strings).
            ValueError: If the source is empty, an example is a tuple of more than three, or an
                argument is out of range. While training: if an example has another shape than the
                first.
            RuntimeError: If an example cannot be read, with its number, also while training; steps
                that ran stay on the ledger. On TensorFlow, errors while training are TensorFlow's
                own, whose text holds these.

        Example:

        >>> squares = [(float(i), float(i * i)) for i in range(100)]
        >>> PoissonDataset.from_source(squares, expected_batch_size=10)
        PoissonDataset(num_examples=100, expected_batch_size=10, sampling_probability=0.1)
        """
        if map is not None and not callable(map):
            raise TypeError(
                "Argument `map` must be a function of one entry of the source. "
                f"Received: map of type {type(map).__name__}"
            )
        workers = check_integer("workers", workers, minimum=0)
        dataset = cls.__new__(cls)
        dataset._begin(SourceRows(source, map, workers), expected_batch_size, seed)
        return dataset

    def _begin(
        self,
        rows: ArrayRows | SourceRows,
        expected_batch_size: int,
        seed: int | None,
        present: Any = None,
        num_present: int | None = None,
        share: ProcessShare | None = None,
    ) -> None:
        """Initialize a data set of these rows; the other arguments are those of the class."""
        super().__init__()
        self._rows, self.num_rows = rows, rows.num_rows
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
        self._rows.begin_run()
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

    @property
    def num_ahead(self) -> int:
        """The number of draws to have read before they are needed."""
        return self._rows.num_ahead

    def reading(self, rows: np.ndarray) -> Callable[..., dict[str, Any]]:
        """Begin to read rows; return a function that takes the padded size and returns the batch.

        Args:
            rows: Row numbers.
        """
        read = self._rows.reading(rows)
        return lambda padded_size=None: _padded(read(), len(rows), padded_size)

    def take(self, rows: np.ndarray, padded_size: int | None = None) -> dict[str, Any]:
        """Return the batch with the given rows, `"mask"` included.

        Args:
            rows: Row numbers.
            padded_size: The number of rows to pad to; None only adds one row to an empty draw.
        """
        return _padded(self._rows.take(rows), len(rows), padded_size)

    @property
    def first_rows(self) -> dict[str, Any]:
        """A batch of up to three rows, present or not, for building and examining a model."""
        if self._share is not None:
            return self._share.first_rows
        return self.take(np.arange(min(3, self.num_rows)))


def _padded(parts: dict[str, Any], num_rows: int, padded_size: int | None) -> dict[str, Any]:
    """Return a batch of rows with padding and a mask."""
    size = max(num_rows, 1) if padded_size is None else padded_size
    missing = size - num_rows

    def pad(array: np.ndarray) -> np.ndarray:
        """Return the array with rows of padding behind it."""
        if missing == 0:
            return array
        return np.concatenate([array, padding((missing, *array.shape[1:]), array.dtype)])

    batch = {name: keras.tree.map_structure(pad, part) for name, part in parts.items()}
    batch["mask"] = np.arange(size) < num_rows
    return batch


def _checked_present(present: Any, num_rows: int) -> np.ndarray:
    """Return a copy of the bool array `present`, which has one entry for each row."""
    given = np.array(present)
    if given.dtype != np.bool_ or given.shape != (num_rows,):
        raise ValueError(
            f"Argument `present` must be a bool array with one entry for each of the {num_rows} "
            f"rows. Received: dtype {given.dtype}, shape {given.shape}"
        )
    return given
