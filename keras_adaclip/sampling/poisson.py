"""Arrays and sources of examples as Poisson-sampled batches."""

import math
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_adaclip._checks import check_batch_size, check_choice, check_integer, check_seed
from keras_adaclip.sampling.draws import (
    DrawStream,
    ProcessShare,
    poisson_draw,
    rows_of_units,
    truncated_draw,
)
from keras_adaclip.sampling.rows import ArrayRows, SourceRows


class PoissonDataset(keras.utils.PyDataset):
    """Arrays as Poisson-sampled batches, for `PrivateModel.fit`.

    Batch `k` is a dict with `"x"`, `"y"` and `"sample_weight"` as given, and `"mask"`, a bool
    array of shape `(rows,)` that is false for padding (an empty draw has one row of padding).
    Batches differ in size; with `max_batch_size`, all of one process are padded to it. `fit` pads
    batches if the backend needs few shapes.

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
        max_batch_size: None for exact Poisson sampling. An integer from `expected_batch_size` up
            cuts larger draws to this number of rows, chosen at random, so that all batches can
            have one shape. Epsilon is then that of truncated Poisson sampling, larger the more
            often draws are cut; an old `dp-accounting` does not know it. `"auto"` lets the first
            `fit` choose the smallest number that costs at most 0.1% of that run's epsilon, which
            takes some seconds; until then nothing is cut. Cannot be combined with `present`.
        unit_ids: Whose the rows are: integers or strings of shape `(num_examples,)`, one for each
            person. Privacy is then that of a person with all of their rows, on the word of the
            user that one person has one id. Only the rows that stay count as `num_examples`; their
            number counts as public. Ids are not kept or saved. For the data of one process, without
            `max_batch_size`.
        max_rows_per_unit: The most rows of a person that stay, from 1 to 100,000; the others are
            left out, chosen at random once. Required with `unit_ids`.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If lengths differ, or an argument is out of range.

    Attributes:
        num_rows: The number of rows in the arrays of this process, present or not.
        num_shares: The number of processes that hold the data.
        largest_share: The number of rows of the process that holds the most.
        largest_part: The number of rows of the process that draws the most in the latest draw.
        rows_per_unit: The most rows of one person; 0 without `unit_ids`.

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
        max_batch_size: int | str | None = None,
        unit_ids: Any = None,
        max_rows_per_unit: int | None = None,
    ) -> None:
        super().__init__()
        # What has been read from elsewhere comes from `from_source`.
        rows = x if isinstance(x, (ArrayRows, SourceRows)) else ArrayRows(x, y, sample_weight)
        self._rows, self.num_rows = rows, rows.num_rows
        self._share = share or ProcessShare((self.num_rows,))
        held = self._share.units_of_processes
        self.num_shares, self.largest_share, self._num_examples = len(held), max(held), sum(held)
        self._present = None if present is None else _checked_present(present, self.num_rows)
        self.rows_per_unit = max_rows_per_unit or 0
        if unit_ids is not None or max_rows_per_unit is not None:
            stays = rows_of_units(unit_ids, max_rows_per_unit, self.num_rows, check_seed(seed))
            self._num_examples = int(stays.sum())
            self._present = stays if self._present is None else stays & self._present
        if num_present is not None:
            self._num_examples = check_integer(
                "num_present", num_present, minimum=1, maximum=self.num_rows
            )
        self._expected_batch_size = check_batch_size(
            expected_batch_size, self._num_examples, "expected_batch_size"
        )
        self._max_batch_size = self._checked_largest(max_batch_size)
        is_part = self._present is not None or self._num_examples != sum(held)
        if is_part and self.num_shares > 1:
            raise ValueError(
                "Arguments `present`, `num_present` and `unit_ids` are for data of one process. "
                f"Received: {self.num_shares} processes"
            )
        if is_part and max_batch_size is not None:
            raise ValueError(
                "Argument `max_batch_size` cannot be combined with `present`, `num_present` or "
                "`unit_ids`: how often a draw is cut depends on the number of rows, which is "
                "accounted for as public, and its cost is known for one row of a person alone. "
                f"Received: max_batch_size={max_batch_size!r}"
            )
        self.seed = check_seed(seed)
        self.largest_part = 0
        # The data set of this process alone, if this is its share.
        self._undivided: PoissonDataset | None = None
        self._draws = DrawStream(self.seed, self._share)

    @classmethod
    def from_source(
        cls,
        source: Any,
        *,
        expected_batch_size: int,
        map: Callable[[Any], Any] | None = None,
        workers: int = 0,
        max_batch_size: int | str | None = None,
        seed: int | None = None,
        unit_ids: Any = None,
        max_rows_per_unit: int | None = None,
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
                An example is copied before the next one is read, so the same arrays may be filled
                anew for each.
            expected_batch_size: An integer from 1 to `len(source)`, as for `PoissonDataset`.
            map: A function of one entry that returns one example, to decode, resize, pad or augment
                it. It must not look at other examples, or remember any: the accounting holds for
                examples that are prepared on their own.
            workers: The number of threads that read ahead, two batches each, in which source and
                `map` are called; 0 reads a batch when a step needs it. Both must allow this: a
                source must not share the place in an open file. Where calls return the same arrays,
                filled anew, threads take turns: a few entries are read to tell. Reading files,
                decoding images and NumPy use all cores in threads; long Python code does not.
            max_batch_size: As for `PoissonDataset`.
            seed: As for `PoissonDataset`. The draws of a `fit` do not depend on `workers`; after
                one that ended within an epoch, those of the next do.
            unit_ids: As for `PoissonDataset`, one id for each example of the source.
            max_rows_per_unit: As for `PoissonDataset`.

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
        return cls(
            SourceRows(source, map, check_integer("workers", workers, minimum=0)),
            expected_batch_size=expected_batch_size,
            max_batch_size=max_batch_size,
            seed=seed,
            unit_ids=unit_ids,
            max_rows_per_unit=max_rows_per_unit,
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse subclasses, whose draws would be accounted as if they were those of this class."""
        raise TypeError(
            "`PoissonDataset` cannot be subclassed, because the privacy accounting relies on how "
            "it draws. Prepare the arrays beforehand, or pass another `keras.utils.PyDataset` to "
            f"`fit`, which is accounted without amplification. Received: class {cls.__name__}"
        )

    def __repr__(self) -> str:
        most = "" if self._max_batch_size is None else f", max_batch_size={self._max_batch_size!r}"
        return (
            f"PoissonDataset(num_examples={self.num_examples}, expected_batch_size="
            f"{self.expected_batch_size}, sampling_probability={self.sampling_probability}{most})"
        )

    def __len__(self) -> int:
        return math.ceil(self.num_examples / self.expected_batch_size)

    @property
    def num_examples(self) -> int:
        """The number of rows to draw from, in all processes; `num_present` if given."""
        return self._num_examples

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

    def begin_run(self, steps_before: int) -> None:
        """Make the draws that follow differ from those of earlier runs with the same seed.

        Args:
            steps_before: The number of steps on the model's ledger before the run.
        """
        self._rows.begin_run()
        self._draws.begin_run(steps_before)

    def draw(self) -> np.ndarray:
        """Return the row numbers of one new draw, in random order; it may be empty.

        The order keeps secret which place in the batch is whose: see `gradients.totals`.
        """
        generator = self._draws.next()
        num_rows = sum(self._share.units_of_processes)
        rows = poisson_draw(generator, num_rows, self.sampling_probability)
        rows = truncated_draw(generator, rows, self.truncated_to)
        rows = generator.permutation(rows)
        rows, self.largest_part = self._share.part_of(rows)
        return rows if self._present is None else rows[self._present[rows]]

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

    def shared(
        self, share: ProcessShare, expected_batch_size: int | None = None
    ) -> "PoissonDataset":
        """Return the data set as this process's share of one that several processes hold.

        Args:
            share: The place of these rows in the whole.
            expected_batch_size: That of the whole; None stands for that of this data set.

        Raises:
            ValueError: If only some rows are present, or `expected_batch_size` is out of range.
        """
        size = self._expected_batch_size if expected_batch_size is None else expected_batch_size
        num_present = None if self._num_examples == self.num_rows else self._num_examples
        whole = PoissonDataset(
            self._rows,
            expected_batch_size=size,
            seed=self.seed,
            present=self._present,
            num_present=num_present,
            share=share,
            max_batch_size=self._max_batch_size,
        )
        whole._undivided = self
        return whole

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.take(self.draw(), self.fixed_size)

    @property
    def num_ahead(self) -> int:
        """The number of draws to have read before they are needed."""
        return self._rows.num_ahead

    def reading(
        self, rows: np.ndarray, padded_size: int | None = None
    ) -> Callable[[], dict[str, Any]]:
        """Begin to read rows; return a function that waits for them and returns the batch.

        Args:
            rows: Row numbers.
            padded_size: The number of rows to pad to, as for `take`.
        """
        size = max(len(rows), 1) if padded_size is None else padded_size
        read = self._rows.reading(rows, size)
        return lambda: {**read(), "mask": np.arange(size) < len(rows)}

    def take(self, rows: np.ndarray, padded_size: int | None = None) -> dict[str, Any]:
        """Return the batch with the given rows, `"mask"` included.

        Args:
            rows: Row numbers.
            padded_size: The number of rows to pad to; None only adds one row to an empty draw.
        """
        return self.reading(rows, padded_size)()

    @property
    def first_rows(self) -> dict[str, Any]:
        """A batch of up to three rows, present or not, for building and examining a model."""
        return self._share.first_rows or self.take(np.arange(min(3, self.num_rows)))

    @property
    def known_rows(self) -> dict[str, Any]:
        """All rows if they are arrays of this process alone, otherwise the first ones."""
        if self.num_shares == 1 and isinstance(self._rows, ArrayRows):
            return self._rows.parts
        return self.first_rows

    def _checked_largest(self, max_batch_size: int | str | None) -> int | str | None:
        """Return the argument `max_batch_size`, checked."""
        if max_batch_size is None:
            return None
        if isinstance(max_batch_size, str):
            return check_choice("max_batch_size", max_batch_size, ("auto",))
        return check_integer("max_batch_size", max_batch_size, minimum=self._expected_batch_size)


def _checked_present(present: Any, num_rows: int) -> np.ndarray:
    """Return a copy of the bool array `present`, which has one entry for each row."""
    given = np.array(present)
    if given.dtype != np.bool_ or given.shape != (num_rows,):
        raise ValueError(
            f"Argument `present` must be a bool array with one entry for each of the {num_rows} "
            f"rows. Received: dtype {given.dtype}, shape {given.shape}"
        )
    return given
